"""The command line and the options that its commands share."""

from __future__ import annotations

from typing import Annotated

import typer

app = typer.Typer(
    name="fieldwise",
    help="Predict clicks and purchases from multi-field categorical data. --debug shows the traceback of an error.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
)

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
