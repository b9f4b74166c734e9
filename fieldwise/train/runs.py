"""A run folder: claimed once, logged to, and finished with a bundle, whatever is trained in it."""

from __future__ import annotations

import json
import math
import tomllib
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fieldwise.bundle import bundle, calibration
from fieldwise.bundle.predictions import Predictions
from fieldwise.bundle.scoring import Saved, Trained, score
from fieldwise.config.errors import ConfigError, TrainingError
from fieldwise.config.files import whole_file
from fieldwise.config.progress import Progress as Progress
from fieldwise.config.progress import Watch as Watch
from fieldwise.config.settings import Config, config_from
from fieldwise.data.dataset import Dataset, Part
from fieldwise.evaluation import metrics
from fieldwise.evaluation.pair_strength import pair_strength
from fieldwise.train import distributed


class Run(ABC):
    """One training run: the parts, where it stands, and what it leaves. A step of trees is a round."""

    model: Trained
    steps: int

    def __init__(self, config: Config, dataset: Dataset, out: Path, resume: bool) -> None:
        self.dataset, self.out = dataset, out
        self.part, self.valid = dataset.parts["train"], dataset.parts["valid"]
        self.config, self.settings = config, config.train
        # Held-out parts have all of their negatives; a model trained on a share r of them is ln r too high there.
        self.offset = math.log(dataset.negatives_kept)
        self.at: dict[str, Any] = {
            "step": 0,
            "best_loss": math.inf,
            "best_step": 0,
            "bad": 0,
            "seconds": 0.0,
            "log_bytes": 0,
            "stopped": False,
        }
        self.finished = distributed.from_first(lambda: self._claim(resume))

    @property
    def together(self) -> bool:
        """Whether it takes all workers to score a row."""
        return False

    @property
    def size(self) -> int:
        """How many numbers the model learns."""
        return self.model.size

    @abstractmethod
    def fit(self, progress: Progress) -> None:
        """Trains until validation log loss stops falling."""

    def _claim(self, resume: bool) -> bool:
        """Takes the folder: a new one, or the same run's; never another's. Returns whether that run is finished."""
        identity = {"data": self.dataset.fingerprint, "config": self.config.to_toml()}
        known = self.out / "identity.json"
        if resume and known.exists():
            before = json.loads(known.read_text(encoding="utf-8"))
            same_data = before["data"] == identity["data"]
            if not same_data or _settings(before["config"]) != _settings(identity["config"]):
                what = "settings" if same_data else "data"
                raise TrainingError(
                    f"--resume needs the run's own {what}, found others; see {self.out / 'config.toml'}"
                )
            with whole_file(self.out / "config.toml") as file:
                file.write_text(self.config.to_toml(), encoding="utf-8")
            return (self.out / "DONE").exists()
        # A kill while the first file was written leaves its hidden work file.
        if self.out.exists() and not (self.out.is_dir() and all(p.name.startswith(".") for p in self.out.iterdir())):
            raise TrainingError(f"{self.out} already holds something; go on with --resume, or choose another --out")
        self.out.mkdir(parents=True, exist_ok=True)
        # The identity first: from then on --resume knows the folder, whatever else is there.
        with whole_file(known) as file:
            file.write_text(json.dumps(identity), encoding="utf-8")
        with whole_file(self.out / "config.toml") as file:
            file.write_text(self.config.to_toml(), encoding="utf-8")
        return False

    def _place(self) -> dict[str, int]:
        epochs, within = divmod(self.at["step"], self.steps)
        rows = epochs * self.part.rows + within * self.settings.batch_size
        return {"step": self.at["step"], "rows": rows}

    def _measured(self, logits: NDArray[np.floating[Any]]) -> dict[str, Any]:
        found = metrics.evaluate(self.valid.labels, metrics.sigmoid(logits + self.offset), self.valid.weights)
        found.pop("reliability")
        return found

    def _log(self, record: dict[str, Any]) -> None:
        if not distributed.first():
            return
        line = json.dumps(record) + "\n"
        with (self.out / "log.jsonl").open("a", encoding="utf-8") as file:
            file.write(line)
        self.at["log_bytes"] += len(line.encode())

    def _trim_log(self) -> None:
        """Drops what was logged after the checkpoint: those steps will be done, and logged, again."""
        path = self.out / "log.jsonl"
        if distributed.first() and path.exists() and not self.finished:
            with path.open("r+b") as file:
                file.truncate(self.at["log_bytes"])

    def finish(self) -> dict[str, Any]:
        """Best weights, calibration on validation rows, metrics of all held-out parts, bundle, report, DONE.

        The first worker does it, with the help of the others where it takes them to score; their report is empty.
        """
        if not (distributed.first() or self.together):
            return {}
        self._take_best()
        logits = {name: self._score(part.ids) for name, part in self.dataset.parts.items() if name in ("valid", "test")}
        strength = self._pair_strength(self.valid) if self.dataset.layout.fields > 1 else None
        return self._leave(logits, strength) if distributed.first() else {}

    def _leave(self, logits: dict[str, NDArray[np.floating[Any]]], strength: dict[str, Any] | None) -> dict[str, Any]:
        """Writes all that a finished run leaves; returns its report."""
        valid = self.valid
        fitted = calibration.fit(self.settings.calibration, valid.labels, logits["valid"], valid.weights, self.offset)
        report = self._facts() | {"calibration": fitted.kind}
        held_out = [name for name in ("valid", "test") if name in logits]
        for name in held_out:
            part, probabilities = self.dataset.parts[name], fitted.probabilities(logits[name])
            report[name] = metrics.evaluate(part.labels, probabilities, part.weights)
            if name == held_out[-1]:
                Predictions(name, part.labels, probabilities.astype(np.float32), part.weights).save(self.out)
        if strength is not None:
            report["pair_strength"] = strength
        bundle.write(self.out / "bundle", self.config, self._sources(), self._whole, fitted, report)
        with whole_file(self.out / "report.json") as file:
            file.write_text(json.dumps(report, indent=1), encoding="utf-8")
        (self.out / "DONE").touch()
        self._tidy()
        return report

    def _score(self, ids: NDArray[np.int32]) -> NDArray[np.floating[Any]]:
        """Logits of all rows."""
        return score(self.model, ids)

    @property
    def _whole(self) -> Saved:
        """What the bundle has of the model."""
        return self.model

    def _facts(self) -> dict[str, Any]:
        """What the report says of the run beside its metrics."""
        return {
            "model": self.config.model,
            "parameters": self.size,
            "rows_per_s": self._place()["rows"] / max(self.at["seconds"], 1e-9),
            "seconds": self.at["seconds"],
            "epochs": -(-self.at["step"] // self.steps),
            "best_epoch": -(-self.at["best_step"] // self.steps),
            "seed": self.config.seed,
            "data": str(self.dataset.path),
        }

    def _sources(self) -> dict[str, Path]:
        """What the bundle takes over from elsewhere, by its name there."""
        return {name: self.dataset.path / name for name in ("schema.toml", "encoder")}

    def _tidy(self) -> None:  # noqa: B027
        """Removes what only an unfinished run needs."""

    @abstractmethod
    def _take_best(self) -> None:
        """Puts the model back to where validation log loss was least."""

    def _pair_strength(self, valid: Part) -> dict[str, Any]:
        strength = pair_strength(self._score, valid.ids, self.dataset.layout, rows=128)
        return {"fields": self.dataset.names, "matrix": strength.round(6).tolist()}


def _settings(text: str) -> Config | None:
    """A config from its TOML, where settings that are younger than the text have their defaults; None for another's."""
    try:
        return config_from(tomllib.loads(text), "the run's settings")
    except ConfigError:
        return None
