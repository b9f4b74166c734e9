"""A run folder: a run claims it, logs to it and finishes it with a bundle, whatever it trains."""

from __future__ import annotations

import json
import math
import shutil
import tomllib
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import fields, replace
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from fieldwise.bundle import bundle, calibration
from fieldwise.bundle.predictions import Predictions
from fieldwise.bundle.scoring import Saved, Trained, score
from fieldwise.config.errors import BundleError, ConfigError, DataError, FieldwiseError, TrainingError
from fieldwise.config.files import Hold, whole_file
from fieldwise.config.progress import Progress as Progress
from fieldwise.config.progress import Watch as Watch
from fieldwise.config.settings import Config, TrainSettings, config_from
from fieldwise.data.dataset import Dataset, Part
from fieldwise.data.schema import VIEWS
from fieldwise.evaluation import metrics
from fieldwise.evaluation.outlook import Outlook, outlook
from fieldwise.evaluation.pair_strength import strength_of_pairs
from fieldwise.train import callbacks, worker
from fieldwise.train.race import FILE as LOGITS
from fieldwise.train.race import Race
from fieldwise.train.state import State, Stopwatch

# The file that says why a run cannot go on: another run may take its folder.
FAILED = "FAILED"
# What an unfinished run may have in its folder.
UNFINISHED = {FAILED, "identity.json", "config.toml", "log.jsonl", "checkpoint", "best.safetensors"}
UNFINISHED |= {callbacks.FILE, "tensorboard", "wandb"}
# Training rows that say how far off a model is on them.
BIAS_ROWS = 50_000


class Run(ABC):
    """One training run: its data, its state and its folder.

    This process (of several workers, rank 0) holds the folder until `close`, which the end of a `with` calls. After a
    TrainingError any other run may take the folder.
    """

    model: Trained
    steps: int
    hold: Hold | None = None
    asked = ""  # what was asked for; a run that is done keeps it
    best_logits: NDArray[np.floating[Any]] | None = None  # of validation rows by the best weights, if they are known
    race: Race = Race()

    def __init__(self, config: Config, dataset: Dataset, out: Path, resume: bool) -> None:
        self.dataset, self.out = dataset, out
        self.part, self.valid = dataset.training(config.seed, config.train.hide), dataset.parts["valid"]
        self.config, self.settings = config, config.train
        # Held-out parts keep all negatives; the logits of a model trained on a share r of them are ln r too high there.
        self.offset = math.log(dataset.negatives_kept)
        self.ahead, self.bias = outlook(dataset.levels), 0.0
        self.state, self.watch = State(), Stopwatch("setup")
        self.callbacks = callbacks.Callbacks(replace(config, train=replace(config.train, callbacks="")))
        self.finished = worker.from_first(lambda: self._claim(resume))

    @property
    def together(self) -> bool:
        """Whether scoring a row takes all workers."""
        return False

    @property
    def size(self) -> int:
        """How many parameters the model has."""
        return self.model.size

    @abstractmethod
    def fit(self, progress: Progress) -> None:
        """Trains until validation log loss stops falling."""

    @property
    def rate(self) -> str:
        """The setting of the learning rate and its value, for those that have one."""
        return ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        # On a full disk the mark cannot be written either: the error itself says so.
        with suppress(OSError, FieldwiseError):
            if isinstance(error, TrainingError) and worker.first():
                with whole_file(self.out / FAILED) as file:
                    file.write_text(f"{error}\n", encoding="utf-8")
        self.close()
        if isinstance(error, IndexError) and "out of range" in str(error):
            found = "an id lies outside of its field: the data are damaged; prepare them anew"
            raise BundleError(f"{found} ({self.dataset.path})") from error

    def listen(self, listeners: callbacks.Callbacks, progress: Progress) -> None:
        """Hands on what is logged from now on."""
        self.callbacks = listeners
        listeners.start(self.out, progress.say)

    def close(self) -> None:
        """Ends the callbacks, and releases the folder."""
        self.callbacks.close()
        if self.hold is not None:
            self.hold.release()

    def _claim(self, resume: bool) -> bool:
        """Claims a new folder, or that of the same run, never another's; returns whether that run has finished."""
        if self.out.exists() and not self.out.is_dir():
            raise TrainingError(f"--out takes a folder, found a file; choose another name ({self.out})")
        self.out.mkdir(parents=True, exist_ok=True)
        self.hold = Hold(self.out, f"training {self.out}")
        try:
            finished = self._take(resume)
            self.hold.sign()
        except BaseException:
            self.close()
            raise
        return finished

    def _take(self, resume: bool) -> bool:
        identity = {"data": self.dataset.fingerprint, "config": self.config.to_toml()}
        known = self.out / "identity.json"
        other = _other(known, identity) if known.exists() else ""
        # A kill while the first file is being written leaves a hidden work file.
        there = {path.name for path in self.out.iterdir() if not path.name.startswith(".")}
        if FAILED in there and there <= UNFINISHED and (other or not resume):
            _empty(self.out)
        elif resume and known.exists():
            if other:
                raise TrainingError(
                    f"--resume needs the run's own {other}, found others; see {self.out / 'config.toml'}"
                )
            (self.out / FAILED).unlink(missing_ok=True)
            with whole_file(self.out / "config.toml") as file:
                file.write_text(self.config.to_toml(), encoding="utf-8")
            return (self.out / "DONE").exists()
        elif (self.out / "DONE").exists():
            raise TrainingError(f"{self.out} already holds a finished run; choose another --out")
        elif there:
            raise TrainingError(f"{self.out} already holds something; go on with --resume, or choose another --out")
        # The identity comes first: from then on --resume knows the folder, whatever else is in it.
        with whole_file(known) as file:
            file.write_text(json.dumps(identity), encoding="utf-8")
        with whole_file(self.out / "config.toml") as file:
            file.write_text(self.config.to_toml(), encoding="utf-8")
        return False

    def _place(self) -> dict[str, int]:
        epochs, within = divmod(self.state.step, self.steps)
        rows = epochs * self.part.rows + within * self.settings.batch_size
        return {"step": self.state.step, "rows": rows}

    def _measured(self, logits: NDArray[np.floating[Any]]) -> dict[str, Any]:
        if np.isnan(logits).any():
            raise TrainingError(f"scores of validation rows are nan at step {self.state.step}; lower {self.rate}")
        return metrics.evaluate(self.valid.labels, metrics.sigmoid(logits + self.offset), self.valid.weights, False)

    def _log(self, record: dict[str, Any]) -> None:
        if not worker.first():
            return
        line = json.dumps(record) + "\n"
        with (self.out / "log.jsonl").open("a", encoding="utf-8") as file:
            file.write(line)
        self.state.log_bytes += len(line.encode())
        for failed in self.callbacks.record(record):
            self._log(failed)

    def _trim_log(self) -> None:
        """Drops what was logged after the checkpoint: those steps will be done, and logged, again."""
        path = self.out / "log.jsonl"
        if worker.first() and path.exists() and not self.finished:
            with path.open("r+b") as file:
                file.truncate(self.state.log_bytes)

    def finish(self, pairs: bool = True) -> dict[str, Any]:
        """Restores the best weights, calibrates them on validation rows, measures them; writes bundle, report, DONE.

        With `pairs` also measures how strongly fields interact, which may take as long as the training.
        Rank 0 does it, and the others help to score where that takes all of them; their report is empty.
        """
        if not (worker.first() or self.together):
            return {}
        self.watch.go_on("best weights")
        self._take_best()
        self.watch.go_on("held-out scores")
        held_out = {name: part for name, part in self.dataset.parts.items() if name in ("valid", "test")}
        known = {} if self.best_logits is None else {"valid": self.best_logits}
        logits = {name: known[name] if name in known else self._score(part.ids) for name, part in held_out.items()}
        self.bias = self._own_bias()
        other_ids = self.dataset.parts[list(logits)[-1]].other_ids
        other = None if other_ids is None else self._score(other_ids)
        self.watch.go_on("pairs")
        strength = self._pair_strength(self.valid) if pairs and self.dataset.layout.fields > 1 else None
        self.watch.go_on("calibration, metrics")
        return self._leave(logits, strength, other) if worker.first() else {}

    def _leave(
        self,
        logits: dict[str, NDArray[np.floating[Any]]],
        strength: dict[str, Any] | None,
        other: NDArray[np.floating[Any]] | None = None,
    ) -> dict[str, Any]:
        """Writes the files of a finished run; returns its report. `other` are the logits in the other view, if any."""
        fitted = self._calibrated(logits["valid"])
        report = self._facts() | {"calibration": fitted.kind, "cross_fitted": self._cross_fitted(logits["valid"])}
        held_out = [name for name in ("valid", "test") if name in logits]
        for name in held_out:
            part, probabilities = self.dataset.parts[name], fitted.probabilities(logits[name])
            report[name] = metrics.evaluate(part.labels, probabilities, part.weights)
            if name == held_out[-1]:
                report["errors"] = metrics.standard_errors(part.labels, probabilities, part.weights)
                Predictions(name, part.labels, probabilities.astype(np.float32), part.weights).save(self.out)
        report |= self._expected(report[held_out[-1]])
        if other is not None:
            part = self.dataset.parts[held_out[-1]]
            found = metrics.evaluate(part.labels, fitted.probabilities(other), part.weights)
            report["views"] = self._views(report[held_out[-1]], found)
        if strength is not None:
            report["pair_strength"] = strength
        with whole_file(self.out / LOGITS) as file, file.open("wb") as opened:
            np.save(opened, (logits["valid"] + self.offset).astype(np.float32))
        self.watch.go_on("bundle")
        bundle.write(self.out / "bundle", self.config, self._sources(), self._whole, fitted, report, self._date)
        self.watch.lap()
        report["times"] = self.watch.seconds
        with whole_file(self.out / "report.json") as file:
            file.write_text(json.dumps(report, indent=1), encoding="utf-8")
        with whole_file(self.out / "DONE") as file:
            file.write_text(self.asked, encoding="utf-8")
        self._tidy()
        for failed in self.callbacks.finish(report):
            self._log(failed)
        return report

    @property
    def _date(self) -> str:
        """The day on which the run began, by its folder: a run that goes on keeps it."""
        began = (self.out / "identity.json").stat().st_mtime
        return datetime.fromtimestamp(began, UTC).date().isoformat()

    def _calibrated(
        self, logits: NDArray[np.floating[Any]], rows: NDArray[np.int64] | slice = slice(None)
    ) -> calibration.Calibration:
        """The calibration that some of the validation rows say, from the logits of all of them."""
        valid = self.valid
        weights = None if valid.weights is None else valid.weights[rows]
        kind = self.settings.calibration
        return calibration.fit(
            kind, valid.labels[rows], logits[rows], weights, self.offset, self.ahead, self.trained, self.bias
        )

    @cached_property
    def trained(self) -> calibration.BaseRate | None:
        """The rate of the training rows."""
        return base_rate(self.part, self.dataset.negatives_kept)

    def _own_bias(self) -> float:
        """What the logits of training rows lack to have their rate. It is asked for where levels move in time: else
        validation rows say the same, and do not flatter the model."""
        return own_bias(self._score, self.part) if self.ahead else 0.0

    def _cross_fitted(self, logits: NDArray[np.floating[Any]]) -> float:
        """Validation log loss where what is fitted on validation rows never saw the rows that it is judged by."""
        return calibration.cross_fitted(
            self.valid.labels,
            lambda known, others: self._calibrated(logits, known).probabilities(logits[others]),
            self.valid.weights,
            self.ahead is not None,
        )

    def _expected(self, found: dict[str, Any]) -> dict[str, Any]:
        """Between which bounds predicted/observed is expected on as many later rows as those that were measured."""
        ahead, rate = self.ahead, found["positive_rate"]
        if not 0 < rate < 1:
            return {}
        # Without an order in time, the chance that drew the rows at hand is all that is not known.
        noise = self.trained.noise if self.trained else 0.0
        usual = Outlook(1.0, sd=math.hypot(math.sqrt(noise), calibration.doubt(float(np.sum(self.valid.labels)))))
        low, high = (ahead or usual).range(rate, rate * found["rows"])
        moved = {"level_kept": ahead.keep, "level_moved": ahead.move, "level_sd": ahead.sd} if ahead else {}
        return {"expected_calibration": [low, high], **moved}

    def _views(self, asked: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
        """The metrics of the held-out rows in both views of the history; the first is what choices are made by."""
        first = self.dataset.schema.view
        second = next(view for view in VIEWS if view != first)
        kept = ("auc", "log_loss", "calibration")
        return {view: {key: found[key] for key in kept} for view, found in ((first, asked), (second, other))}

    def _score(self, ids: NDArray[np.int32]) -> NDArray[np.floating[Any]]:
        """Logits of all rows."""
        return score(self.model, ids)

    @property
    def _whole(self) -> Saved:
        """The model as the bundle saves it."""
        return self.model

    def _facts(self) -> dict[str, Any]:
        """The report without its metrics."""
        return {
            "model": self.config.model,
            "parameters": self.size,
            "rows_per_s": self._place()["rows"] / max(self.state.seconds, 1e-9),
            "seconds": self.state.seconds,
            "epochs": -(-self.state.step // self.steps),
            "best_epoch": -(-self.state.best_step // self.steps),
            "seed": self.config.seed,
            "data": str(self.dataset.path),
            "part_rows": {name: part.rows for name, part in self.dataset.parts.items()},
            "warnings": self._warnings(),
        }

    def _warnings(self) -> list[str]:
        """Warns of a run that has learnt nothing: before calibration it is no better than the base rate; and of
        callbacks that failed."""
        base, failed = metrics.base_loss(self.valid.labels, self.valid.weights), list(self.callbacks.errors)
        if not self.rate or self.state.best_loss < base:
            return failed
        found = f"{self.state.best_loss:.5f} at its best, no better than the {base:.5f} of the base rate alone"
        way_out = f"lower {self.rate}, or raise it where the loss hardly moved; else these rows teach it nothing"
        return [f"validation log loss is {found}; {way_out}", *failed]

    def _sources(self) -> dict[str, Path]:
        """Files and folders that the bundle copies, by their names in it."""
        return {name: self.dataset.path / name for name in ("schema.toml", "encoder")}

    def _tidy(self) -> None:  # noqa: B027
        """Removes what only an unfinished run needs."""

    @abstractmethod
    def _take_best(self) -> None:
        """Restores the weights of the least validation log loss."""

    def _pair_strength(self, valid: Part) -> dict[str, Any]:
        return strength_of_pairs(self._score, valid.ids, self.dataset.layout, self.dataset.names)


def asked_for(config: Config, dataset: Dataset) -> str:
    """The settings as they were given, and the data: a run that is done is known by them without its model."""
    own = replace(config, train=replace(config.train, callbacks=""))
    return json.dumps({"data": dataset.fingerprint, "config": own.to_toml()})


def report_of(out: Path, asked: str) -> dict[str, Any] | None:
    """The report of a run that is done, if exactly this was asked of it."""
    try:
        done = (out / "DONE").read_text(encoding="utf-8") == asked
        return dict(json.loads((out / "report.json").read_text(encoding="utf-8"))) if done else None
    except (OSError, ValueError):
        return None


def base_rate(part: Part, negatives_kept: float) -> calibration.BaseRate | None:
    """The rate of training rows, with the negatives that were not kept; None with one class alone."""
    weights = np.ones(part.rows) if part.weights is None else np.asarray(part.weights, dtype=np.float64)
    positive = float(weights[np.asarray(part.labels) > 0].sum())
    negative = float(weights.sum() - positive) / negatives_kept
    if not positive or not negative:
        return None
    return calibration.BaseRate(positive / (positive + negative), float(np.count_nonzero(part.labels * (weights > 0))))


def own_bias(score: Callable[[NDArray[np.int32]], NDArray[Any]], part: Part) -> float:
    """What a model's logits of its training rows lack to have their rate, from evenly spaced ones."""
    rows = slice(None, None, -(-part.rows // BIAS_ROWS))
    weights = None if part.weights is None else part.weights[rows]
    return calibration.own_level(part.labels[rows], score(np.array(part.ids[rows])), weights)


def check_settings(config: Config, own: Sequence[str], what: str, way_out: str) -> None:
    """Refuses settings of [train] that were changed but mean nothing to `what`, which has its `own` alone."""
    for setting in fields(TrainSettings):
        found = getattr(config.train, setting.name)
        if setting.name not in own and found != setting.default:
            raise ConfigError(f"train.{setting.name} has no meaning for {what}, found {found}; {way_out}")


def check_parts(dataset: Dataset) -> None:
    """Refuses data that no model can learn from: without validation rows, or with a part of one class alone."""
    if "valid" not in dataset.parts:
        raise BundleError(f"training needs a validation part to stop in time; prepare with --split ({dataset.path})")
    for name, part in dataset.parts.items():
        check_classes(part, {"train": "training", "valid": "validation"}.get(name, name), dataset.path)


def check_classes(part: Part, word: str, path: Path) -> None:
    """Refuses rows of one class; rows of weight 0 do not count."""
    labels = part.labels if part.weights is None else part.labels[part.weights > 0]
    if not labels.any() or labels.all():
        found = f"found {np.count_nonzero(labels):,} of {len(labels):,} positive"
        way_out = "prepare more rows, or divide them in another way (--split, --split-by, --seed)"
        raise DataError(f"{word} rows must be of both classes, {found}; {way_out} ({path})")


def _other(known: Path, identity: dict[str, str]) -> str:
    """What differs between this run and the folder's: 'data' or 'settings'; '' if it is the same run."""
    try:
        before = json.loads(known.read_text(encoding="utf-8"))
        if before["data"] != identity["data"]:
            return "data"
        return "" if _settings(before["config"]) == _settings(identity["config"]) else "settings"
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise TrainingError(f"the run is damaged: {error}; choose another --out ({known})") from None


def _empty(folder: Path) -> None:
    """Removes what an unfinished run left; the mark that allows it goes last."""
    for name in sorted(UNFINISHED - {FAILED}):
        path = folder / name
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    (folder / FAILED).unlink()


def _settings(text: str) -> Config | None:
    """A config from its TOML, without callbacks; settings that the text lacks have their defaults. None if it is no
    config of ours."""
    try:
        found = config_from(tomllib.loads(text), "the run's settings")
        return replace(found, train=replace(found.train, callbacks=""))
    except ConfigError:
        return None
