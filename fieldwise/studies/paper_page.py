"""One page of all studies: what the paper states, what came out here, verdicts, errata, commands."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fieldwise.config.files import whole_file, write_whole
from fieldwise.reporting import result_tables
from fieldwise.studies import errata, registry
from fieldwise.studies.study import OUTCOMES, PASS, SIZES, Study

# A longer table is folded away, and a larger figure left out.
LONG, LARGEST = 16, 200_000
INTRODUCTION = """# The paper, rerun

Written by `fieldwise study page` from what the studies left; do not edit. Every table and figure that reports an
experiment, what the paper states of it, what came out here, and whether our reading of the statement holds. Data are
generated with a known truth ([studies.md](studies.md)), so that numbers are not the paper's and only orders, signs
and margins can be compared. PASS and FAIL are by a margin of two standard errors over the seeds or more; UNDECIDED is
less than that, or one seed. A FAIL is a result: settings were not changed to make it go away.

    fieldwise study ID --size small --out studies
    fieldwise study all --size small --out studies
    fieldwise study page --out studies --page docs/paper.md
"""


def write(out: Path, page: Path) -> dict[str, Any]:
    """Writes the page and, beside it in `figures`, the figures of those studies that have results; says which."""
    found = {study.id: result_of(out, study) for study in registry.every()}
    figures = {name: _figure(result, page) for name, result in found.items() if result}
    sections = [_section(study, found[study.id], figures.get(study.id, "")) for study in registry.every()]
    text = "\n".join([INTRODUCTION, _summary(found), *sections, _errata()])
    write_whole(page, text)
    run = [name for name, result in found.items() if result]
    return {"file": str(page), "run": run, "not_run": [name for name in found if name not in run]}


def result_of(out: Path, study: Study) -> dict[str, Any] | None:
    """What a study left at the largest size it was run at, with its folder."""
    for size in reversed(SIZES):
        file = out / study.id / size / "result.json"
        if file.exists():
            return dict(json.loads(file.read_text(encoding="utf-8"))) | {"folder": file.parent}
    return None


def _figure(result: dict[str, Any], page: Path) -> str:
    """Copies the smaller of a study's two pictures beside the page; what the page calls it."""
    pictures = [path for path in (result["folder"] / f"figure.{end}" for end in ("svg", "png")) if path.exists()]
    smallest = min(pictures, key=lambda path: path.stat().st_size, default=None)
    if smallest is None or smallest.stat().st_size >= LARGEST:
        return ""
    name = f"figures/{result['study']}{smallest.suffix}"
    with whole_file(page.parent / name) as file:
        shutil.copyfile(smallest, file)
    return name


def _summary(found: dict[str, dict[str, Any] | None]) -> str:
    """All of the paper in one table: its statement, what we ask of ours, the verdicts."""
    lines = ["| | the paper | here | size, seeds |", "|---|---|---|---|"]
    for study in registry.every():
        result, name = found[study.id], f"[{study.paper}](#{study.id})"
        if result is None:
            lines.append(f"| {name} | {study.says} | not run yet | |")
            continue
        outcomes = [verdict["outcome"] for verdict in result["verdicts"]]
        counts = ", ".join(f"{outcomes.count(one)} {one}" for one in OUTCOMES if one in outcomes)
        lines.append(f"| {name} | {study.says} | {counts} | {result['size']}, {result['seeds']} |")
    outcomes = [verdict["outcome"] for result in found.values() if result for verdict in result["verdicts"]]
    total = ", ".join(f"{outcomes.count(one)} {one}" for one in OUTCOMES)
    return "\n".join(lines) + f"\n\nOf {len(outcomes)} verdicts: {total}.\n"


def _section(study: Study, result: dict[str, Any] | None, figure: str) -> str:
    """A study: the statement, the table, the figure, the verdicts, the command."""
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
    parts.append("".join(f"- {line}\n" for line in (*result["failed"], *_explained(study, result))))
    return "\n".join([*parts, command])


def _explained(study: Study, result: dict[str, Any]) -> list[str]:
    """The verdicts' lines; those that do not pass with what an experiment says of the reason."""
    found = []
    for line, verdict in zip(result["lines"], result["verdicts"], strict=True):
        reasons = [why for start, why in study.why.items() if verdict["claim"].startswith(start)]
        found.append("<br>".join([line, *(reasons if verdict["outcome"] != PASS else [])]))
    return found


def _folded(table: str) -> str:
    return f"<details><summary>The table</summary>\n\n{table}\n</details>\n"


def _errata() -> str:
    def listed(title: str, rows: Sequence[tuple[str, str, str]]) -> str:
        lines = [f"### {title}\n", "| where | what is there | what we take it for |", "|---|---|---|"]
        return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)]) + "\n"

    head = "## Errata\n\nWhat a reader of the paper stumbles over, found while rebuilding it.\n"
    inside = listed("Inside the paper", errata.IN_THE_PAPER)
    return "\n".join([head, inside, listed("Between the paper and its public code", errata.BESIDE_THE_CODE)])
