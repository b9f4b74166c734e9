"""The README.md of a bundle, for people who find it: what it predicts, from what, how well, and how to use it.

It is made of the bundle's other files, and nothing reads it: you may edit it.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import fieldwise
from fieldwise.config.documents import parsed
from fieldwise.config.settings import Config, config_from
from fieldwise.data.schema import Schema

FILE = "README.md"
# Fields, and words of a setting, that are named.
MOST_FIELDS, MOST_WORDS = 200, 60
METRICS = {
    "auc": "AUC",
    "log_loss": "log loss",
    "rig": "relative information gain",
    "calibration": "predicted / observed",
    "ece": "calibration error",
}
# Standard errors to either side of a figure.
WIDE = 1.96


def write_card(folder: Path, schemas: Sequence[Schema], date: str = "") -> None:
    """Writes the card of a bundle folder that has all its other files; `schemas` are those of its models."""
    facts, calibration = (parsed(folder / name) for name in ("metrics.json", "calibration.json"))
    config = config_from(tomllib.loads((folder / "config.toml").read_text(encoding="utf-8")), str(folder))
    sections = {
        f"{config.model}: the probability of `{_cell(schemas[0].label)}`": _head(facts, date),
        "How good it is": _figures(facts),
        "Calibration": _calibration(facts, calibration),
        "Data": _data(facts, schemas),
        "Fields": _fields(schemas),
        "Model": _model(config, facts),
        "How to load it": _use(schemas),
    }
    text = "\n\n".join(
        f"{'#' * (1 + bool(n))} {title}\n\n{_lines(own)}" for n, (title, own) in enumerate(sections.items())
    )
    (folder / FILE).write_text(text + "\n", encoding="utf-8")


def _lines(found: Iterator[str]) -> str:
    return "\n".join(found)


def _head(facts: Mapping[str, Any], date: str) -> Iterator[str]:
    trained = f"Trained{f' on {date}' if date else ''} with fieldwise {fieldwise.__version__}."
    yield f"{trained} It gives each row a calibrated probability. This folder is all that is needed to predict."
    for warning in facts.get("warnings", ()):
        yield f"\n**Warning:** {warning}"


def _held_out(facts: Mapping[str, Any]) -> str:
    return "test" if "test" in facts else "valid"


def _figures(facts: Mapping[str, Any]) -> Iterator[str]:
    """A table of the metrics on held-out rows, with 95 % intervals where standard errors are known."""
    part = _held_out(facts)
    found, errors = facts.get(part, {}), facts.get("errors", {})
    if "rows" in found:
        rate = f"{found['positive_rate']:.4%} of them positive"
        chose = "" if part == "test" else " (but they chose the epoch and the calibration)"
        yield f"On {found['rows']:,} {part} rows, {rate}, held out from training{chose}:\n"
    yield "| metric | value | 95 % interval |\n|---|---:|---:|"
    for key, word in METRICS.items():
        if found.get(key) is not None:
            own = WIDE * errors[key] if key in errors else 0.0
            interval = (
                f"{found[key] - own:.5f} to {min(1.0, found[key] + own) if key == 'auc' else found[key] + own:.5f}"
            )
            yield f"| {word} | {found[key]:.5f} | {interval if own else ''} |"
    if errors:
        yield "\nThe intervals take rows as drawn one by one: rows of other days may differ by more."


def _calibration(facts: Mapping[str, Any], fitted: Mapping[str, Any]) -> Iterator[str]:
    yield f"Fitted on validation rows: {fitted['kind']}."
    if "expected_calibration" in facts:
        low, high = facts["expected_calibration"]
        yield f"On as many later rows, predicted / observed is expected between {low:.2f} and {high:.2f}."
    curve = facts.get(_held_out(facts), {}).get("reliability")
    if curve:
        yield "\n| rows | predicted | observed |\n|---:|---:|---:|"
        for rows, *pair in zip(curve["weight"], curve["predicted"], curve["observed"], strict=True):
            yield f"| {rows:,.0f} | {pair[0]:.5f} | {pair[1]:.5f} |"


def _data(facts: Mapping[str, Any], schemas: Sequence[Schema]) -> Iterator[str]:
    if facts.get("data"):
        yield f"- prepared folder: `{_cell(Path(str(facts['data'])).name)}`"
    for part, rows in facts.get("part_rows", {}).items():
        yield f"- {part} rows: {rows:,}"
    first = schemas[0]
    classes = f" (1 is `{_cell(first.positive)}`, 0 is `{_cell(first.negative)}`)" if first.positive else ""
    yield f"- label: `{_cell(first.label)}`{classes}" + (
        f", row weights: `{_cell(first.weight)}`" if first.weight else ""
    )
    if first.recipe:
        yield f"- read by the recipe {first.recipe}"


def _fields(schemas: Sequence[Schema]) -> Iterator[str]:
    fields = list({field.name: field for schema in schemas for field in schema.fields}.values())
    yield "| field | kind | settings |\n|---|---|---|"
    for field in fields[:MOST_FIELDS]:
        settings = ", ".join(f"{name} {str(value)[:MOST_WORDS]}" for name, value in field.settings.items())
        yield f"| {_cell(field.name)} | {field.kind} | {_cell(settings)} |"
    if len(fields) > MOST_FIELDS:
        yield f"\n{len(fields) - MOST_FIELDS:,} more are in schema.toml."
    keys = list(dict.fromkeys(key for schema in schemas for key in schema.history.keys))
    if keys:
        more = f" and {len(keys) - MOST_FIELDS:,} more" if len(keys) > MOST_FIELDS else ""
        yield f"\nHistory of: {_cell(', '.join(keys[:MOST_FIELDS]))}{more}."
    if leaves := max(schema.gbdt_leaves for schema in schemas):
        yield f"\nThe leaves of {leaves} boosted trees are further fields."
    for field in (field for field in fields if field.role):
        where = f"{field.role} {_cell(field.at)} (`{_cell(field.name)}`)"
        yield f"\nPredictions are those at {where}, whatever a row says."


def _model(config: Config, facts: Mapping[str, Any]) -> Iterator[str]:
    if "members" in facts:
        for member in facts["members"]:
            yield f"- {member['model']}, weight {member['weight']:.4f}"
        return
    options = ", ".join(f"{name} {value}" for name, value in config.options.items())
    yield f"{config.model}{f' ({_cell(options)})' if options else ''}; seed {config.seed}."
    words = (("parameters", "{:,} parameters"), ("best_epoch", "the best of {epochs} epochs is {best_epoch}"))
    known = [form.format(facts[key], **facts) for key, form in words if facts.get(key) is not None]
    yield "; ".join([*known, "all settings are in config.toml"]) + "."


def _use(schemas: Sequence[Schema]) -> Iterator[str]:
    columns = list(dict.fromkeys(name for schema in schemas for name in schema.columns))
    optional = set[str]().union(*(schema.optional for schema in schemas))
    named = [f"`{_cell(name)}`{' (may be absent)' if name in optional else ''}" for name in columns[:MOST_FIELDS]]
    yield "```python\nfrom fieldwise.bundle.predictor import Predictor\n"
    yield "# rows: a pandas, Polars or Arrow table, or a list of dicts"
    yield 'probabilities = Predictor.load("THIS FOLDER").predict(rows)\n```\n'
    yield "```bash\nfieldwise predict THIS_FOLDER rows.csv -o predictions.csv\nfieldwise serve THIS_FOLDER\n```\n"
    yield f"Columns that rows need: {', '.join(named)}{' ...' if len(columns) > MOST_FIELDS else ''}."


def _cell(text: str) -> str:
    """A name in a table or in code, whatever it holds."""
    return " ".join(text.split()).replace("|", "\\|").replace("`", "'")
