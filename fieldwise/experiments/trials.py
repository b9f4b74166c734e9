"""A study: a folder of trials, kept by Optuna, that several processes share; any of them may be killed.

identity.json (what is tuned)  study.log (Optuna's journal)  study.lock  trials/ (running trials)

Each process holds a lock on its trial, which the system releases when the process dies. A running trial without a lock
is therefore one whose process was killed: the next process continues it.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock, Timeout

from fieldwise.config.errors import BundleError, ConfigError, TrainingError
from fieldwise.config.files import write_whole

NAME = "fieldwise"
# Words for Optuna's states of a trial.
WORDS = {"COMPLETE": "done", "PRUNED": "pruned", "FAIL": "failed", "RUNNING": "running", "WAITING": "waiting"}
# The fewest evaluations before a trial may be stopped early, and the fewest finished trials to compare it with.
WARM_UP, COMPANY = 4, 5


class Study:
    """The study of `identity` in a folder, new or continued; `first` is the point of trial 0."""

    def __init__(self, out: Path, identity: dict[str, Any], first: dict[str, Any], seed: int) -> None:
        self.optuna, self.out, self.seed = import_optuna(), out, seed
        self.states = self.optuna.trial.TrialState
        self.lock = _claim(out, identity)
        with self.lock, _damage_named(out):
            self._open(first)

    def _open(self, first: dict[str, Any]) -> None:
        optuna = self.optuna
        backend = optuna.storages.journal.JournalFileBackend(str(self.out / "study.log"), lock_obj=self.lock)
        self.storage = optuna.storages.JournalStorage(backend)
        pruner = optuna.pruners.MedianPruner(n_startup_trials=COMPANY, n_warmup_steps=WARM_UP, n_min_trials=COMPANY)
        self.study = optuna.create_study(storage=self.storage, study_name=NAME, pruner=pruner, load_if_exists=True)
        if not self.trials:
            self.study.enqueue_trial(first)

    @property
    def trials(self) -> list[Any]:
        """All trials, by number."""
        found: list[Any] = self.study.get_trials(deepcopy=False)
        return found

    @property
    def done(self) -> list[Any]:
        """The completed trials, the best first."""
        ended = [trial for trial in self.trials if trial.state == self.states.COMPLETE]
        return sorted(ended, key=lambda trial: (trial.value, trial.number))

    @property
    def counts(self) -> dict[str, int]:
        """How many trials are done, pruned, failed, running and waiting."""
        found = [WORDS[trial.state.name] for trial in self.trials]
        return {word: found.count(word) for word in WORDS.values() if word in found}

    def take(self, trials: int) -> Any:
        """A trial for this process to run, an interrupted or a new one; None if there are enough."""
        with self.lock:
            self._tidy()
            if sum(trial.state != self.states.WAITING for trial in self.trials) >= trials:
                return None
            trial = self.study.ask()
            self.hold = self._hold_of(trial.number)
            self.hold.acquire(timeout=0)
        # A seed for each trial: after an interruption the study proposes the same points.
        seed = np.random.SeedSequence([self.seed, trial.number]).generate_state(1)[0]
        self.study.sampler = self.optuna.samplers.TPESampler(seed=int(seed))
        return trial

    def tell(self, trial: Any, word: str, loss: float | None = None) -> None:
        """Records the end of this process's trial: done, pruned, failed, or `waiting` for the next process."""
        state = next(self.states[name] for name, known in WORDS.items() if known == word)
        # In one locked step: another process must not find a running trial without a lock.
        with self.lock:
            if state == self.states.WAITING:
                self._put_back(trial.number)
            else:
                self.study.tell(trial, loss, state)
            self.hold.release()
            self._tidy()

    def _tidy(self) -> None:
        """Puts running trials without a lock back, and removes the files of finished ones."""
        for trial in self.trials:
            if trial.state.is_finished():
                shutil.rmtree(self.folder_of(trial.number), ignore_errors=True)
                self.folder_of(trial.number).with_suffix(".lock").unlink(missing_ok=True)
            elif trial.state == self.states.RUNNING:
                with suppress(Timeout), self._hold_of(trial.number).acquire(timeout=0):
                    self._put_back(trial.number)
        with suppress(OSError):
            (self.out / "trials").rmdir()

    def _put_back(self, number: int) -> None:
        study = self.storage.get_study_id_from_name(NAME)
        trial = self.storage.get_trial_id_from_study_id_trial_number(study, number)
        self.storage.set_trial_state_values(trial, self.states.WAITING)

    def folder_of(self, number: int) -> Path:
        """The folder of a trial's run while it runs."""
        return self.out / "trials" / str(number)

    def _hold_of(self, number: int) -> FileLock:
        (self.out / "trials").mkdir(exist_ok=True)
        return FileLock(self.folder_of(number).with_suffix(".lock"))

    def importance(self, names: set[str]) -> dict[str, float]:
        """The importance of each of these settings for the loss of trials, by a random forest.

        Includes pruned trials, which have the bad values, and uses ranks, so one bad trial does not dominate.
        """
        judged = [trial for trial in self.trials if trial.value is not None and names <= trial.params.keys()]
        ranked = self.optuna.create_study()
        for rank, trial in enumerate(sorted(judged, key=lambda trial: trial.value)):
            facts = {name: trial.params[name] for name in names}, {name: trial.distributions[name] for name in names}
            ranked.add_trial(self.optuna.trial.create_trial(params=facts[0], distributions=facts[1], value=rank))
        forest = self.optuna.importance.MeanDecreaseImpurityImportanceEvaluator(seed=self.seed % (1 << 32))
        found = self.optuna.importance.get_param_importances(ranked, evaluator=forest) if judged else {}
        return {name: float(share) for name, share in found.items()}


class _StudyLock:
    """One process at a time writes to the study; drops the partial line that a killed process left."""

    def __init__(self, file: Path) -> None:
        self.file, self.lock = file, FileLock(file.with_suffix(".lock"))

    def acquire(self) -> bool:
        self.lock.acquire()
        if self.file.exists():
            _drop_partial_line(self.file)
        return True

    def release(self) -> None:
        self.lock.release()

    def __enter__(self) -> None:
        self.acquire()

    def __exit__(self, *error: object) -> None:
        self.release()


def _drop_partial_line(path: Path) -> None:
    with path.open("r+b") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - 1))
        if file.read() not in (b"", b"\n"):
            file.seek(0)
            file.truncate(file.read().rfind(b"\n") + 1)


def _claim(out: Path, identity: dict[str, Any]) -> _StudyLock:
    """Takes a new folder or one of the same study; refuses another study's."""
    check_free(out)
    out.mkdir(parents=True, exist_ok=True)
    known, lock = out / "identity.json", _StudyLock(out / "study.log")
    with lock:
        if not known.exists():
            write_whole(known, json.dumps(identity, indent=1))
        with _damage_named(out):
            before = json.loads(known.read_text(encoding="utf-8"))
    for key in identity:
        if before.get(key) != identity[key]:
            other = f"{'another' if key == 'model' else 'other'} {key}"
            raise TrainingError(f"the study was begun with {other}; keep to its own, or choose another --out ({out})")
    return lock


def check_free(out: Path) -> bool:
    """Whether the folder is free for a new study; refuses one with other contents."""
    if (out / "identity.json").is_file():
        return False
    if out.exists() and (not out.is_dir() or {path.name for path in out.iterdir()} - {"study.lock"}):
        raise TrainingError(f"{out} holds something that is no study; choose another --out")
    return True


@contextmanager
def _damage_named(out: Path) -> Iterator[None]:
    try:
        yield
    except (ValueError, KeyError) as error:
        raise BundleError(f"the study is damaged: {error}; begin anew with another --out ({out})") from None


def import_optuna() -> Any:
    """Optuna, which only tuning needs; an error says how to install it."""
    try:
        import optuna
    except ImportError:
        raise ConfigError("tuning needs Optuna, which is not installed: pip install fieldwise[tune]") from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna
