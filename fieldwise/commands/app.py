"""The command line and the options that its commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

import fieldwise

app = typer.Typer(
    name="fieldwise",
    help="Predict clicks and purchases from multi-field categorical data. --debug shows the traceback of an error.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
)


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(f"fieldwise {fieldwise.__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass


def shipped(path: Path | None) -> Path | None:
    """A path as given, or the recipe of this name that comes with fieldwise where there is no such path.

    >>> shipped(Path("recipes/frappe/pin.toml")).is_file()
    True
    """
    if path is None or path.exists() or path.parts[:1] != ("recipes",):
        return path
    own = Path(fieldwise.__file__).parent / path
    return own if own.exists() else path


Json = Annotated[bool, typer.Option("--json", help="Print the result as one JSON object.")]
Force = Annotated[bool, typer.Option("--force", help="Replace an existing folder.")]
Separator = Annotated[
    str, typer.Option(help="What stands between the cells of a csv, tsv or txt file.", show_default="as the file shows")
]


def listed(text: str) -> tuple[str, ...]:
    """The parts of a comma-separated text.

    >>> listed("user, item")
    ('user', 'item')
    """
    return tuple(part.strip() for part in text.split(",") if part.strip())
