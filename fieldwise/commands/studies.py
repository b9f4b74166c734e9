"""The command that reruns the paper's tables and figures: study."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fieldwise.commands.app import Json, app
from fieldwise.config.errors import ConfigError, FieldwiseError, TrainingError
from fieldwise.reporting.console import ComparisonBar, out, print_json, say

if TYPE_CHECKING:
    from fieldwise.studies.study import Study


@app.command()
def study(
    name: Annotated[
        str, typer.Argument(metavar="ID", help="An id from `study list`, or several with commas; all; list; page.")
    ],
    size: Annotated[str, typer.Option(help="small, medium or paper.")] = "small",
    data: Annotated[Path | None, typer.Option(help="A folder of real data, for studies that take it.")] = None,
    seeds: Annotated[int | None, typer.Option(help="Runs of each case; by default the study's own number.")] = None,
    folder: Annotated[Path, typer.Option("--out", help="Where tables, figures and runs go.")] = Path("studies"),
    jobs: Annotated[int, typer.Option(help="Runs at a time; by default one for each core.", show_default=False)] = 0,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    page: Annotated[Path | None, typer.Option(help="With `page`: the file to write.")] = None,
    json: Json = False,
) -> None:
    """Rerun a table or a figure of the paper and check its claims. Continues after a kill.

    Example: `fieldwise study history --size small --out studies`
    """
    from fieldwise.reporting import result_tables
    from fieldwise.studies import registry, runner, series

    if page is not None and name != "page":
        raise ConfigError(f"--page is for `study page`, found `study {name}`")
    if name == "list":
        _list(json)
        return
    if name == "page":
        _page(folder, page or Path("paper.md"), json)
        return
    ids = list(dict.fromkeys(one.strip() for one in name.split(",")))
    chosen = registry.every() if name == "all" else [registry.named(one) for one in ids]
    results: list[dict[str, Any]] = []
    problems: list[str] = []

    def done(one: Study, found: dict[str, Any] | FieldwiseError) -> None:
        if isinstance(found, FieldwiseError):
            problems.append(f"{one.id}: {found}")
            return
        results.append(found)
        if json:
            return
        with bar.aside():
            say(f"\n{one.id}: {one.paper}. {one.asks}")
            result_tables.show(out, one.columns, result_tables.lines(found["rows"], one.columns), " ".join(one.keys))
            for line in (*found["failed"], *found["lines"]):
                say(line)
            say(f"table, figure and runs: {found['folder']}")

    with ComparisonBar(json or all(one.plan is None for one in chosen)) as bar:
        if len(chosen) > 1:
            series.run_studies(chosen, folder, done, size, data, seeds, jobs, bar, device)
        else:
            done(chosen[0], runner.run_study(chosen[0], folder, size, data, seeds, jobs, bar, device))
    if json:
        print_json({"studies": results} if len(chosen) > 1 else results[0])
    if problems:
        raise TrainingError(f"{len(problems)} of {len(chosen)} studies could not be run: {'; '.join(problems)}")


def _page(folder: Path, file: Path, json: bool) -> None:
    from fieldwise.studies import paper_page

    found = paper_page.write(folder, file)
    if json:
        print_json(found)
        return
    say(f"{len(found['run'])} studies in {file}; not run yet: {', '.join(found['not_run']) or 'none'}")


def _list(json: bool) -> None:
    from fieldwise.studies import registry

    studies = registry.every()
    if json:
        print_json({"studies": [{"id": one.id, "paper": one.paper, "asks": one.asks} for one in studies]})
        return
    for one in studies:
        say(f"{one.id:18} {one.paper}: {one.asks}")
