"""The command that exports a model for serving: export."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fieldwise.commands.app import Force, Json, app
from fieldwise.config.errors import ConfigError
from fieldwise.reporting.console import counting, print_json, say


@app.command()
def export(
    source: Annotated[Path, typer.Argument(help="A run or a bundle.")],
    folder: Annotated[Path, typer.Option("--out", help="The folder to write.")],
    onnx: Annotated[bool, typer.Option("--onnx", help="As ONNX, the only format.")] = False,
    tables: Annotated[str, typer.Option(help="Number format of the vectors: fp32, fp16 or int8.")] = "fp32",
    rows: Annotated[Path | None, typer.Option(help="A labelled file to measure the difference on.")] = None,
    force: Force = False,
    json: Json = False,
) -> None:
    """Write a folder to serve from: the network as ONNX, and everything that turns raw rows into probabilities.

    Example: `fieldwise export runs/pin --onnx --out serving/pin --tables int8 --rows log.csv`
    """
    from fieldwise.export.export import export as write
    from fieldwise.serving.export_check import differences

    if not onnx:
        raise ConfigError("the format to export to is missing; the only one is --onnx")
    with counting("exporting", json):
        write(source, folder, tables, force)
        found = differences(source, folder, rows) if rows else None
    size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    if json:
        print_json({"folder": str(folder), "tables": tables, "bytes": size} | (found or {}))
        return
    say(f"{folder}: {size / 1e6:.1f} MB, tables in {tables}")
    if found:
        say(f"on {found['rows']:,} rows probabilities differ by at most {found['largest_difference']:.1e}")
        for name, title in (("auc", "AUC"), ("log_loss", "log loss")):
            before, after = found[name]["bundle"], found[name]["exported"]
            say(f"{title} {before:.6f} -> {after:.6f}, a difference of {after - before:+.6f}")
