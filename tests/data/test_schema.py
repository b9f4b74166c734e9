"""Fields, layouts and schema.toml."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fieldwise.config.errors import ConfigError
from fieldwise.data.kinds.kind import KINDS
from fieldwise.data.kinds.number import BUCKETS
from fieldwise.data.kinds.past import pasts
from fieldwise.data.schema import Field, Layout, Schema, check_keys

NAMES = st.text(st.characters(exclude_categories=("Cs",)), min_size=1, max_size=8)
NUMBERS = st.floats(allow_nan=False)
FIELDS = st.one_of(
    st.builds(Field, NAMES, min_count=st.integers(1, 99), hash_buckets=st.integers(0, 99)),
    st.builds(
        Field,
        NAMES,
        st.just("numeric"),
        buckets=st.sampled_from(BUCKETS),
        max_buckets=st.integers(2, 99),
        bucket_count=st.integers(1, 99),
        thresholds=st.lists(NUMBERS, unique=True).map(lambda numbers: tuple(sorted(numbers))),
    ),
    st.builds(Field, NAMES, st.just("set"), separator=NAMES, max_values=st.integers(1, 99)),
)

NUMBER = 'label = "y"\n[[field]]\nname = "x"\nkind = "numeric"\n'


@given(st.lists(FIELDS, min_size=1, max_size=5, unique_by=lambda field: field.name))
def test_schema_toml_round_trip(fields: list[Field]) -> None:
    names = [field.name for field in fields]
    schema = Schema("".join(names) + "y", tuple(fields), "".join(names) + "w")
    assert Schema.from_toml(schema.to_toml(), "here") == schema


def test_only_what_differs_from_the_default_is_written() -> None:
    schema = Schema("click", (Field("user"), Field("price", "numeric", max_buckets=10)))
    assert schema.to_toml() == (
        'label = "click"\n\n[[field]]\nname = "user"\nkind = "categorical"\n\n'
        '[[field]]\nname = "price"\nkind = "numeric"\nmax_buckets = 10\n'
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", 'a schema needs label = "COLUMN"'),
        ('label = "y"', "at least one field, found none"),
        ('label = "y"\n[[field]]\nkind = "set"', "each \\[\\[field\\]\\] needs a name"),
        ('label = "y"\n[field]\nname = "x"', "each field is a table \\[\\[field\\]\\]"),
        ('label = "y"\nfield = "x"', "each field is a table"),
        ('label = "y"\nfield = ["x"]', "each field is a table"),
        ('lable = "y"', "unknown schema setting 'lable'; did you mean 'label'"),
        ("label = 5", "schema setting 'label' must be a text, found 5"),
        ("label", "not a TOML file"),
        ('label = "y"\n[[field]]\nname = "x"\nkid = "set"', "unknown field setting 'kid'; did you mean 'kind'"),
        (
            'label = "y"\n[[field]]\nname = "x"\nkind = "catgorical"',
            "field 'x': unknown kind 'catgorical'; did you mean",
        ),
        (
            NUMBER + 'buckets = "quantiles"',
            "unknown buckets 'quantiles'; did you mean 'quan",
        ),
        ('label = "y"\n[[field]]\nname = "x"\nmin_count = "2"', "'min_count' must be a whole number, found '2'"),
        ('label = "y"\n[[field]]\nname = "x"\nmin_count = true', "'min_count' must be a whole number, found True"),
        ('label = "y"\n[[field]]\nname = "x"\nmin_count = 0', "min_count must be at least 1, found 0"),
        (
            NUMBER + "bucket_count = 0",
            "bucket_count must be at least 1, found 0",
        ),
        (
            NUMBER + 'thresholds = ["a"]',
            "thresholds are numbers, found 'a'",
        ),
        (
            NUMBER + 'buckets = "explicit"\nthresholds = [2, 1]',
            "thresholds must rise",
        ),
        (
            NUMBER + 'buckets = "explicit"\nthresholds = [1, 1]',
            "thresholds must rise",
        ),
        (
            NUMBER + 'buckets = "explicit"\nthresholds = [nan]',
            "thresholds must rise",
        ),
        ('label = "y"\n[[field]]\nname = "x"\nkind = "set"\nseparator = ""', "a set needs a separator"),
        ('label = "y"\n[[field]]\nname = "x"\n[[field]]\nname = "x"', "must differ, found 'x' 2 times"),
        ('label = "y"\n[[field]]\nname = "y"', "'y' is the label or weight column"),
    ],
)
def test_what_is_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "schema.toml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match=message + r".*schema\.toml\)"):
        Schema.load(path)


def test_a_schema_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot read the schema"):
        Schema.load(tmp_path / "nothing.toml")


@pytest.mark.parametrize("kind", KINDS)
def test_every_setting_of_a_field_can_be_written(tmp_path: Path, kind: str) -> None:
    """A setting that is new in a kind must come through schema.toml too."""
    others: dict[str, Any] = {"separator": ";", "buckets": "explicit", "thresholds": (1.0, 2.0), "trimmed": True}
    others |= {
        "of": "y2",
        "part": "weekday",
        "format": "seconds",
        "newest": "first",
        "like": "y2",
        "by": "u",
        "time": "t",
    }
    others |= {"view": "rolling", "most_rows": 7000, "positives": True}
    others |= {"role": "position", "at": "7"}
    # A past is of a field, or has gaps, or responses; of all rows, or some.
    apart = ("gaps", "responses", "negatives")
    unable = ("name", "interpolate", *apart, *(() if KINDS[kind].may_be_position else ("role", "at")))
    able = [one.name for one in dataclasses.fields(KINDS[kind]) if one.name not in unable]
    changed = {name: others.get(name, 7) for name in able} | ({"interpolate": 7} if kind == "numeric" else {})
    schema = Schema("y", (Field("x", kind, **changed), Field("y2")))
    assert schema.fields[0].settings == changed
    path = tmp_path / "schema.toml"
    path.write_text(schema.to_toml(), encoding="utf-8")
    assert Schema.load(path) == schema


def test_what_a_past_is_of_can_be_written(tmp_path: Path) -> None:
    every = pasts("item by user negatives time t"), pasts("item by user time t gaps responses")
    for asked in every:
        schema = Schema("y", (Field("user"), Field("item"), *asked))
        (tmp_path / "schema.toml").write_text(schema.to_toml(), encoding="utf-8")
        assert Schema.load(tmp_path / "schema.toml") == schema


def test_settings_of_other_kinds_say_nothing() -> None:
    """Schemas of earlier versions may hold them."""
    text = 'label = "y"\n\n[[field]]\nname = "x"\nkind = "numeric"\nseparator = ";"\n'
    schema = Schema.from_toml(text, "here")
    assert schema.fields == (Field("x", "numeric"),)
    assert schema.to_toml() == text.replace('separator = ";"\n', "")
    with pytest.raises(ConfigError, match="interpolate needs a number in ordered buckets, found a categorical field"):
        Field("x", interpolate=4)
    with pytest.raises(ConfigError, match="field 'x': unknown field setting 'max_bucket'; did you mean 'max_buckets'"):
        Field("x", "numeric", max_bucket=4)


def test_layout() -> None:
    layout = Layout((3, 5, 4), (1, 2, 1))
    assert (layout.fields, layout.rows, layout.columns, layout.has_sets) == (3, 12, 4, True)
    assert layout.offsets == [0, 3, 8]
    assert layout.only([2, 1]) == Layout((4, 5), (1, 2))
    assert layout.columns_of([2, 1]) == [3, 1, 2]
    assert Layout.of([3, 4]) == Layout((3, 4), (1, 1))
    assert not Layout.of([3, 4]).has_sets


def test_types_are_said_in_words() -> None:
    known = {"a": "int", "b": "float", "c": "str", "d": "bool", "e": "tuple[str, ...]"}
    words = {"a": "a whole number", "b": "a number", "c": "a text", "d": "true or false", "e": "a list"}
    for key, word in words.items():
        with pytest.raises(ConfigError, match=f"thing '{key}' must be {word}, found None"):
            check_keys({key: None}, known, "thing")
