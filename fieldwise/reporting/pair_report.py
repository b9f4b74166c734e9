"""`fieldwise explain`: maps and a ranking of a model's field pairs, and the cost of leaving some out.

The cost is the drop of the AUC on labelled rows when a pair outputs its mean instead of the row's value, or a field has
the value of another row. Nothing is trained again.
"""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fieldwise.bundle.predictor import Predictor
from fieldwise.config.errors import BundleError, DataError
from fieldwise.config.files import whole_folder
from fieldwise.data.dataset import Dataset
from fieldwise.data.encode.on_demand import made
from fieldwise.evaluation import metrics, pair_maps
from fieldwise.evaluation.pair_strength import pair_strength
from fieldwise.nn.model import Model
from fieldwise.reporting import plots
from fieldwise.reporting.result_tables import Column

# The most rows used, and the most fields: the number of pairs grows with their square.
MOST_ROWS, MOST_FIELDS = 20_000, 500
# A third of the pairs, and a loss of AUC that counts as negligible.
THIRD, SMALL_COST = 1 / 3, 0.0005
# Weights that are kept of a model that is a sum of them.
MOST_WEIGHTS = 1000
SHARES = (0.1, 0.2, THIRD, 0.5, 0.7, 0.9)
TITLES = {
    "mean": "Products of mean vectors",
    "weighted": "Products of mean vectors, weighted by frequency",
    "variance": "Deviation of each pair's output over rows",
    "strength": "Interaction measured on rows, in logits",
}
WEIGHT_COLUMNS = (Column("weight", "Weight", "+.4f"), Column("rows", "Rows", ",d"))
COLUMNS = (
    Column("strength", "Strength", ".4f"),
    Column("variance", "Deviation", ".4f"),
    Column("mean", "Means", ".4f"),
    Column("weighted", "Weighted", ".4f"),
)


@dataclass(frozen=True)
class Rows:
    """Encoded rows to explain a model with, and their labels, if they have any."""

    ids: NDArray[np.int32]
    labels: NDArray[np.uint8] | None


def explain(predictor: Predictor, rows: Path | None = None, strength_rows: int = 512) -> dict[str, Any]:
    """Maps (F, F) by name, all pairs, the strongest first, and, with labels, the cost of leaving some out.

    A model that is a sum of weights, LR, has these instead of pairs.
    """
    encoder, model = predictor.bundle.own_encoder, predictor.model
    layout, names = predictor.bundle.layout, encoder.names
    if isinstance(model, Model) and model.linear is not None and not len(model.branches):
        return _of_weights(predictor, rows_of(predictor, rows))
    if layout.fields < 2:
        raise DataError(f"pairs need at least two fields, found {layout.fields} ({predictor.bundle.path})")
    if layout.fields > MOST_FIELDS:
        found_pairs = f"{layout.fields:,} fields and {math.comb(layout.fields, 2):,} pairs of them"
        raise DataError(
            f"explain measures all pairs of at most {MOST_FIELDS} fields, found {found_pairs} "
            f"({predictor.bundle.path}); `fieldwise report` shows those of the strongest fields"
        )
    rows_used = rows_of(predictor, rows)
    maps: dict[str, pair_maps.Matrix | None] = {}
    if pair_maps.pair_part(model) is not None:
        maps["mean"] = pair_maps.mean_map(model, layout)
    if rows_used is not None:
        if pair_maps.pair_part(model) is not None:
            maps["weighted"] = pair_maps.mean_map(model, layout, pair_maps.counts_of(rows_used.ids, layout))
            maps["variance"] = pair_maps.variance_map(model, rows_used.ids, layout)
        maps["strength"] = pair_strength(predictor.bundle.logits, rows_used.ids, layout, strength_rows)
    drawn = {name: found for name, found in maps.items() if found is not None}
    if not drawn:
        raise DataError(f"{predictor.bundle.config.model} has no products of vectors to show; give --rows FILE")
    by = "variance" if pair_maps.tells_pairs(model) and "variance" in drawn else list(drawn)[-1]
    ranked = ranking(drawn, names, by)
    found: dict[str, Any] = {"model": predictor.bundle.config.model, "fields": names, "ranked_by": by, "pairs": ranked}
    found |= {"maps": {name: matrix.round(6).tolist() for name, matrix in drawn.items()}}
    if rows_used is not None and rows_used.labels is not None and 0 < rows_used.labels.sum() < len(rows_used.labels):
        found |= costs(predictor, rows_used, ranked, names)
    return found


def _of_weights(predictor: Predictor, rows: Rows | None) -> dict[str, Any]:
    """Of a sum of weights, these: the largest first, of values that the rows have; there are no pairs."""
    encoder, model = predictor.bundle.own_encoder, predictor.model
    layout, names = encoder.layout.apart, encoder.names
    weights = model.linear.weights.weight.detach().cpu().numpy()[:, 0].astype(np.float64)
    seen = None if rows is None else pair_maps.counts_of(rows.ids, layout)
    order = np.argsort(-np.abs(weights), kind="stable")
    order = order if seen is None else order[seen[order] > 0]
    fields = np.searchsorted(layout.offsets, order, side="right") - 1
    found = []
    for place, field in zip(order[:MOST_WEIGHTS].tolist(), fields.tolist(), strict=False):
        value = encoder.value_of(field, place - layout.offsets[field])
        row: dict[str, Any] = {"name": f"{names[field]} = {value}", "field": names[field], "value": value}
        found.append(row | {"weight": float(weights[place])} | ({} if seen is None else {"rows": int(seen[place])}))
    bias = 0.0 if model.linear.bias is None else float(model.linear.bias.detach())
    result: dict[str, Any] = {"model": predictor.bundle.config.model, "fields": names, "ranked_by": "weight"}
    result |= {"bias": bias, "weights": found, "pairs": [], "maps": {}}
    if layout.fields <= MOST_FIELDS and rows is not None and rows.labels is not None and len(set(rows.labels)) == 2:
        result |= costs(predictor, rows, [], names)
    return result


def rows_of(predictor: Predictor, rows: Path | None) -> Rows | None:
    """The rows of a file or a prepared folder; without either, those the run was trained on, if they still exist."""
    opened = predictor.bundle
    columns = opened.layout.columns
    if rows is None:
        data = made(Path(str(opened.metrics.get("data", ""))))
        if not (data / "data.json").exists() or not opened.encoded(data):
            return None
        rows = data
    if rows.is_dir():
        if not opened.encoded(rows):
            raise BundleError(f"the folder was prepared with another encoder; give the raw file instead ({rows})")
        parts = Dataset.open(rows).with_ranks.parts
        part = parts.get("test", parts["valid"])
        return Rows(np.array(part.ids[:MOST_ROWS][:, :columns]), np.array(part.labels[:MOST_ROWS]))
    found = _raw_rows(predictor, rows)
    return Rows(np.ascontiguousarray(found.ids[:, :columns]), found.labels)


def _raw_rows(predictor: Predictor, file: Path) -> Rows:
    from fieldwise.data.read.labels import read_labels
    from fieldwise.data.recipes.raw_columns import columns_of, rows_of

    schema = predictor.schema
    ids: list[NDArray[np.int32]] = []
    labels: list[Any] = []
    labelled = schema.label in columns_of(schema, file)
    wanted = [*schema.columns, *([schema.label] if labelled else [])]
    passed = 0
    for chunk in rows_of(schema, file, list(dict.fromkeys(wanted))):
        kept = chunk.slice(0, MOST_ROWS - passed)
        ids.append(predictor.encoder.transform(kept, served=not predictor.shown(kept)))
        own = labelled and read_labels(kept[schema.label], schema.label, passed, classes=schema.classes)
        labels.append(own if labelled else [])
        passed += len(kept)
        if passed >= MOST_ROWS:
            break
    if not passed:
        raise DataError(f"there are no rows to explain with ({file})")
    return Rows(np.concatenate(ids), np.concatenate(labels) if labelled else None)


def ranking(maps: dict[str, pair_maps.Matrix], names: Sequence[str], by: str) -> list[dict[str, Any]]:
    """A row for each pair with its value in every map, the strongest first; `pair` is its index among the pairs."""
    first, second = np.triu_indices(len(names), k=1)
    order = np.argsort(-maps[by][first, second], kind="stable")
    return [
        {
            "pair": int(p),
            "first": names[first[p]],
            "second": names[second[p]],
            "name": f"{names[first[p]]} x {names[second[p]]}",
        }
        | {name: float(matrix[first[p], second[p]]) for name, matrix in maps.items()}
        for p in order
    ]


def costs(predictor: Predictor, rows: Rows, ranked: Sequence[dict[str, Any]], names: Sequence[str]) -> dict[str, Any]:
    """The AUC, the cost of each field and, for a network of pairs, of its weakest and its strongest pairs."""
    model, layout = predictor.model, predictor.bundle.layout
    assert rows.labels is not None
    labels = rows.labels

    def area(ids: NDArray[np.int32]) -> float:
        return metrics.auc(labels, predictor.bundle.logits(ids))

    full_auc = area(rows.ids)
    shuffled = np.random.default_rng(0).permutation(len(rows.ids))
    fields = []
    for number, name in enumerate(names):
        columns = layout.columns_of([number])
        changed = rows.ids.copy()
        changed[:, columns] = rows.ids[shuffled][:, columns]
        fields.append({"field": name, "cost": full_auc - area(changed)})
    found: dict[str, Any] = {"auc": full_auc, "rows": len(labels)}
    found["drop_fields"] = sorted(fields, key=lambda row: -row["cost"])
    if pair_maps.pair_part(model) is not None:
        found["drop_pairs"] = []
        for share in SHARES:
            count = round(share * len(ranked))
            ends = {"weakest": ranked[len(ranked) - count :], "strongest": ranked[:count]}
            row: dict[str, Any] = {"share": share, "pairs": count}
            for end, chosen in ends.items():
                with pair_maps.without_pairs(model, [pair["pair"] for pair in chosen], rows.ids):
                    row[end] = full_auc - area(rows.ids)
            found["drop_pairs"].append(row)
    return found


def droppable(found: dict[str, Any]) -> list[str]:
    """Sentences that say what could be left out at a negligible cost of AUC."""
    sentences = []
    easy = [row for row in found.get("drop_pairs", []) if row["weakest"] <= SMALL_COST]
    if easy:
        last = easy[-1]
        sentences.append(
            f"the {last['pairs']} weakest of {len(found['pairs'])} pairs cost {last['weakest']:+.5f} of AUC"
        )
    fields = [row["field"] for row in found.get("drop_fields", []) if row["cost"] <= SMALL_COST]
    if fields:
        sentences.append(f"fields that cost no more than {SMALL_COST} of AUC by themselves: {', '.join(fields)}")
    return sentences


def write(found: dict[str, Any], out: Path, force: bool = False) -> None:
    """Writes explain.json, pairs.csv or weights.csv, fields.csv and a heat map for each matrix."""
    with whole_folder(out, "explain.json", force) as folder:
        (folder / "explain.json").write_text(json.dumps(found, indent=1), encoding="utf-8")
        for name in ("pairs", "weights"):
            if found.get(name):
                _csv(folder / f"{name}.csv", found[name])
        if "drop_fields" in found:
            _csv(folder / "fields.csv", found["drop_fields"])
        if "drop_pairs" in found:
            _csv(folder / "drop_pairs.csv", found["drop_pairs"])
        for name, matrix in found["maps"].items():
            unit = "Strength (logits)" if name == "strength" else "Strength"
            picture = plots.heat_map(matrix, found["fields"], f"{found['model']}: {TITLES[name]}", unit)
            (folder / f"{name}.svg").write_text(picture, encoding="utf-8")


def _csv(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
