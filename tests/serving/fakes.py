"""An engine with a known answer, so that tests of the server need no training."""

from __future__ import annotations

import hashlib
import json
import threading
import time

import numpy as np

from fieldwise.config.errors import BundleError, DataError, unknown
from fieldwise.evaluation.contributions import Contribution, Explanation
from fieldwise.serving.vocabulary import FieldFacts


class FakeEngine:
    """Probabilities are a hash of the row and of the bundle's `name`; its history is the count of each user."""

    columns = ("user", "item", "price")
    has_history = True
    coders = ()

    def __init__(self, name: str) -> None:
        self.name, self.counts, self.seconds = name, {}, 0.0
        self.held = threading.Event()
        self.held.set()

    @classmethod
    def load(cls, path, threads=1):
        try:
            engine = cls(json.loads((path / "bundle.json").read_text())["name"])
            engine.version = fingerprint(path)
            return engine
        except (ValueError, KeyError):
            raise BundleError(f"the bundle is damaged ({path})") from None

    @property
    def fields(self):
        return tuple(
            FieldFacts(name, "categorical", 2, ("a", "b"), hint="2 known values", complete=True)
            for name in self.columns
        )

    @property
    def model(self):
        return {"model": self.name, "path": "/secret"}

    def search(self, field, prefix="", limit=20):
        if field not in self.columns:
            raise DataError(unknown("field", field, self.columns))
        return [text for text in ("apple", "ape", "bee") if text.startswith(prefix)][:limit]

    def predict(self, rows):
        self.held.wait()
        time.sleep(self.seconds)
        return np.array([self.probability(row) for row in rows])

    def probability(self, row):
        text = self.name + json.dumps({k: row[k] for k in sorted(row) if row[k] is not None})
        return int(hashlib.sha256(text.encode()).hexdigest()[:6], 16) / 16**6

    def rank(self, context, candidates, top=None):
        found = self.predict([{**context, **candidate} for candidate in candidates])
        order = np.argsort(-found, kind="stable")[:top]
        return order, found[order]

    def explain(self, row):
        parts = (Contribution(("user",), 1.5),)
        return Explanation(self.probability(row), 1.5, 0.0, {"user": "a"}, parts, (), True, "sum")

    def history_event(self, row, label, time=None):
        seen, positive = self.counts.get(row.get("user"), (0, 0))
        self.counts[row.get("user")] = (seen + 1, positive + label)


def fingerprint(path):
    return hashlib.sha256((path / "bundle.json").read_bytes()).hexdigest()[:12]


def write_bundle(folder, name):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "bundle.json").write_text(json.dumps({"name": name}))
    return folder
