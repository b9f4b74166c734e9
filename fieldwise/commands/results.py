"""Commands that use and show trained models: evaluate, predict, explain, models, report."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fieldwise.commands.app import Json, Separator, app, listed
from fieldwise.config.errors import ConfigError, DataError, missing_column
from fieldwise.reporting.console import counting, out, print_groups, print_json, print_metrics, print_seen, say


@app.command()
def evaluate(
    source: Annotated[Path, typer.Argument(help="A run or a bundle.")],
    rows: Annotated[Path, typer.Argument(help="A labelled file, or a prepared folder.")],
    part: Annotated[str, typer.Option(help="The part of a prepared folder.")] = "test",
    by: Annotated[str, typer.Option(help="A column: metrics of each of its values, and the AUC within them.")] = "",
    seen: Annotated[
        str,
        typer.Option(help="Fields or history keys such as user,user*item, or all: rows of known values and others."),
    ] = "",
    against: Annotated[Path | None, typer.Option(help="Another run or bundle to compare with.")] = None,
    truth: Annotated[str, typer.Option(help="A column of true probabilities (`simulate --truth`).")] = "",
    live: Annotated[
        bool, typer.Option("--live", help="Histories with a time count each row after it is scored, as in service.")
    ] = False,
    separator: Separator = "",
    device: str = "cpu",
    json: Json = False,
) -> None:
    """Measure a model on labelled rows.

    Example: `fieldwise evaluate runs/pin log.csv --by day --seen user,item`
    """
    from fieldwise.bundle.predictor import Predictor
    from fieldwise.data.read.delimited import separated
    from fieldwise.data.read.parallel import cores, using
    from fieldwise.data.recipes.raw_columns import columns_of, rows_of
    from fieldwise.evaluation import drift

    predictor = Predictor.load(source, device)
    rival = Predictor.load(against, device) if against else None
    question = drift.Question(listed(seen), by, rival, truth, live)
    moving = bool(seen or question.others or live)
    with using(cores()), separated(separator), counting("evaluating", json):
        if rows.is_dir():
            if against or truth or live or (seen and by):
                wrong = "--seen together with --by needs" if seen and by else "--against, --truth and --live need"
                raise ConfigError(f"{wrong} raw rows, found a prepared folder ({rows})")
            found = (
                drift.evaluate_prepared(predictor, rows, part, question.seen)
                if seen
                else predictor.evaluate_prepared(rows, part, by)
            )
        else:
            known = columns_of(predictor.schema, rows)
            if by and by not in known:
                raise DataError(f"{missing_column(by, known, what='--by column')} ({rows})")
            schemas = [predictor.schema, *([rival.schema] if rival else [])]
            columns = [name for own in schemas for name in (own.label, *own.columns, own.weight)]
            absent = set[str]().union(*(own.optional for own in schemas)) - set(known)
            wanted = [name for name in dict.fromkeys([*columns, by, truth]) if name and name not in absent]
            numbers = set[str]().union(*(own.numbers for own in schemas))
            chunks = rows_of(predictor.schema, rows, wanted, numbers)
            found = drift.evaluate(predictor, chunks, question) if moving else predictor.evaluate(chunks, by)
    if json:
        print_json(found)
    else:
        print_metrics(f"{predictor.bundle.config.model} on {rows}", found)
        if by:
            print_groups(found["by"])
        if seen:
            print_seen(found["seen"], by)


@app.command()
def predict(
    source: Annotated[Path, typer.Argument(help="A run or a bundle.")],
    rows: Annotated[Path, typer.Argument(help="A file with the model's columns; it needs no label.")],
    file: Annotated[Path, typer.Option("-o", "--out", help="A .csv, .tsv or .parquet file.")],
    keep: Annotated[bool, typer.Option("--keep", help="Copy the input's columns too.")] = False,
    separator: Separator = "",
    device: str = "cpu",
    json: Json = False,
) -> None:
    """Write the probability of a response for each row, in the order of the input.

    Example: `fieldwise predict runs/pin new.csv -o predictions.csv`
    """
    from fieldwise.bundle.predictor import Predictor
    from fieldwise.data.read import formats
    from fieldwise.data.read.delimited import separated
    from fieldwise.data.read.parallel import cores, using
    from fieldwise.data.recipes.raw_columns import rows_of

    predictor = Predictor.load(source, device, only_scores=True)
    if file.exists() and file.samefile(rows):
        raise ConfigError(f"the output would replace the input; choose another -o ({file})")
    with using(cores()), separated(separator), counting("predicting", json) as progress:
        found = predictor.annotate(rows_of(predictor.schema, rows)) if keep else predictor.predict_file(rows)
        count = formats.write(file, found, progress)
    if json:
        print_json({"file": str(file), "rows": count})
    else:
        say(f"{count:,} rows in {file}, column `probability`")


@app.command()
def explain(
    source: Annotated[Path, typer.Argument(help="A run or a bundle.")],
    rows: Annotated[
        Path | None,
        typer.Option(help="A file or a prepared folder; by default the run's held-out rows, if they still exist."),
    ] = None,
    folder: Annotated[Path | None, typer.Option("--out", help="A folder for maps (SVG) and tables (csv).")] = None,
    top: Annotated[int, typer.Option(help="How many pairs, or weights, to show.")] = 10,
    force: Annotated[bool, typer.Option("--force", help="Replace an earlier folder.")] = False,
    json: Json = False,
) -> None:
    """Show which fields interact, by the weights and on rows, and what could be left out; of LR its weights.

    Example: `fieldwise explain runs/pin --rows log.csv --out explained`
    """
    from fieldwise.bundle.predictor import Predictor
    from fieldwise.reporting import pair_report, result_tables

    with counting("explaining", json):
        found = pair_report.explain(Predictor.load(source), rows)
        if folder:
            pair_report.write(found, folder, force)
    if json:
        print_json(found | ({"folder": str(folder)} if folder else {}))
        return
    if "weights" in found:
        say(f"{found['model']}: the logit is {found['bias']:+.4f} and the weights of a row's values; the largest are")
        columns = [column for column in pair_report.WEIGHT_COLUMNS if column.key in found["weights"][0]]
        result_tables.show(out, columns, result_tables.lines(found["weights"][:top], columns), "value")
    else:
        say(f"{found['model']}: {len(found['pairs'])} pairs of {len(found['fields'])} fields, by {found['ranked_by']}")
        columns = [column for column in pair_report.COLUMNS if column.key in found["maps"]]
        result_tables.show(out, columns, result_tables.lines(found["pairs"][:top], columns), "pair")
    for row in found.get("drop_pairs", ()):
        costs = f"{row['weakest']:+.4f} of AUC for the weakest, {row['strongest']:+.4f} for the strongest"
        say(f"without {row['pairs']} pairs ({row['share']:.0%}): {costs}")
    for line in pair_report.droppable(found):
        say(line)
    if folder:
        say(f"maps and tables: {folder}")


@app.command()
def models(
    name: Annotated[str, typer.Argument(help="A model; by default all.")] = "",
    data: Annotated[Path | None, typer.Option(help="A prepared folder, to count the parameters for it.")] = None,
    ways: Annotated[
        bool, typer.Option("--ways", help="Which way each part is computed here, and why not faster.")
    ] = False,
    batch: Annotated[int, typer.Option(help="Rows of a step, for --ways.")] = 1000,
    device: Annotated[str, typer.Option(help="cpu, cuda or auto, for --ways.")] = "cpu",
    json: Json = False,
) -> None:
    """List the models: their parts, their options, and with --data how many parameters they would have.

    Example: `fieldwise models pin --data data --ways`
    """
    if ways:
        _ways(name, data, batch, device, json)
        return
    from rich.table import Table

    from fieldwise.data.dataset import Dataset
    from fieldwise.models import describe, registry

    layout = Dataset.open(data).layout if data else None
    shown = [describe(each, layout) for each in ([name] if name else registry())]
    if json:
        print_json({"models": shown})
        return
    table = Table("model", "linear", "interaction", "classifier", "options and defaults", show_lines=True)
    for row in shown:
        options = ", ".join(f"{k}={v}" for k, v in row["options"].items())
        branches = row["branches"] or [{"interaction": "-", "classifier": "-"}]
        parts = ["\n".join(branch[part] for branch in branches) for part in ("interaction", "classifier")]
        table.add_row(row["name"], "yes" if row["linear"] else "-", *parts, options)
    out.print(table)
    for row in shown:
        count = f" ({row['parameters']:,} parameters)" if row["parameters"] is not None else ""
        say(f"{row['name']:7} {row['description'].splitlines()[0]}{count}")


def _ways(name: str, data: Path | None, batch: int, device: str, json: bool) -> None:
    """Prints the way each part of a network, or of all, is computed, on the data or on random rows of ten fields."""
    from fieldwise.bundle.scoring import device_of
    from fieldwise.config.settings import Config
    from fieldwise.data.dataset import Dataset
    from fieldwise.data.schema import Layout
    from fieldwise.models import MODELS, build
    from fieldwise.nn.model import Model
    from fieldwise.nn.taken import lines
    from fieldwise.speed.bench import drawn_rows
    from fieldwise.train.steps import ways_taken

    if batch < 1:
        raise ConfigError(f"--batch must be positive, found {batch}")
    dataset = Dataset.open(data) if data else None
    layout = dataset.layout if dataset else Layout.of([100] * 10)
    ids = dataset.parts["train"].ids[:batch] if dataset else drawn_rows(layout, batch, seed=0).ids
    found = {}
    for each in [name] if name else MODELS:
        model = build(each, layout)
        if not isinstance(model, Model):
            raise ConfigError(f"--ways is for networks, which are made of parts; found {each}")
        found[each] = ways_taken(model.to(device_of(device)), Config(each), ids)
    if json:
        print_json({"ways": found})
        return
    for each, ways in found.items():
        say(f"{each}: {ways['rows']} rows on {ways['device']}, trained by {ways['step']}")
        for line in lines(ways["parts"]):
            say(f"  {line}")


@app.command()
def report(
    runs: Annotated[list[Path], typer.Argument(help="Run folders.")],
    file: Annotated[Path, typer.Option("-o", "--out", help="The page to write.")] = Path("report.html"),
    significance: Annotated[bool, typer.Option("--significance", help="Test the best run against the others.")] = False,
    blocks: Annotated[int, typer.Option(help="Number of blocks of rows for the test.", show_default="50")] = 0,
    json: Json = False,
) -> None:
    """Compare runs in a table, and in a self-contained page with curves, reliability and heat maps.

    Example: `fieldwise report runs/fm runs/pin --significance -o report.html`
    """
    from fieldwise.evaluation.significance import sentences
    from fieldwise.reporting.report import differences, print_table, table_rows, write_report

    if blocks and not significance:
        raise ConfigError(f"--blocks is for --significance, which is missing; found --blocks {blocks}")
    rows = table_rows(runs)
    tested = differences(runs, blocks) if significance else None
    write_report(runs, file, tested=tested)
    if json:
        print_json({"file": str(file), "runs": rows} | ({"significance": tested} if tested else {}))
        return
    print_table(rows, None, out)
    for sentence in sentences(tested) if tested else ():
        say(sentence)
    say(f"page: {file}")
