"""One page of all studies: the paper's statements, our results, verdicts, errata, commands."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fieldwise.config.files import whole_file, write_whole
from fieldwise.reporting import result_tables
from fieldwise.studies import errata, registry
from fieldwise.studies.study import SIZES, Study

# A longer table is folded, a larger figure is left out.
LONG, LARGEST = 16, 200_000
INTRODUCTION = """# The paper, rerun

Written by `fieldwise study page` from what the studies left; do not edit. Every table and figure that reports an
experiment, what the paper states of it, what came out here, and whether our reading of the statement holds. Data are
generated with a known truth ([studies.md](studies.md)), so that numbers are not the paper's and only orders, signs
and margins can be compared. A FAIL is a result: settings were not changed to make it go away. At size `small` rows
are few, and most studies have one seed; such verdicts are hints.

    fieldwise study ID --size small --out studies
    fieldwise study all --size small --out studies
    fieldwise study page --out studies --page docs/paper.md
"""


def write(out: Path, page: Path) -> dict[str, Any]:
    """Writes the page and, in `figures` beside it, the figures of studies with results; returns which were run."""
    found = {study.id: result_of(out, study) for study in registry.every()}
    figures = {name: _figure(result, page) for name, result in found.items() if result}
    sections = [_section(study, found[study.id], figures.get(study.id, "")) for study in registry.every()]
    text = "\n".join([INTRODUCTION, _summary(found), *sections, _errata()])
    write_whole(page, text)
    run = [name for name, result in found.items() if result]
    return {"file": str(page), "run": run, "not_run": [name for name in found if name not in run]}


def result_of(out: Path, study: Study) -> dict[str, Any] | None:
    """The result of a study at its largest size, with its folder; None if it was not run."""
    for size in reversed(SIZES):
        file = out / study.id / size / "result.json"
        if file.exists():
            return dict(json.loads(file.read_text(encoding="utf-8"))) | {"folder": file.parent}
    return None


def _figure(result: dict[str, Any], page: Path) -> str:
    """Copies the smaller of a study's two pictures beside the page; returns its relative path."""
    pictures = [path for path in (result["folder"] / f"figure.{end}" for end in ("svg", "png")) if path.exists()]
    smallest = min(pictures, key=lambda path: path.stat().st_size, default=None)
    if smallest is None or smallest.stat().st_size >= LARGEST:
        return ""
    name = f"figures/{result['study']}{smallest.suffix}"
    with whole_file(page.parent / name) as file:
        shutil.copyfile(smallest, file)
    return name


def _summary(found: dict[str, dict[str, Any] | None]) -> str:
    lines = ["| study | of the paper | size, seeds | verdicts |", "|---|---|---|---|"]
    for study in registry.every():
        result = found[study.id]
        if result is None:
            lines.append(f"| {study.id} | {study.paper} | | not run yet |")
            continue
        passed = sum(bool(verdict["passed"]) for verdict in result["verdicts"])
        facts = f"{result['size']}, {result['seeds']} | {passed} of {len(result['verdicts'])} pass"
        lines.append(f"| [{study.id}](#{study.id}) | {study.paper} | {facts} |")
    return "\n".join(lines) + "\n"


def _section(study: Study, result: dict[str, Any] | None, figure: str) -> str:
    """A section: the statement, the table, the figure, the verdicts, the command."""
    parts = [f"## {study.id}\n\n{study.paper}. {study.asks}\n"]
    if study.says:
        parts.append(f"The paper: {study.says}\n")
    command = f"    fieldwise study {study.id} --size {result['size'] if result else 'small'}\n"
    if result is None:
        missing = f"Not run for this page yet; size small takes about {study.budget:g} minutes of a core.\n"
        return "\n".join([*parts, missing, command])
    table = result_tables.markdown(
        study.columns, result_tables.lines(result["rows"], study.columns), " ".join(study.keys)
    )
    parts.append(_folded(table) if len(result["rows"]) > LONG else table)
    if figure:
        parts.append(f"![{study.paper}]({figure})\n")
    parts.append("".join(f"- {line}\n" for line in (*result["failed"], *result["lines"])))
    return "\n".join([*parts, command])


def _folded(table: str) -> str:
    return f"<details><summary>The table</summary>\n\n{table}\n</details>\n"


def _errata() -> str:
    def listed(title: str, rows: Sequence[tuple[str, str, str]]) -> str:
        lines = [f"### {title}\n", "| where | what is there | what we take it for |", "|---|---|---|"]
        return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)]) + "\n"

    head = "## Errata\n\nWhat a reader of the paper stumbles over, found while rebuilding it.\n"
    inside = listed("Inside the paper", errata.IN_THE_PAPER)
    return "\n".join([head, inside, listed("Between the paper and its public code", errata.BESIDE_THE_CODE)])
