"""A kind of field that only this file knows goes from csv to predictions, pages and the server."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest

from fieldwise import Predictor, cli
from fieldwise.data.encode.encoder import Encoder
from fieldwise.data.kinds.counted import Counted
from fieldwise.data.kinds.kind import FIRST, KINDS, MISSING, OTHER, PAD, Code, Field
from fieldwise.data.kinds.samples import Sample
from fieldwise.data.schema import Schema
from fieldwise.export import export as exporting
from fieldwise.serving.engine import Engine

SCHEMA = 'label = "click"\n\n[[field]]\nname = "user"\n\n[[field]]\nname = "code"\nkind = "letters"\nends = 2\n'
ROWS = [{"user": "u1", "code": "abc"}, {"user": "u2", "code": ""}, {"code": "Zz9"}, {"user": 7, "code": 12.0}]


@pytest.fixture
def letters() -> Iterator[None]:
    """Registers a kind with a setting, a state and several ids: the first and the last letter of a text."""

    @dataclass(frozen=True, init=False)
    class LettersField(Field):
        kind: ClassVar = "letters"
        least: ClassVar = {"ends": 1}
        ends: int = 1

        @classmethod
        def infer(cls, name: str, sample: Sample) -> Field | None:
            return cls(name) if sample.known and all(text.startswith("~") for text in sample.known) else None

        def fit(self, column: Counted) -> Code:
            return LettersCode(self, "".join(sorted({end for text, _ in column.texts for end in self.cut(text)})))

        def load(self, texts: list[str], state: dict[str, Any]) -> Code:
            return LettersCode(self, state["alphabet"])

        def cut(self, text: str) -> list[str]:
            return [text[0], text[-1]][: self.ends] if text else []

    class LettersCode(Code):
        def __init__(self, field: LettersField, alphabet: str) -> None:
            self.field, self.alphabet, self.width = field, alphabet, field.ends

        @property
        def size(self) -> int:
            return FIRST + len(self.alphabet)

        @property
        def state(self) -> dict[str, Any]:
            return {"alphabet": self.alphabet}

        def ids(self, texts: Sequence[str | None]) -> Any:
            found = np.full((len(texts), self.width), PAD, dtype=np.int32)
            for row, text in enumerate(texts):
                known = [self.alphabet.find(end) for end in self.field.cut(text or "")]
                ids = [FIRST + place if place >= 0 else OTHER for place in known] or [MISSING]
                found[row, : len(ids)] = ids
            return found

        def text_of_id(self, number: int) -> str:
            return self.alphabet[number - FIRST]

    yield
    del KINDS["letters"]


def run(*arguments: Any) -> int:
    with pytest.raises(SystemExit) as end:
        cli.main([str(argument) for argument in arguments])
    return int(end.value.code or 0)


@pytest.mark.usefixtures("letters")
def test_from_csv_to_the_server(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    random = np.random.default_rng(0)
    lines = [f"{random.integers(2)},u{random.integers(9)},{random.choice(['ab', 'ba', 'cc', ''])}" for _ in range(400)]
    (tmp_path / "log.csv").write_text("\n".join(["click,user,code", *lines]))
    (tmp_path / "schema.toml").write_text(SCHEMA)
    data, trained = tmp_path / "data", tmp_path / "run"
    assert run("prepare", tmp_path / "log.csv", "--schema", tmp_path / "schema.toml", "--out", data, "--json") == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["fields"]["code"] == {"kind": "letters", "size": 5}
    schema = Schema.load(data / "schema.toml")
    assert schema.fields[1] == Field("code", "letters", ends=2)
    encoder = Encoder.load(data / "encoder", schema)
    assert encoder.layout.widths == (1, 2)
    assert [encoder.value_of(1, id) for id in range(5)] == ["(missing)", "(other)", "a", "b", "c"]
    quick = ["--set", "train.epochs=1", "--set", "model.dim=4"]
    assert run("train", data, "--model", "fm", *quick, "--out", trained) == 0
    assert run("predict", trained, tmp_path / "log.csv", "-o", tmp_path / "p.csv") == 0
    # Here, because the process that a server starts for it does not know this file's kind.
    exporting.write_network(trained / "bundle", trained / "bundle" / exporting.FOLDER)
    predictor, engine = Predictor.load(trained), Engine.load(trained)
    table = [dict(zip(("click", "user", "code"), line.split(","), strict=True)) for line in lines]
    written = np.loadtxt(tmp_path / "p.csv", skiprows=1)
    np.testing.assert_allclose(predictor.predict(table), written, rtol=1e-6)
    np.testing.assert_allclose([found[0] for found in [engine.predict([row]) for row in ROWS]], predictor.predict(ROWS))
    (code,) = [field for field in engine.fields if field.name == "code"]
    assert (code.kind, code.size, code.hint) == ("letters", 3, "any text")
    assert engine.explain(ROWS[0]).values["code"] == "abc"
    assert run("explain", trained, "--json") == 0
    assert run("prepare", tmp_path / "log.csv", "--continue-from", trained, "--out", tmp_path / "more") == 0


@pytest.mark.usefixtures("letters")
def test_it_is_inferred_and_its_mistakes_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = "\n".join(f"{number % 2},~{number % 3}" for number in range(60))
    (tmp_path / "log.csv").write_text(f"click,code\n{rows}")
    assert run("prepare", tmp_path / "log.csv", "--label", "click", "--out", tmp_path / "data") == 0
    assert Schema.load(tmp_path / "data" / "schema.toml").fields == (Field("code", "letters"),)
    for text, line in [
        ("ends = 0", "field 'code': ends must be at least 1, found 0"),
        ("end = 2", "did you mean 'ends'"),
    ]:
        (tmp_path / "schema.toml").write_text(SCHEMA.replace("ends = 2", text))
        out = tmp_path / "none"
        assert run("prepare", tmp_path / "log.csv", "--schema", tmp_path / "schema.toml", "--out", out) == 2
        assert line in capsys.readouterr().err
        assert not out.exists()


def test_the_kind_of_the_docs() -> None:
    page = (Path(__file__).parents[3] / "docs" / "data.md").read_text(encoding="utf-8")
    (program,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    try:
        exec(compile(program, "docs", "exec", dont_inherit=True), {"__name__": __name__})
        schema = Schema("click", (Field("query", "length", most=4),))
        assert Schema.from_toml(schema.to_toml(), "here") == schema
        code = schema.fields[0].fit(SimpleNamespace(texts=[("boots", 3), ("hat", 1)]))  # type: ignore[arg-type]
        assert code.coder()(["hat", "sandals", None, 12.0]) == [[5, 6, 0, 4]]
        assert code.value_of(5) == "3 letters"
    finally:
        KINDS.pop("length", None)
