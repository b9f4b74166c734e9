"""A scikit-learn classifier over prepare, train and predict, in memory and a temporary folder."""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.multiclass import type_of_target
from sklearn.utils.validation import check_array, check_is_fitted, column_or_1d

from fieldwise.bundle import bundle
from fieldwise.bundle.predictor import Predictor
from fieldwise.config.errors import ArgumentError, ConfigError
from fieldwise.config.files import whole_folder
from fieldwise.config.settings import load_config
from fieldwise.data.draws import SPLIT, stream
from fieldwise.data.encode.prepare import prepare
from fieldwise.data.read.formats import as_table, text_of
from fieldwise.data.read.streams import CHUNK_ROWS
from fieldwise.data.schema import Schema
from fieldwise.train.callbacks import Adapter, Callback, named
from fieldwise.train.loop import train

WEIGHT = "__sample_weight__"


class BundleClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A scikit-learn classifier around a bundle: the rows and labels that `fit` takes, and all that comes after it."""

    device: str

    def _rows(
        self, X: Any, y: Any, weights: Any, schema: Schema | None = None
    ) -> tuple[pa.Table, str, NDArray[np.intp]]:
        """The rows of X with a label of 0 and 1 and the weights as columns, the label's name, and the labels."""
        table = _table(X)
        self.classes_, codes = _classes(y)
        self.n_features_in_ = table.num_columns
        self.__dict__.pop("feature_names_in_", None)
        if not _is_array(X):
            self.feature_names_in_ = np.array(table.column_names, dtype=object)
        label = schema.label if schema else _label_name(table.column_names, y)
        return _labelled(table, codes, label, weights), label, codes

    def _keep(self, folder: Path) -> None:
        """Keeps the files of the bundle in memory, so that copies and pickles of the estimator carry them."""
        names = [path for path in folder.rglob("*") if path.is_file()]
        self.bundle_ = {path.relative_to(folder).as_posix(): path.read_bytes() for path in names}
        self._predictor = Predictor.load(folder, self._predicts_on)

    @property
    def _predicts_on(self) -> str:
        return self.device

    def _note(self, facts: Mapping[str, Any], schema: Schema, known: Collection[str] = ()) -> None:
        """Keeps the notes of `prepare`, and warns of columns that it left out, but not of those `known`."""
        self.notes_: list[str] = list(facts["notes"])
        used = {*schema.columns, *schema.history.columns_needed}
        self.left_out_ = [name for name in self._feature_names if name not in used]
        if named := [name for name in self.left_out_ if name not in known]:
            why = [note for note in self.notes_ if any(f"'{name}'" in note for name in named)]
            reasons = f" ({'; '.join(why)})" if why else ""
            warnings.warn(f"columns left out: {', '.join(named)}{reasons}", stacklevel=3)

    def _write(self, folder: Path) -> None:
        for name, content in self.bundle_.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(content)

    @property
    def predictor(self) -> Predictor:
        """The fitted predictor."""
        check_is_fitted(self, "bundle_")
        if "_predictor" not in self.__dict__:
            with tempfile.TemporaryDirectory() as folder:
                self._write(Path(folder))
                self._predictor = Predictor.load(folder, self._predicts_on)
        return self._predictor

    def predict_proba(self, X: Any) -> NDArray[np.float64]:
        """Probabilities of the two classes, (n, 2)."""
        predictor = self.predictor
        if not isinstance(X, list) or not all(isinstance(row, dict) for row in X):
            X = self._named(X)
        positive = predictor.predict(X)
        return np.column_stack([1 - positive, positive])

    def _named(self, X: Any) -> pa.Table:
        """Rows to predict; the columns of an array have the names of the training rows."""
        table = _table(X)
        if not _is_array(X) or "n_features_in_" not in self.__dict__:
            return table
        if table.num_columns != self.n_features_in_:
            expected = f"but {type(self).__name__} is expecting {self.n_features_in_} features as input"
            raise ArgumentError(f"X has {table.num_columns} features, {expected}")
        return table.rename_columns(self._feature_names)

    @property
    def _feature_names(self) -> list[str]:
        """The names of the columns that `fit` saw, c0, c1 ... in an array."""
        names = self.__dict__.get("feature_names_in_", [f"c{number}" for number in range(self.n_features_in_)])
        return [str(name) for name in names]

    def predict(self, X: Any) -> NDArray[Any]:
        """The more probable class of each row."""
        likelier = (self.predict_proba(X)[:, 1] > 0.5).astype(int)
        return np.asarray(np.asarray(self.classes_)[likelier])

    def save(self, path: str | Path, force: bool = False) -> None:
        """Writes the bundle, for `load`, the command line and the server."""
        check_is_fitted(self, "bundle_")
        with whole_folder(Path(path), "bundle.json", force) as folder:
            self._write(folder)

    def __getstate__(self) -> dict[str, Any]:
        state: dict[str, Any] = super().__getstate__()
        return {key: value for key, value in state.items() if key != "_predictor"}

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_class = False
        tags.input_tags.allow_nan = tags.input_tags.categorical = tags.input_tags.string = True
        return tags


class Classifier(BundleClassifier):
    """A model as a scikit-learn classifier.

    model: a name of `fieldwise models`; settings: overrides as on the command line, such as
    {"train.lr": 3e-4, "model.dim": 20}; schema: a Schema or the path of a schema.toml, else inferred;
    valid_share: the share of rows held out for early stopping where fit gets no eval_set.
    """

    def __init__(
        self,
        model: str = "pin",
        settings: dict[str, Any] | None = None,
        schema: Schema | str | Path | None = None,
        valid_share: float = 0.1,
        seed: int = 0,
        device: str = "auto",
    ) -> None:
        self.model = model
        self.settings = settings
        self.schema = schema
        self.valid_share = valid_share
        self.seed = seed
        self.device = device

    def fit(
        self,
        X: Any,
        y: Any,
        eval_set: Any = None,
        sample_weight: Any = None,
        callbacks: Sequence[Callback] = (),
    ) -> Classifier:
        """Trains on the rows X with responses y of two values; eval_set is (X, y) or [(X, y)] to stop early on.

        `callbacks` hear what the run logs (train/callbacks.py).
        """
        base = {"model.name": self.model, "seed": self.seed, "device": self.device, **(self.settings or {})}
        config = load_config(base=base)
        _check_places([*named(config.train.callbacks).values(), *callbacks])
        schema = None if self.schema is None else read_schema(self.schema)
        table, label, codes = self._rows(X, y, sample_weight, schema)
        if eval_set is None:
            away = _held_out(codes, self.valid_share, self.seed)
            table, held = table.filter(pa.array(~away)), table.filter(pa.array(away))
        else:
            held_x, held_y = eval_set[0] if isinstance(eval_set, list) else eval_set
            held_codes = self._codes(np.asarray(held_y))
            held = _labelled(_table(held_x), held_codes, label, None if sample_weight is None else np.ones(len(held_y)))
        sources = {"train": lambda: _chunks(table), "valid": lambda: _chunks(held)}
        with tempfile.TemporaryDirectory() as folder:
            data, run = Path(folder) / "data", Path(folder) / "run"
            facts = prepare(sources, data, label, schema, weight="" if sample_weight is None else WEIGHT)
            self.report_ = train(config, data, run, callbacks=callbacks)
            self._keep(run / "bundle")
            self._note(facts, Schema.load(data / "schema.toml"), () if schema is None else table.column_names)
        return self

    def _codes(self, y: NDArray[Any]) -> NDArray[np.intp]:
        """The labels of an eval_set as 0 and 1; it must have both classes of the training rows."""
        found, classes = np.unique(y), self.classes_
        if len(found) != 2 or not np.isin(found, classes).all():
            ours, theirs = (", ".join(map(str, own)) for own in (classes, found[:5]))
            raise ArgumentError(f"the y of eval_set must have both classes of y, {ours}, found {theirs or 'none'}")
        return np.searchsorted(classes, y)

    @classmethod
    def load(cls, path: str | Path, device: str = "auto") -> Classifier:
        """An estimator from a run or a bundle folder; its classes are 0 and 1."""
        folder = bundle.locate(Path(path))
        config = bundle.load(folder).config
        loaded = cls(config.model, seed=config.seed, device=device)
        loaded.classes_ = np.array([0, 1])
        loaded._keep(folder)
        return loaded


def _check_places(callbacks: Sequence[Callback]) -> None:
    """Refuses callbacks that would write into the run's folder, which is gone after `fit`."""
    for own in callbacks:
        if isinstance(own, Adapter) and own.in_run and not own.place:
            found = f"{own.package} without a folder"
            raise ConfigError(f"fit keeps no run folder: name one, as in {own.package}:logs, found {found}")


def _label_name(columns: list[str], y: Any) -> str:
    """A name for the response that no column of X has: y's own if possible."""
    candidates = [str(getattr(y, "name", None) or "label"), "label", "__label_of_fit__"]
    return next(name for name in candidates if name not in columns)


def _is_array(rows: Any) -> bool:
    """Whether columns are known by their number: arrays, and lists of rows."""
    by_name = isinstance(rows, (dict, pa.Table, pa.RecordBatch)) or hasattr(rows, "columns") or _are_dicts(rows)
    return not by_name or hasattr(rows, "toarray")  # one of SciPy's sparse arrays is a dict


def _are_dicts(rows: Any) -> bool:
    return isinstance(rows, list) and bool(rows) and all(isinstance(row, dict) for row in rows)


def _table(rows: Any) -> pa.Table:
    """The rows as a table, whatever they are; scikit-learn checks those that are arrays."""
    if not _is_array(rows):
        return as_table(rows)
    values = np.asarray(rows) if isinstance(rows, (list, tuple)) else rows
    return as_table(check_array(values, dtype=None, ensure_all_finite="allow-nan", input_name="X"))


def _classes(y: Any) -> tuple[NDArray[Any], NDArray[np.intp]]:
    """The two values of y, in their order, and which of them each row has."""
    values = column_or_1d(np.asarray(y), warn=True)
    if len(missing := np.flatnonzero(_is_missing(values))):
        found = f"found NaN in {len(missing):,} of {len(values):,} (the first in row {missing[0] + 1})"
        raise ArgumentError(f"y must have a class for each row, {found}; leave those rows out")
    classes, codes = np.unique(values, return_inverse=True)
    if len(classes) != 2:
        # The words of scikit-learn, by which its tools know such an error.
        many = f"Only binary classification is supported. The type of the target is {type_of_target(values)}: "
        found = f"found {len(classes)} class{'es' * (len(classes) != 1)}"
        raise ArgumentError(f"{many if len(classes) > 2 else ''}y must have two classes, {found}")
    return classes, codes


def _is_missing(values: NDArray[Any]) -> NDArray[np.bool_]:
    """Which values are None, NaN or pandas' NA."""
    if values.dtype.kind == "f":
        return np.asarray(np.isnan(values))
    if values.dtype.kind != "O":
        return np.zeros(len(values), dtype=bool)
    return np.array([not isinstance(value, str) and text_of(value) is None for value in values.tolist()], dtype=bool)


def _labelled(table: pa.Table, codes: NDArray[Any], label: str, weights: Any) -> pa.Table:
    if len(table) != len(codes):
        raise ArgumentError(f"X and y must have one length, found {len(table)} and {len(codes)}")
    table = table.append_column(label, pa.array(codes.astype(np.int8)))
    if weights is None:
        return table
    weights = np.asarray(weights, dtype=np.float64)
    if weights.shape != codes.shape:
        raise ArgumentError(f"sample_weight must have one weight for each row, found the shape {weights.shape}")
    if (there := len(np.unique(codes[weights > 0]))) != 2:
        raise ArgumentError(f"rows whose weight is not zero must be of two classes, found {there} of them")
    return table.append_column(WEIGHT, pa.array(weights))


def _held_out(codes: NDArray[Any], share: float, seed: int) -> NDArray[np.bool_]:
    """Which rows are held out for early stopping: the same share of both classes, so that few rows have both, too."""
    if not 0 < share < 1:
        raise ConfigError(f"valid_share takes a share above 0 and below 1, found {share}")
    random, held = stream(seed, SPLIT), np.zeros(len(codes), dtype=bool)
    for code in (0, 1):
        rows = np.flatnonzero(codes == code)
        if len(rows) < 2:
            raise ArgumentError(f"y needs two rows of each class, to train on and to stop by, found {len(rows)} of one")
        count = min(len(rows) - 1, max(1, round(share * len(rows))))
        held[random.choice(rows, count, replace=False)] = True
    return held


def _chunks(table: pa.Table) -> Iterator[pa.Table]:
    for first in range(0, len(table), CHUNK_ROWS):
        yield table.slice(first, CHUNK_ROWS)


def read_schema(schema: Schema | str | Path) -> Schema:
    return schema if isinstance(schema, Schema) else Schema.load(Path(schema))
