"""Your own columns: describe them, prepare once, train as often as you like."""

import csv
import tempfile
from functools import partial
from pathlib import Path

from fieldwise import Field, Predictor, Schema, load_config
from fieldwise.data.encode.prepare import prepare
from fieldwise.data.read import formats
from fieldwise.train.loop import train

folder = Path(tempfile.mkdtemp())
with (folder / "log.csv").open("w", newline="") as file:
    writer = csv.writer(file)
    writer.writerow(["bought", "customer", "price", "tags"])
    for row in range(2000):
        writer.writerow([int(row % 7 < 2), f"customer{row % 50}", round(5 + row % 7 + row / 1000, 2), "new|sale"])

schema = Schema(
    label="bought",
    fields=(
        Field("customer", min_count=5),
        Field("price", "numeric", buckets="quantile", max_buckets=16),
        Field("tags", "set", separator="|"),
    ),
)
prepare({"train": partial(formats.read, [folder / "log.csv"])}, folder / "data", "bought", schema)
report = train(load_config(overrides=["model.name=fm", "train.epochs=5"]), folder / "data", folder / "run")
print(f"test AUC {report['test']['auc']:.3f}")

predictor = Predictor.load(folder / "run")
print(predictor.predict([{"customer": "a new one", "price": None, "tags": ["sale", "brand new"]}]))
