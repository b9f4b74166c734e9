"""What a run writes to log.jsonl, handed on while it trains: to TensorBoard, MLflow, Weights & Biases, or your own.

`train.callbacks` names those three, and `train(..., callbacks=[...])` takes objects. A record is handed on at most
once, also by a run that was killed and goes on: what was handed on is written down first, in the run's callbacks.json.
A callback that cannot start stops the run before its first step. One that fails later is left out from then on, which
is said at once, in log.jsonl and in the report: training goes on, because it costs more than its curves.
"""

from __future__ import annotations

import json
import math
import os
import secrets
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

from fieldwise.config.documents import parsed
from fieldwise.config.errors import ConfigError, FieldwiseError, TrainingError, unknown
from fieldwise.config.files import whole_file
from fieldwise.config.settings import Config

FILE = "callbacks.json"
Step = TypeVar("Step", int, None)
# What a record says of its place; everything else that is a number is a curve.
PLACE = ("event", "epoch", "step", "rows", "best")


@dataclass(frozen=True)
class Started:
    """A run that begins or goes on: its folder and settings. What is put into `kept`, as JSON, a resumed run has."""

    out: Path
    config: Config
    kept: dict[str, Any] = field(default_factory=dict)


class Callback:
    """Hears what a run logs. All methods do nothing by default; of several workers, those of rank 0 are called."""

    def start(self, run: Started) -> None:
        """The run begins, or goes on. What is raised here stops it before the first step."""

    def record(self, record: Mapping[str, Any]) -> None:
        """A line of log.jsonl: its `event` (train, valid, ...), mostly a `step`, and its numbers."""

    def finish(self, report: Mapping[str, Any]) -> None:
        """The run is done; this is its report.json."""

    def close(self) -> None:
        """The run ends, whether it is done or not."""


def numbers_of(record: Mapping[str, Any]) -> dict[str, float]:
    """The curves of a record, by `event/name`.

    >>> numbers_of({"event": "valid", "step": 8, "auc": 0.7, "note": "", "best": True})
    {'valid/auc': 0.7}
    """
    found = {key: value for key, value in record.items() if key not in PLACE and isinstance(value, (int, float))}
    return {f"{record['event']}/{key}": float(value) for key, value in found.items() if math.isfinite(value)}


def step_of(record: Mapping[str, Any], otherwise: Step) -> int | Step:
    """The number of the step that a record is about; `ways`, which comes before them, names a kind of step."""
    step = record.get("step")
    return step if isinstance(step, int) else otherwise


def results_of(report: Mapping[str, Any]) -> dict[str, float]:
    """The metrics of a report's held-out parts, by `result/part/name`."""
    parts = {part: report[part] for part in ("valid", "test") if part in report}
    found = {f"result/{part}/{key}": value for part, own in parts.items() for key, value in own.items()}
    return {key: float(value) for key, value in found.items() if isinstance(value, (int, float))}


def settings_of(config: Config) -> dict[str, Any]:
    """The settings of a run as they are named on the command line."""
    train = {f"train.{key}": value for key, value in asdict(config.train).items()}
    own = {f"model.{key}": value for key, value in config.options.items()}
    return {"model": config.model, "seed": config.seed, **own, **train}


class Adapter(Callback):
    """A callback over a package, which is loaded when a run starts. `place` is what the setting says behind a colon."""

    package = ""
    # Whether it writes into the run's folder, unless it is told another place.
    in_run = True

    def __init__(self, place: str = "") -> None:
        self.place = place
        if not self.there():
            way_out = f"pip install {self.package}, or leave it out of train.callbacks"
            raise ConfigError(f"train.callbacks: {type(self).__name__} needs the package {self.package}; {way_out}")

    @classmethod
    def there(cls) -> bool:
        """Whether its package is installed."""
        return find_spec(cls.package) is not None


class TensorBoard(Adapter):
    """Event files in the folder `place`, or in the run's `tensorboard/`."""

    package = "tensorboard"
    writer: Any = None

    def start(self, run: Started) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self.writer = SummaryWriter(str(Path(self.place) / run.out.name if self.place else run.out / "tensorboard"))
        self.last = 0

    def record(self, record: Mapping[str, Any]) -> None:
        self.last = step_of(record, self.last)
        self._add(numbers_of(record))

    def finish(self, report: Mapping[str, Any]) -> None:
        self._add(results_of(report))

    def _add(self, numbers: Mapping[str, float]) -> None:
        for name, value in numbers.items():
            self.writer.add_scalar(name, value, self.last)
        # What a kill leaves unwritten would be missing for ever: no record is handed on twice.
        self.writer.flush()

    def close(self) -> None:
        if self.writer is not None:
            self.writer.close()


class MLflow(Adapter):
    """A run of the experiment `fieldwise` (or MLFLOW_EXPERIMENT_NAME) at the tracking URI `place`, or MLflow's own."""

    package = "mlflow"
    in_run = False
    client: Any = None
    done = False

    def start(self, run: Started) -> None:
        from mlflow.tracking import MlflowClient

        client = MlflowClient(self.place or None)
        if "id" not in run.kept:
            name = os.environ.get("MLFLOW_EXPERIMENT_NAME", "fieldwise")
            known = client.get_experiment_by_name(name)
            experiment = client.create_experiment(name) if known is None else known.experiment_id
            run.kept["id"] = client.create_run(experiment, run_name=run.out.name).info.run_id
            for key, value in settings_of(run.config).items():
                client.log_param(run.kept["id"], key, value)
        else:
            client.update_run(run.kept["id"], status="RUNNING")
        self.client, self.id, self.last = client, run.kept["id"], 0

    def record(self, record: Mapping[str, Any]) -> None:
        self.last = step_of(record, self.last)
        self._log(numbers_of(record))

    def finish(self, report: Mapping[str, Any]) -> None:
        self._log(results_of(report))
        self.done = True

    def _log(self, numbers: Mapping[str, float]) -> None:
        for name, value in numbers.items():
            self.client.log_metric(self.id, name, value, step=self.last)

    def close(self) -> None:
        if self.client is not None:
            self.client.set_terminated(self.id, "FINISHED" if self.done else "KILLED")


class WeightsAndBiases(Adapter):
    """A run of the project `fieldwise` (or WANDB_PROJECT), its files in the folder `place` or the run's.

    It stays on this machine unless WANDB_MODE says `online`; `wandb sync` sends it later.
    """

    package = "wandb"
    own: Any = None

    def start(self, run: Started) -> None:
        import wandb

        run.kept.setdefault("id", secrets.token_hex(4))
        self.own = wandb.init(
            project=os.environ.get("WANDB_PROJECT", "fieldwise"),
            mode="online" if os.environ.get("WANDB_MODE") == "online" else "offline",
            name=run.out.name,
            dir=self.place or str(run.out),
            id=run.kept["id"],
            resume="allow",
            config=settings_of(run.config),
        )

    def record(self, record: Mapping[str, Any]) -> None:
        if numbers := numbers_of(record):
            self.own.log(numbers, step=step_of(record, None))

    def finish(self, report: Mapping[str, Any]) -> None:
        self.own.summary.update(results_of(report))

    def close(self) -> None:
        if self.own is not None:
            self.own.finish()


ADAPTERS: dict[str, type[Adapter]] = {"tensorboard": TensorBoard, "mlflow": MLflow, "wandb": WeightsAndBiases}


def named(setting: str) -> dict[str, Callback]:
    """The callbacks of `train.callbacks`, such as `tensorboard,mlflow:http://localhost:5000`, by their names."""
    found: dict[str, Callback] = {}
    for item in (text.strip() for text in setting.split(",") if text.strip()):
        name, _, place = item.partition(":")
        if name not in ADAPTERS:
            raise ConfigError(unknown("train.callbacks", name, ADAPTERS))
        found[name] = ADAPTERS[name](place)
    return found


class Callbacks:
    """The callbacks of a run: each hears a record once, and one that fails is left out."""

    def __init__(self, config: Config, given: Sequence[Callback] = ()) -> None:
        self.config = config
        self.callbacks = named(config.train.callbacks)
        self.callbacks |= {f"{type(own).__name__}-{number}": own for number, own in enumerate(given)}
        # Of each callback: what it keeps, and the last step of each event that it heard.
        self.kept: dict[str, dict[str, Any]] = {name: {} for name in self.callbacks}
        self.heard: dict[str, dict[str, int]] = {name: {} for name in self.callbacks}
        self.errors: list[str] = []
        self.out: Path | None = None

    def start(self, out: Path, say: Callable[[str], None]) -> None:
        """Starts all, with what those of an earlier part of the run have heard."""
        if not self.callbacks:
            return
        self.out, self.say = out, say
        try:
            saved = parsed(out / FILE)
        except (OSError, ValueError):
            saved = {}
        for name, callback in self.callbacks.items():
            self.kept[name] = dict(saved.get("kept", {}).get(name, {}))
            self.heard[name] = dict(saved.get("heard", {}).get(name, {}))
            try:
                callback.start(Started(out, self.config, self.kept[name]))
            except FieldwiseError:
                raise
            except Exception as error:
                way_out = "mend it, or leave it out of the callbacks"
                raise TrainingError(f"callback {name} did not start: {_words(error)}; {way_out} ({out})") from error
        self._save()

    def record(self, record: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Hands a record to those that have not heard it; returns records about those that failed."""
        event, step, failed = str(record["event"]), step_of(record, 0), []
        new = [name for name in self.callbacks if self.heard[name].get(event, -1) < step]
        if new and self.out is not None:
            for name in new:
                self.heard[name][event] = step
            self._save()
            failed = [self._call(name, lambda own: own.record(dict(record))) for name in new]
        return [found for found in failed if found]

    def finish(self, report: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Hands on the report; returns records about those that failed."""
        failed = [self._call(name, lambda own: own.finish(report)) for name in list(self.callbacks)]
        return [found for found in failed if found]

    def close(self) -> None:
        """Ends all. What fails now is said, but the run is as it is."""
        if self.out is not None:
            every, self.callbacks = self.callbacks, {}
            for name, own in every.items():
                try:
                    own.close()
                except Exception as error:
                    self.say(f"callback {name} failed at its end: {_words(error)}")

    def _call(self, name: str, do: Callable[[Callback], None]) -> dict[str, Any]:
        """Calls a callback, or leaves it out from now on."""
        try:
            do(self.callbacks[name])
        except Exception as error:
            with suppress(Exception):
                self.callbacks.pop(name).close()
            self.errors.append(f"callback {name} failed and was left out: {_words(error)}")
            self.say(self.errors[-1])
            return {"event": "callback", "name": name, "error": _words(error)}
        return {}

    def _save(self) -> None:
        assert self.out is not None
        with whole_file(self.out / FILE) as file:
            file.write_text(json.dumps({"kept": self.kept, "heard": self.heard}), encoding="utf-8")


def _words(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).strip()[:300]}".splitlines()[0]
