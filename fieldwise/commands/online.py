"""Commands that put models into service: serve, abtest."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import typer

from fieldwise.commands.app import Force, Json, app, listed
from fieldwise.config.errors import ConfigError
from fieldwise.reporting import result_tables
from fieldwise.reporting.console import counting, out, print_json, say
from fieldwise.reporting.result_tables import Column

ARM_COLUMNS = (
    Column("units", "Units", ","),
    Column("shown", "Shown", ","),
    Column("clicks", "Clicked", ","),
    Column("ctr", "CTR", ".3%"),
    Column("standard_error", "Standard error", ".3%"),
)
DAY_COLUMNS = (
    *ARM_COLUMNS[1:4],
    Column("improvement", "Improvement", "+.2%"),
    Column("low", "from", "+.2%"),
    Column("high", "to", "+.2%"),
)

abtest = typer.Typer(help="Report, rehearse and replay A/B tests.", no_args_is_help=True, rich_markup_mode="markdown")
app.add_typer(abtest, name="abtest")


@app.command()
def serve(
    sources: Annotated[list[Path], typer.Argument(help="Runs or bundles; several are the arms of an A/B test.")],
    host: Annotated[str, typer.Option(help="Where to listen; beyond this machine it needs a token.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="0 takes any free port.")] = 8400,
    token_file: Annotated[Path | None, typer.Option(help="A file with the token that requests must carry.")] = None,
    workers: Annotated[int, typer.Option(help="Number of processes.")] = 1,
    names: Annotated[str, typer.Option(help="Names of the arms; by default those of the folders.")] = "",
    split: Annotated[str, typer.Option(help="Shares of the arms, such as 50,50; equal by default.")] = "",
    split_field: Annotated[str, typer.Option(help="The field, such as user, whose value decides the arm.")] = "",
    salt: Annotated[str, typer.Option(help="Another salt gives another assignment.")] = "",
    log: Annotated[str, typer.Option(help="An SQLite file, a SQLAlchemy URL, or none.")] = "events.sqlite",
    negatives_after: Annotated[
        float, typer.Option(help="Seconds after which a row without an event counts as 0 in histories; 0: never.")
    ] = 3600.0,
    max_rows: Annotated[int, typer.Option(help="Rows or candidates per request.")] = 2000,
    max_body: Annotated[int, typer.Option(help="Bytes per request.")] = 4_000_000,
    timeout: Annotated[float, typer.Option(help="Seconds per request.")] = 5.0,
    queue: Annotated[int, typer.Option(help="Requests that may wait in each worker; more are refused.")] = 64,
    max_headers: Annotated[int, typer.Option(help="Bytes of headers per request.")] = 32_000,
    header_timeout: Annotated[float, typer.Option(help="Seconds within which headers must arrive.")] = 10.0,
    connections: Annotated[int, typer.Option(help="Connections to each worker; more are refused.")] = 512,
) -> None:
    """Serve one or more models over HTTP: predict, rank, explain, an A/B test and its event log.

    Example: `fieldwise serve runs/fm runs/pin --split 50,50 --split-field user`
    """
    try:
        from fieldwise.abtest.router import arm_names, shares_of
        from fieldwise.serving.application import Limits
        from fieldwise.serving.guard import read_token
        from fieldwise.serving.process import Settings
        from fieldwise.serving.process import serve as serve_forever
    except ImportError as error:
        raise ConfigError(f"serving needs {error.name}: pip install 'fieldwise[serve]'") from None
    # A link has its own name, whichever version it leads to.
    arms = listed(names) or arm_names([Path(os.path.abspath(source)).name for source in sources])
    settings = Settings(
        sources=tuple(str(source.absolute()) for source in sources),
        arms=arms,
        shares=shares_of(split, len(sources)),
        split_field=split_field,
        salt=salt,
        host=host,
        port=port,
        token=read_token(token_file, host),
        workers=workers,
        log=log if "://" in log or log == "none" else str(Path(log).absolute()),
        negatives_after=negatives_after,
        limits=Limits(max_body, max_rows, timeout, queue, max_headers, header_timeout, connections),
    )
    if len(arms) != len(sources):
        raise ConfigError(f"--names needs a name for each arm, found {len(arms)} for {len(sources)}")
    serve_forever(settings, say)


@abtest.command("report")
def report_of(
    log: Annotated[str, typer.Argument(help="An SQLite file or a SQLAlchemy URL.")], json: Json = False
) -> None:
    """Show click rates by arm and day, which arm is better, how certain that is, and whether it is too early to say.

    Example: `fieldwise abtest report events.sqlite`
    """
    from fieldwise.abtest.analysis import report

    found = report(log)
    if json:
        print_json(found)
        return
    _print_table("Arm", ARM_COLUMNS, [{"name": row["arm"]} | row for row in found["arms"]])
    _print_table("Day and arm", DAY_COLUMNS, [{"name": f"{row['day']}  {row['arm']}"} | row for row in found["days"]])
    for one in found["comparisons"]:
        if one["improvement"] is not None:
            between = f"{one['low']:+.2%} to {one['high']:+.2%}"
            say(f"{one['arm']} against {one['baseline']}: {one['improvement']:+.2%} ({between} with 95 % confidence)")
    if found["sample_ratio"]:
        say(f"sample ratio: p = {found['sample_ratio']['p']:.3g}")
    for warning in found["warnings"]:
        say(f"warning: {warning}")


def _print_table(head: str, columns: tuple[Column, ...], rows: list[dict[str, Any]]) -> None:
    result_tables.show(out, columns, result_tables.lines(rows, columns), head)


@abtest.command("simulate")
def simulate(
    folder: Annotated[Path, typer.Option("--out", help="Where runs, event log, table and figure go.")] = Path("abtest"),
    days: Annotated[int, typer.Option(help="Days of the test.")] = 14,
    incumbent_days: Annotated[int, typer.Option(help="Days that the incumbent learns before the test.")] = 90,
    challenger_days: Annotated[int, typer.Option(help="Days before the test to train the challenger on.")] = 40,
    rows: Annotated[int, typer.Option(help="Training rows per day.")] = 5000,
    requests: Annotated[int, typer.Option(help="Requests per day of the test.")] = 2000,
    candidates: Annotated[int, typer.Option(help="Candidates per request.")] = 30,
    top: Annotated[int, typer.Option(help="Candidates shown per request.")] = 3,
    rate: Annotated[float, typer.Option(help="Click rate of rows shown at random.")] = 0.05,
    seed: int = 0,
    http: Annotated[bool, typer.Option("--http", help="Use a real server instead of this process.")] = False,
    force: Force = False,
    json: Json = False,
) -> None:
    """Rehearse an A/B test in the simulated app store: FTRL, updated every day, against PIN.

    Example: `fieldwise abtest simulate --days 14 --out abtest`
    """
    try:
        from fieldwise.experiments.rehearsal import COLUMNS, Plan, rehearse
    except ImportError as error:
        raise ConfigError(f"the simulation needs {error.name}: pip install 'fieldwise[serve]'") from None
    plan = Plan(days, incumbent_days, challenger_days, rows, requests, candidates, top, rate=rate, seed=seed)
    with counting("rehearsing", json) as progress:
        found = rehearse(plan, folder, http, force, progress)
    if json:
        print_json(found)
        return
    say("A simulation: clicks were drawn from a known truth. Improvements are over FTRL.")
    _print_table("Day", COLUMNS, found["days"])
    for verdict in found["verdicts"]:
        say(verdict["text"])
    say(f"figure: {folder / 'days.png'}  log: fieldwise abtest report {folder / 'events.sqlite'}")


@abtest.command("rows")
def rows_of(
    log: Annotated[str, typer.Argument(help="An SQLite file or a SQLAlchemy URL.")],
    file: Annotated[Path, typer.Option("-o", "--out", help="A .csv, .tsv or .parquet file.")],
    label: Annotated[str, typer.Option(help="The name of the label column.")] = "click",
    time: Annotated[str, typer.Option(help="The history's time column, written as the time it was counted at.")] = "",
    position: Annotated[
        str, typer.Option(help="A column for where a row was shown: its own value, or its place in a ranking.")
    ] = "",
    json: Json = False,
) -> None:
    """Write the shown rows that have a response, with the response, in the order that histories counted them.

    Example: `fieldwise abtest rows events.sqlite -o new.csv`
    """
    from fieldwise.data.read import formats
    from fieldwise.serving.replay import tables_of

    with counting("writing", json) as progress:
        count = formats.write(file, tables_of(log, label, time, position), progress)
    if json:
        print_json({"file": str(file), "rows": count})
    else:
        say(f"{count:,} rows in {file}, label `{label}`")
