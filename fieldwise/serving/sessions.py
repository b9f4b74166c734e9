"""Models as a server runs them, without torch: networks in ONNX Runtime, trees in XGBoost."""

from __future__ import annotations

import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from fieldwise.bundle.scoring import Scorer, in_batches
from fieldwise.config.documents import read_json
from fieldwise.config.errors import ConfigError
from fieldwise.config.options import arguments
from fieldwise.config.settings import Config
from fieldwise.data.schema import Layout
from fieldwise.export import network
from fieldwise.export.export import FACTS, network_folder
from fieldwise.graphs import plain_parts
from fieldwise.nn.tree_models import TREES
from fieldwise.nn.trees import Trees

# Rows of one run; more would need memory and save no time.
RUN_ROWS = 256
# The most sets of context fields that have a session, and the request at which they get one: making a session takes
# as long as many rankings of full rows.
MOST_SPLITS, ASKED_BEFORE_SPLIT = 8, 2
MOST_ASKED = 1000

Ids = NDArray[np.int32]
Logits = NDArray[np.floating[Any]]


class Served(Scorer, Protocol):
    """A model that can also compute a shared context once, and knows whether its logit is a sum of terms."""

    exact: bool
    # The number format of its embedding tables; empty if it has none.
    tables: str
    # Why it cannot compute a context separately; empty if it can.
    whole: str

    def split(self, context: Sequence[int]) -> Callable[[Ids, Ids], Logits] | None:
        """A function of ids (1, C'') of the context's fields and ids (n, C') of the others -> logits (n,), or None."""


class NetworkScorer:
    """A network, whose sessions all read the same tables."""

    def __init__(self, folder: Path, layout: Layout, threads: int = 1) -> None:
        self.network, self.threads = plain_parts.load(folder), threads
        network.check(self.network, layout)
        self.tables = str(read_json(folder / FACTS)["tables"])
        self._arrays = network.tables_of(self.network)
        self.exact = network.is_exact(self.network)
        found = network.whole_part(self.network)
        self.whole = f"its {found} looks at all fields of a row at once" if found else ""
        self._rows = self._session(network.graph_of(self.network, network.as_input))
        self._terms: Any = None
        self._splits: OrderedDict[tuple[int, ...], Any] = OrderedDict()
        self._asked: Counter[tuple[int, ...]] = Counter()
        self._making: set[tuple[int, ...]] = set()
        self._lock = threading.Lock()

    def logits(self, ids: Ids) -> Logits:
        return in_batches(lambda some: self._run(self._rows, {network.IDS: some})[0], ids, RUN_ROWS)

    def split(self, context: Sequence[int]) -> Callable[[Ids, Ids], Logits] | None:
        session = None if self.whole or not context else self._context_session(tuple(context))
        if session is None:
            return None
        return lambda shared, rows: in_batches(
            lambda some: self._run(session, {network.CONTEXT: shared, network.IDS: some})[0], rows, RUN_ROWS
        )

    def _context_session(self, key: tuple[int, ...]) -> Any:
        """The session for a set of context fields; None if it is not worth making, or another thread is making it."""
        with self._lock:
            if key in self._splits:
                self._splits.move_to_end(key)
                return self._splits[key]
            if key in self._making or not self._worth(key):
                return None
            self._making.add(key)
        try:
            session = self._session(network.graph_of(self.network, network.as_input, key, self.threads == 1))
        finally:
            with self._lock:
                self._making.discard(key)
        with self._lock:
            self._splits[key] = session
            while len(self._splits) > MOST_SPLITS:
                self._splits.popitem(last=False)
        return session

    def _worth(self, key: tuple[int, ...]) -> bool:
        if len(self._asked) > MOST_ASKED:
            self._asked.clear()
        self._asked[key] += 1
        return self._asked[key] >= ASKED_BEFORE_SPLIT

    def terms(self, ids: Ids) -> tuple[float, NDArray[Any], NDArray[Any]]:
        """The bias and the terms of each field (F,) and each pair (P,) of one row; only for exact models."""
        with self._lock:
            if self._terms is None:
                self._terms = self._session(network.terms_of(self.network, network.as_input))
        names = [output.name for output in self._terms.get_outputs()]
        found = dict(zip(names, self._run(self._terms, {network.IDS: ids}), strict=True))
        fields = len(self.network["sizes"])
        linear = found["linear"][0] if "linear" in found else np.zeros(fields)
        pairs = found["pairs"][0] if "pairs" in found else np.zeros(fields * (fields - 1) // 2)
        bias = sum(part["bias"] for part in self.network.parts if part.kind == "linear")
        return float(bias), linear, pairs

    def _run(self, session: Any, feeds: dict[str, Any]) -> Any:
        return session.run(None, {**self._arrays, **feeds})

    def _session(self, model: Any) -> Any:
        onnxruntime = load_onnxruntime()
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = self.threads, 1
        options.log_severity_level = 3
        # Spinning threads would take the cores from other requests.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


class TreeScorer:
    """Trees, which score full rows."""

    exact, tables, reads_ranks = False, "", True
    whole = "trees look at all fields of a row at once"

    def __init__(self, trees: Trees) -> None:
        self.trees = trees

    def logits(self, ids: Ids) -> Logits:
        return self.trees.logits(ids)

    def split(self, context: Sequence[int]) -> None:
        return None


def open_model(folder: Path, config: Config, layout: Layout, threads: int) -> Served:
    """The model of a checked bundle folder; exports a network first if that was not done yet."""
    if config.model not in TREES:
        return NetworkScorer(network_folder(folder), layout, threads)
    build = TREES[config.model]
    trees = build(layout, **arguments(build, {**config.options, "threads": threads}))
    trees.load(folder / trees.file)
    return TreeScorer(trees)


def load_onnxruntime() -> Any:
    """ONNX Runtime; an error says how to install it."""
    try:
        import onnxruntime
    except ImportError:
        raise ConfigError("serving needs ONNX Runtime, which is not installed: pip install fieldwise[serve]") from None
    return onnxruntime
