"""The command that keeps a model in service up to date: follow."""

from __future__ import annotations

import time
from collections.abc import Callable
from json import dumps
from pathlib import Path
from typing import Annotated, Any

import typer

from fieldwise.commands.app import Json, app
from fieldwise.commands.data import shares_of
from fieldwise.commands.training import seconds_of
from fieldwise.config.errors import ConfigError, FieldwiseError
from fieldwise.config.files import held_folder
from fieldwise.config.interrupts import Terminated, check, terminations
from fieldwise.reporting import result_tables
from fieldwise.reporting.console import TrainingBar, err, out, print_json, say


@app.command()
def follow(
    bundle: Annotated[Path, typer.Option("--bundle", help="The run or bundle in service; it becomes a link.")],
    logs: Annotated[Path | None, typer.Argument(metavar="LOG_DIR", help="Where new labelled files appear.")] = None,
    every: Annotated[str, typer.Option(help="How often to look for new files: 30s, 15m, 1h.")] = "1h",
    once: Annotated[bool, typer.Option("--once", help="One round at most, then end: for cron.")] = False,
    work: Annotated[
        Path | None,
        typer.Option(help="Where journal and versions lie.", show_default="where BUNDLE leads, or BUNDLE.follow"),
    ] = None,
    split: Annotated[
        str, typer.Option(help="Shares of the rows not learnt yet, oldest first: to train, to stop by, to judge by.")
    ] = "0.7,0.15,0.15",
    margin: Annotated[float, typer.Option(help="Standard errors by which a candidate's log loss may be higher.")] = 0.0,
    min_rows: Annotated[int, typer.Option(help="New rows with which a round begins.")] = 1000,
    min_age: Annotated[str, typer.Option(help="How long a file must have been left alone, such as 0s or 5m.")] = "1m",
    files: Annotated[int, typer.Option(help="Files to take at a time, to catch up in steps; 0: all.")] = 0,
    after: Annotated[
        str, typer.Option(help="At the first start: the last file name that the bundle knows already.")
    ] = "",
    on_bad_rows: Annotated[
        str, typer.Option(help="stop: leave such a file out; skip: leave such rows out, counted and noted.")
    ] = "stop",
    keep: Annotated[int, typer.Option(help="Older versions to keep.")] = 5,
    server: Annotated[
        list[str] | None, typer.Option(help="A server to tell, such as http://127.0.0.1:8400; may be given again.")
    ] = None,
    token_file: Annotated[Path | None, typer.Option(help="The file with the server's token.")] = None,
    onnx: Annotated[bool, typer.Option("--onnx", help="Export each version, for servers without torch.")] = False,
    set_: Annotated[list[str] | None, typer.Option("--set", help="KEY=VALUE, such as train.epochs=1.")] = None,
    device: Annotated[str, typer.Option(help="cpu, cuda or auto.")] = "",
    rollback: Annotated[int | None, typer.Option(metavar="VERSION", help="Serve this older version again.")] = None,
    status: Annotated[bool, typer.Option("--status", help="Show the rounds so far, and change nothing.")] = False,
    json: Json = False,
) -> None:
    """Keep a model up to date: take new files in, train on, judge, and swap the bundle if it is not worse.

    Example: `fieldwise follow logs --bundle live --every 1h --server http://127.0.0.1:8400`
    """
    from fieldwise.follow.desk import Wanted
    from fieldwise.follow.follower import Follower
    from fieldwise.follow.versions import work_of

    folder = work or work_of(bundle) or bundle.with_name(f"{bundle.name}.follow")
    if status or rollback is not None:
        _refuse_unknown(folder)
    if status:
        _show(folder, json)
        return
    if on_bad_rows not in ("stop", "skip"):
        raise ConfigError(f"--on-bad-rows takes stop or skip, found '{on_bad_rows}'")
    if logs is None and rollback is None:
        raise ConfigError("the folder to follow is missing: fieldwise follow LOG_DIR --bundle BUNDLE")
    if server and any("://" not in one for one in server):
        raise ConfigError(f"--server takes addresses such as http://127.0.0.1:8400, found {', '.join(server)}")
    wanted = Wanted(
        logs=logs or Path(),
        bundle=bundle,
        work=folder,
        split=shares_of(split),
        margin=margin,
        min_rows=min_rows,
        min_age=seconds_of(min_age, "--min-age", zero=True),
        files=files,
        keep=keep,
        settings=tuple(set_ or ()),
        device=device,
        skip_bad_rows=on_bad_rows == "skip",
        servers=tuple(server or ()),
        token=token_file.read_text(encoding="utf-8").strip() if token_file else "",
        after=after,
        onnx=onnx,
    )
    pause = seconds_of(every, "--every")
    try:
        held = held_folder(folder, f"following into {bundle}", "end it first")
        with terminations(), held, TrainingBar("candidate", True) as bar:
            follower = Follower(wanted, _teller(json, whole=once or rollback is not None), bar)
            failed = follower.state.failed
            if rollback is not None:
                follower.go_back(rollback)
            elif once:
                follower.cycle()
            else:
                _forever(follower.cycle, pause)
    except Terminated:
        err.print("stopped; the same command goes on where it was", highlight=False)
        raise typer.Exit(143) from None
    if json:
        _show(folder, json)
    if once and follower.state.failed > failed:  # the journal has said why
        raise typer.Exit(2)


def _forever(cycle: Callable[[], bool], pause: float) -> None:
    """Rounds as long as there is something new, then a pause; what goes wrong is said, and tried again after it."""
    while True:
        began = time.monotonic()
        try:
            while cycle():
                pass
        except (FieldwiseError, OSError, MemoryError) as error:
            said = " ".join((str(error) or type(error).__name__).split())
            err.print(f"error: {said}; tried again later", highlight=False, markup=False, soft_wrap=True)
        check()
        time.sleep(max(0.0, pause - (time.monotonic() - began)))


def _teller(json: bool, whole: bool) -> Callable[[dict[str, Any]], None]:
    """Who says the lines of the journal; as JSON only where no object of the whole follows."""
    from fieldwise.follow.status import words

    if json:
        return (lambda entry: None) if whole else lambda entry: print(dumps(entry), flush=True)
    return lambda entry: say(f"{entry['time']} {words(entry)}")


def _refuse_unknown(folder: Path) -> None:
    from fieldwise.follow.journal import FILE

    if not (folder / FILE).is_file():
        raise ConfigError(f"nothing was followed here yet: there is no {FILE} ({folder}); --work names another folder")


def _show(folder: Path, json: bool) -> None:
    from fieldwise.follow import status
    from fieldwise.follow.journal import Journal

    found = status.facts(Journal(folder, mine=False))
    if json:
        print_json(found)
        return
    if found["rounds"]:
        result_tables.show(out, status.COLUMNS, result_tables.lines(found["rounds"], status.COLUMNS), "Round")
    for line in status.summary(found):
        say(line)
