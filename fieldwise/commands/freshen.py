"""The command that updates a history: history update."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fieldwise.commands.app import Force, Json, app
from fieldwise.config.errors import DataError
from fieldwise.reporting.console import counting, print_json, say

history = typer.Typer(help="Update the history of a model without training.", no_args_is_help=True)
app.add_typer(history, name="history")


@history.command()
def update(
    source: Annotated[Path, typer.Argument(help="A run or a bundle whose model has a history.")],
    rows: Annotated[Path, typer.Argument(help="A labelled file of the rows since then.")],
    folder: Annotated[Path, typer.Option("--out", help="The bundle to write.")],
    force: Force = False,
    json: Json = False,
) -> None:
    """Count new labelled rows in the history of a bundle; the weights do not change.

    Example: `fieldwise history update runs/pin yesterday.csv --out bundle`
    """
    from fieldwise.bundle import bundle, freshen
    from fieldwise.data.recipes.raw_columns import columns_of, rows_of

    opened = bundle.load(source)
    label, names = opened.schema.label, columns_of(opened.schema, rows)
    if label not in names:
        raise DataError(f"updating needs the label column '{label}'; the file has: {', '.join(names)} ({rows})")
    wanted = [label, *(name for name in opened.schema.columns if name in names)]
    with counting("updating", json) as progress:
        found = freshen.update_history(source, rows_of(opened.schema, rows, wanted), folder, force, progress)
    if json:
        print_json(found)
        return
    for own in found["histories"]:
        span = "" if own["to"] is None else f", from {own['from']:g} to {own['to']:g}"
        knows = [f"it knows {own['known']:,} values and combinations"] if own["keys"] else []
        knows += [f"{name}: of {keys:,} keys" for name, keys in own["sequences"].items()]
        say(f"{own['model']}: {found['rows']:,} rows counted{span}; {'; '.join(knows)}")
    say(f"bundle: {folder}\nnext: fieldwise predict {folder} FILE -o predictions.csv")
