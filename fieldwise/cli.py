"""The command line's entry: runs a verb and turns a user's mistake into one line."""

from __future__ import annotations

import importlib
import sys
import warnings

# Nothing that takes time: an interrupt while the rest is loaded is one line too.
from fieldwise.config import memory, own_process
from fieldwise.config.errors import FieldwiseError, WorkerLost
from fieldwise.config.interrupts import interrupts

# Each module of fieldwise.commands registers its verbs; this order is the order of --help.
GROUPS = ("data", "training", "results", "freshen", "follow", "studies", "exporting", "online", "speed")
STOPPED = (
    "stopped; `prepare`, `compare`, `follow`, `study` and `tune` go on with the same command, "
    "`train` with --resume added"
)


def main(arguments: list[str] | None = None) -> None:
    """Runs a verb. A user's mistake is one line on standard error and exit code 2, an interrupt one line and 130."""
    if arguments is None:
        own_process.claim()
    try:
        # Around the imports too: an interrupt that one of them loses ends the verb before it begins.
        with interrupts():
            code = _run(list(sys.argv[1:] if arguments is None else arguments))
    except KeyboardInterrupt:
        code = 130
    if code == 130:
        # Python remembers an interrupt of the `exec` of a text, which imports have, until the next, and ends by signal.
        eval("0")
        print(STOPPED, file=sys.stderr)
    sys.exit(code)


def _run(arguments: list[str]) -> int:
    """Runs a verb and returns the exit code."""
    import typer

    from fieldwise.commands.app import app

    for group in GROUPS:
        importlib.import_module(f"fieldwise.commands.{group}")
    debug = "--debug" in arguments
    arguments = [argument for argument in arguments if argument != "--debug"] or ["--help"]
    # typer carries its own click; this is that click's error, whichever it is.
    usage_error: type[Exception] = typer.BadParameter.__mro__[2]
    warnings.filterwarnings("default" if debug else "ignore")
    try:
        with interrupts():
            code = app(arguments, standalone_mode=False)
    except (FieldwiseError, usage_error, OSError, MemoryError) as error:
        if debug:
            raise
        message = error.format_message() if hasattr(error, "format_message") else str(error) or type(error).__name__
        print(f"error: {' '.join(message.split())}", file=sys.stderr)
        return 2
    except WorkerLost as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except typer.Abort:
        return 130
    except Exception as error:
        if debug:
            raise
        found = (str(error).strip().splitlines() or [""])[0]
        if memory.ran_out(error):
            print(f"error: out of memory: {found}", file=sys.stderr)
            return 2
        print(f"error: {type(error).__name__}: {found}; this is a fault of ours, see it with --debug", file=sys.stderr)
        return 1
    return code if isinstance(code, int) else 0
