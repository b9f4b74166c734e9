"""A search for better settings: Optuna proposes them, training runs measure their validation log loss. It writes

recipe.toml  trials.csv  and the study itself (trials.py), which can be continued

Trial 0 is the base config, so the recipe is never worse on validation rows. Test rows are not used.
"""

from __future__ import annotations

import csv
import math
import tempfile
import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from fieldwise.config import memory
from fieldwise.config.errors import ConfigError, FieldwiseError, TooLarge, TrainingError
from fieldwise.config.files import whole_file, write_whole
from fieldwise.config.interrupts import answered, check
from fieldwise.config.progress import Progress
from fieldwise.config.settings import Config
from fieldwise.data.dataset import Dataset
from fieldwise.experiments.search_space import Axis, OneOf, apply, search_space
from fieldwise.experiments.trials import WORDS, Study, check_free, import_optuna
from fieldwise.reporting.console import TuningBar
from fieldwise.train.boosting import Boosting
from fieldwise.train.loop import resolve, start
from fieldwise.train.network import average
from fieldwise.train.runs import Run, check_parts

# With fewer trials the importance of settings is not computed.
IMPORTANCE_TRIALS = 10
LEADERS = 5


class TimeUp(Exception):
    """The time for tuning ended during a trial."""


class Hopeless(Exception):
    """A trial is worse than most were at the same point."""


def tune(
    config: Config,
    data: Path,
    out: Path,
    trials: int,
    seconds: float = math.inf,
    held: Iterable[str] = (),
    bar: TuningBar | None = None,
) -> dict[str, Any]:
    """Starts or continues the study in `out` until it has `trials` trials, or for `seconds`; returns the result.

    `config` is the first trial; `held` are settings, such as train.epochs, that no trial changes. Ctrl-C works like the
    end of the time: the next call continues the current trial, and the result is the best so far.
    """
    if trials < 1:
        raise ConfigError(f"--trials must be at least 1, found {trials}")
    bar = bar or TuningBar(config.model, quiet=True)
    search = Search(config, data, out, held)
    deadline, stopped = time.monotonic() + seconds, ""
    try:
        # An earlier process may have been killed between the end of the best trial and writing its recipe.
        search.write_results()
        while time.monotonic() < deadline and (trial := search.study.take(trials)) is not None:
            search.run(trial, trials, deadline, bar)
            search.write_results()
        stopped = "time" if time.monotonic() >= deadline else ""
    except TimeUp:
        stopped = "time"
    except KeyboardInterrupt:
        stopped = "interrupt"
        if not search.study.done:
            raise
        answered()
    search.write_results()
    return search.result() | {"stopped": stopped}


class Search:
    """The base config, the search space, the study and its results."""

    def __init__(self, config: Config, data: Path, out: Path, held: Iterable[str] = ()) -> None:
        import_optuna()
        self.out, held, dataset = out, sorted(held), Dataset.open(data)
        check_parts(dataset)
        # Nothing here can use the test rows.
        self.dataset = replace(dataset, parts={name: part for name, part in dataset.parts.items() if name != "test"})
        self.base = resolve(config)
        rows = dataset.parts["train"].rows
        self.axes = search_space(self.base, dataset.layout, rows, held)
        if not self.base.train.batch_size and any(axis.name == "train.batch_size" for axis in self.axes):
            # The average follows from the automatic batch size and must not change when trials choose another.
            self.base = replace(self.base, train=replace(self.base.train, average=average(self.base.train, rows)))
        if check_free(out):
            self._try_base()
        identity = {
            "data": dataset.fingerprint,
            "model": config.model,
            "settings": [self.base.to_toml(), *held],
            "search space": [repr(axis) for axis in self.axes],
        }
        first = {axis.name: _shown(axis.start) for axis in self.axes if axis.start is not None}
        self.study = Study(out, identity, first, config.seed)

    def _try_base(self) -> None:
        """Raises a mistake in the base config before the folder is made; running out of memory is a failed trial."""
        with tempfile.TemporaryDirectory() as folder:
            try:
                start(self.base, self.dataset, Path(folder) / "run").close()
            except Exception as error:
                if (isinstance(error, FieldwiseError) and not isinstance(error, TooLarge)) or _reason(error) is None:
                    raise

    def run(self, trial: Any, trials: int, deadline: float, bar: TuningBar) -> None:
        """Trains at the trial's point and records the outcome; if interrupted, the next call continues it."""
        best = next(((best.value, best.number) for best in self.study.done), None)
        bar.trial(trial.number, trials, deadline, best)
        try:
            word, loss, reason = self._outcome(trial, deadline, bar)
        except BaseException:
            self.study.tell(trial, "waiting")
            raise
        self.study.tell(trial, word, loss)
        shown_loss = "" if loss is None else f" {loss:.5f}"
        better = ", the best so far" if loss is not None and (best is None or loss < best[0]) else ""
        bar.say(f"trial {trial.number}: {word}{shown_loss}{better}{reason and f': {reason}'}")

    def _outcome(self, trial: Any, deadline: float, bar: TuningBar) -> tuple[str, float | None, str]:
        """How the trial ended, its loss, and why it failed if it did."""
        try:
            return "done", self._train(trial, deadline, bar), ""
        except Hopeless:
            return "pruned", None, ""
        except Exception as error:
            check()
            reason = _reason(error)
            if reason is None:
                raise
            trial.set_user_attr("error", reason)
            return "failed", None, reason

    def _train(self, trial: Any, deadline: float, bar: TuningBar) -> float:
        """The best validation log loss of a run before calibration, which early stopping uses too."""
        with start(self._config(trial), self.dataset, self.study.folder_of(trial.number), resume=True) as run:
            reported = self.study.trials[trial.number].intermediate_values
            try:
                run.fit(_Watch(trial, reported, run, deadline, bar))
            finally:
                trial.set_user_attr("seconds", run.state.seconds)
        loss = run.state.best_loss
        if not math.isfinite(loss):
            raise TrainingError("the validation log loss was never a number")
        return loss

    def _config(self, trial: Any) -> Config:
        """The config of the trial: the base for trial 0, otherwise the base with the values that Optuna proposes."""
        if trial.number > 0:
            return apply(self.base, point_of(trial, self.axes))
        for axis in self.axes:
            # Suggested too, so the study learns from this trial.
            if axis.start is not None:
                _proposed(trial, axis)
        return self.base

    def write_results(self) -> None:
        """Writes trials.csv and the recipe of the best trial."""
        with self.study.lock:
            with whole_file(self.out / "trials.csv") as path:
                self._write_trials(path)
            for best in self.study.done[:1]:
                write_whole(self.out / "recipe.toml", self._recipe(best))

    def _write_trials(self, path: Path) -> None:
        names = [axis.name for axis in self.axes]
        with path.open("w", encoding="utf-8", newline="") as file:
            rows = csv.writer(file)
            rows.writerow(["trial", "state", "log_loss", "seconds", *names, "error"])
            for trial in self.study.trials:
                about = [trial.number, WORDS[trial.state.name], "" if trial.value is None else trial.value]
                values = [trial.params.get(name, "") for name in names]
                attributes = trial.user_attrs
                rows.writerow([*about, attributes.get("seconds", ""), *values, attributes.get("error", "")])

    def _recipe(self, best: Any) -> str:
        counts = ", ".join(f"{count} {word}" for word, count in self.study.counts.items())
        found = f"trial {best.number}; trials: {counts}"
        fixed = import_optuna().trial.FixedTrial(best.params, best.number)
        head = f"# Found by `fieldwise tune` ({found}): validation log loss {best.value:.6f}.\n"
        return head + self._config(fixed).to_toml()

    def result(self) -> dict[str, Any]:
        """The best trials, the importance of settings, and the files written."""
        done = self.study.done
        if not done:
            raise TrainingError(self._no_result())
        names = {axis.name for axis in self.axes if not axis.only_for}
        judged = sum(trial.value is not None for trial in self.study.trials)
        return {
            "model": self.base.model,
            "recipe": str(self.out / "recipe.toml"),
            "csv": str(self.out / "trials.csv"),
            "trials": self.study.counts,
            "best": [{"trial": t.number, "log_loss": t.value, "settings": t.params} for t in done[:LEADERS]],
            "importance": self.study.importance(names) if judged >= IMPORTANCE_TRIALS else {},
        }

    def _no_result(self) -> str:
        failed = [trial.user_attrs["error"] for trial in self.study.trials if "error" in trial.user_attrs]
        if not failed:
            return f"the time was up before a trial ended; the same command continues it ({self.out})"
        return f"none of {len(failed)} trials ended well, the last: {failed[-1]} (see {self.out / 'trials.csv'})"


class _Watch(Progress):
    """Reports a trial's losses to the study, and stops it when it is hopeless or the time is up."""

    def __init__(self, trial: Any, reported: dict[int, float], run: Run, deadline: float, bar: TuningBar) -> None:
        self.trial, self.reported, self.deadline, self.bar = trial, dict(reported), deadline, bar
        # Steps at which trials compare: evaluations, whatever the batch size; rounds of trees, scaled by their rate.
        pace = run.config.options["lr"] if isinstance(run, Boosting) else run.settings.evaluations
        self.steps_per_row = pace / run.part.rows

    def start(self, rows: int, epochs: int, done: int) -> None:
        self.bar.start(rows, epochs, done)

    def step(self, rows: int, loss: float, epoch: int) -> None:
        if time.monotonic() >= self.deadline:
            raise TimeUp
        self.bar.step(rows, loss, epoch)

    def evaluated(self, record: dict[str, Any]) -> None:
        """Reports the best loss so far, once for each step: a run that continues after a kill may repeat some."""
        self.bar.evaluated(record)
        place, loss = round(record["rows"] * self.steps_per_row), record["log_loss"]
        if place in self.reported or not math.isfinite(loss):
            return
        self.reported[place] = min([loss, *self.reported.values()])
        self.trial.report(self.reported[place], place)
        if self.trial.number > 0 and self.trial.should_prune():
            raise Hopeless


def point_of(trial: Any, axes: list[Axis]) -> dict[str, Any]:
    """A value on each axis: the trial's, or one that the study's sampler proposes."""
    point: dict[str, Any] = {}
    for axis in axes:
        if axis.only_for in ("", point.get("l2 on")):
            point[axis.name] = _proposed(trial, axis)
    return point


def _proposed(trial: Any, axis: Axis) -> Any:
    values = axis.values
    if isinstance(values, OneOf):
        known = {_shown(value): value for value in values.values}
        return known[trial.suggest_categorical(axis.name, list(known))]
    if values.whole:
        return trial.suggest_int(axis.name, int(values.low), int(values.high), log=values.log)
    return trial.suggest_float(axis.name, values.low, values.high, log=values.log)


def _shown(value: Any) -> Any:
    """A value that Optuna accepts as a choice: a list of sizes becomes text, in the syntax of --set."""
    return ",".join(map(str, value)) if isinstance(value, tuple) else value


def _reason(error: Exception) -> str | None:
    """Why a trial failed, if its settings are the cause; None for a bug."""
    if isinstance(error, (TrainingError, ConfigError)):
        return str(error)
    return "out of memory" if memory.ran_out(error) else None
