"""The command that measures speed: bench."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from fieldwise.commands.app import Json, app, listed
from fieldwise.config.errors import ConfigError
from fieldwise.reporting.console import print_json, say

CHECKED = "fm,fnn,pin"  # whose AUC is compared: each takes twelve epochs
HEAD = (
    f"{'model':8}{'categories':>11}{'rows/s':>11}{'per CPU-s':>11}{'ms a step':>10}{'data':>10}{'forward':>10}"
    f"{'backward':>10}{'optimiser':>10}{'scored/s':>12}{'MB':>8}{'matmul':>8}{'copy':>8}"
)


@app.command()
def bench(
    models: Annotated[str, typer.Option(help=f"Names, with commas, or all (default; for --check {CHECKED}).")] = "",
    vocab: Annotated[str, typer.Option(help="Categories of all fields together; several with commas.")] = "1e6",
    rows: Annotated[int, typer.Option(help="Rows to time with each model.")] = 40_000,
    batch: Annotated[int, typer.Option(help="Rows of a step.")] = 2000,
    precision: Annotated[str, typer.Option(help="float32 or bf16.")] = "float32",
    optimizer: Annotated[str, typer.Option(help="adam, adagrad, ftrl or sgd.")] = "adam",
    device: Annotated[str, typer.Option(help="cpu, cuda or auto.")] = "cpu",
    check: Annotated[bool, typer.Option("--check", help="Check the fast paths instead of timing them.")] = False,
    json: Json = False,
) -> None:
    """Measure training on random rows of 39 fields: rows/s, parts of a step, memory, share of the machine's peak.

    Example: `fieldwise bench --models lr,fm,pin --vocab 1e5,1e6`
    """
    from fieldwise.speed import bench as room

    names = listed(models or (CHECKED if check else "all"))
    names = tuple(name for each in names for name in (room.names() if each == "all" else (each,)))
    setting = room.Setting(device, rows, batch, precision, optimizer)
    if check:
        _check(names, setting, json)
        return
    found = room.run(names, [_categories(text) for text in listed(vocab)], setting)
    facts = next(found)
    if json:
        print_json(facts | {"results": list(found)})
        return
    most = facts["ceilings"]
    say(", ".join(f"{key} {value}" for key, value in facts["machine"].items()))
    product, copy = most["matmul_flops"] / 1e9, most["copy_bytes"] / 1e9
    say(f"{precision} matrix product {product:,.0f} GFLOP/s, copy {copy:.1f} GB/s")
    say(HEAD)
    for row in found:
        say(_line(row))


def _check(names: tuple[str, ...], setting: Any, json: bool) -> None:
    """Compares each fast path with plain PyTorch in float64; exit code 1 if one is outside of its tolerance."""
    from fieldwise.speed.checks import as_json, checks

    done = []
    for found in checks(names, setting):
        done.append(found)
        if not json:
            verdict = "right" if found.right else "WRONG"
            say(f"{verdict}  {found.found:8.1e}  at most {found.limit:.0e}  {found.precision:8} {found.what}")
    if json:
        print_json({"checks": [as_json(each) for each in done]})
    if not all(each.right for each in done):
        raise typer.Exit(1)


def _categories(text: str) -> int:
    """1e6 as a whole number."""
    try:
        return int(float(text))
    except (ValueError, OverflowError):
        raise ConfigError(f"--vocab takes numbers such as 1e5,1e6, found '{text}'") from None


def _line(row: dict[str, Any]) -> str:
    stages = "".join(f"{milliseconds:10.2f}" for milliseconds in row["ms"].values())
    speeds = f"{row['rows_per_s']:11,.0f}{row['rows_per_cpu_s']:11,.0f}"
    memory = "-" if row["peak_bytes"] is None else f"{row['peak_bytes'] / 1e6:,.0f}"
    shares = f"{row['matmul_share']:8.1%}{row['copy_share']:8.1%}"
    name = f"{row['model']:8}{row['vocab']:11,}"
    return f"{name}{speeds}{row['ms_per_step']:10.2f}{stages}{row['scored_rows_per_s']:12,.0f}{memory:>8}{shares}"
