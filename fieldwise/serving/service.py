"""What the server does, without HTTP: arms, router, event log. A simulation can call it in its own process."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fieldwise.abtest.event_log import Event, EventLog, Impression
from fieldwise.abtest.router import Router
from fieldwise.bundle import bundle
from fieldwise.config.errors import BundleError, ConfigError, DataError, FieldwiseError, unknown
from fieldwise.evaluation.contributions import Explanation
from fieldwise.serving.engine import Engine
from fieldwise.serving.history_follower import Follower
from fieldwise.serving.trial import score_once, tried

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Arm:
    """A model in service. `model` is the version of its bundle; `follower` is set if the model has a history."""

    name: str
    path: Path
    model: str
    engine: Engine
    columns: frozenset[str]
    follower: Follower | None = None


@dataclass(frozen=True)
class Prediction:
    """Probabilities of rows, in their order, and the arm that gave each of them."""

    request_id: str
    arms: list[str]
    probabilities: list[float]


@dataclass(frozen=True)
class Ranked:
    """Indices of the best candidates in the request, the most probable first."""

    request_id: str
    arm: str
    order: list[int]
    probabilities: list[float]


class Service:
    """Loaded arms that answer; `reload` swaps them between two requests."""

    def __init__(
        self,
        paths: Sequence[Path],
        router: Router,
        log: EventLog | Callable[[], EventLog] | None = None,
        clock: Callable[[], float] = time.time,
        trial: Callable[[Path], str] = tried,
    ) -> None:
        """`log` may be a function that opens one; it is called after all bundles are loaded, so a bad bundle creates
        no log file. `trial` tests a bundle before a reload: it returns the version that may be loaded, or raises."""
        self.router, self.clock, self.trial = router, clock, trial
        self._reloading = threading.Lock()
        self.log: EventLog | None = None
        pairs = zip(router.arms, paths, strict=True)
        self.arms = tuple(_load(name, path) for name, path in pairs)
        if router.field and not any(router.field in arm.columns for arm in self.arms):
            known = {name for arm in self.arms for name in arm.columns}
            raise ConfigError(unknown("split field", router.field, known))
        self.columns = self._known_columns()
        self.log = log() if callable(log) else log
        try:
            self.arms = tuple(self._following(arm) for arm in self.arms)
        except BaseException:
            self.close()
            raise

    def _following(self, arm: Arm) -> Arm:
        """The arm; if it has a history, with a follower that has read the log to its end."""
        if self.log is None or not arm.engine.has_history:
            return arm
        follower = Follower(arm.engine, arm.model, self.log)
        follower.catch_up()
        return replace(arm, follower=follower)

    def _known_columns(self) -> frozenset[str]:
        return frozenset().union(*(arm.columns for arm in self.arms))

    def reload(self) -> dict[str, bool]:
        """Reloads the bundles that changed on disk: all of them, or none if one is broken. Returns which arms changed.

        A child process loads and scores each first, so a file that crashes a library does not crash the server.
        Requests in progress finish with the arms they started with.
        """
        with self._reloading:
            old = self.arms
            new = tuple(
                arm
                if fingerprint(arm.path) == arm.model
                else self._following(_load(arm.name, arm.path, self.trial(arm.path)))
                for arm in old
            )
            for arm in new:
                if arm.follower:
                    arm.follower.catch_up()
            self.arms = new
            self.columns = self._known_columns()
            return {arm.name: arm is not before for arm, before in zip(new, old, strict=True)}

    def catch_up(self) -> None:
        """Counts the log's new responses in all histories."""
        for arm in self.arms:
            if arm.follower:
                arm.follower.catch_up()

    @property
    def has_history(self) -> bool:
        return any(arm.follower for arm in self.arms)

    def check(self, row: Row, where: str) -> None:
        """Refuses a row with a name that no arm knows; the error suggests the nearest one."""
        if not row.keys() <= self.columns:
            name = next(name for name in row if name not in self.columns)
            raise DataError(f"{unknown('field', name, self.columns)} ({where})")

    def predict(self, rows: Sequence[Row], arm: str = "", log: bool = True) -> Prediction:
        """The probability of each row, from the arm of its unit or from a named one."""
        arms, request = self.arms, new_id()
        for place, row in enumerate(rows):
            self.check(row, f"row {place}")
        units = [self.router.unit(row) for row in rows]
        forced = self.router.named(arm) if arm else None
        chosen = [self.router.arm(unit, f"{request}/{p}") if forced is None else forced for p, unit in enumerate(units)]
        probabilities = [0.0] * len(rows)
        for number in sorted(set(chosen)):
            places = [place for place, one in enumerate(chosen) if one == number]
            own = _known([rows[place] for place in places], arms[number], self.columns)
            for place, probability in zip(places, arms[number].engine.predict(own).tolist(), strict=True):
                probabilities[place] = probability
        if self.log and log:
            self.log.check_room()
            pairs = list(zip(chosen, units, strict=True))
            for part, (number, unit) in enumerate(dict.fromkeys(pairs)):
                places = [place for place, pair in enumerate(pairs) if pair == (number, unit)]
                self._show(
                    Impression(
                        request_id=request,
                        part=part,
                        kind="predict",
                        arm=arms[number].name,
                        unit=unit,
                        model=arms[number].model,
                        context={},
                        rows=[rows[place] for place in places],
                        places=places,
                        probabilities=[probabilities[place] for place in places],
                        forced=forced is not None,
                        time=self.clock(),
                    )
                )
        return Prediction(request, [arms[number].name for number in chosen], probabilities)

    def rank(
        self, context: Row, candidates: Sequence[Row], top: int | None = None, arm: str = "", log: bool = True
    ) -> Ranked:
        """The best candidates by the context's arm, or a named one; the log gets those that are returned."""
        arms, request = self.arms, new_id()
        self.check(context, "context")
        for place, row in enumerate(candidates):
            self.check(row, f"candidate {place}")
        unit = self.router.unit(context)
        number = self.router.named(arm) if arm else self.router.arm(unit, request)
        chosen = arms[number]
        (known_context,) = _known([context], chosen, self.columns)
        order, probabilities = chosen.engine.rank(known_context, _known(candidates, chosen, self.columns), top)
        found = Ranked(request, chosen.name, order.tolist(), probabilities.tolist())
        if self.log and log:
            self._show(
                Impression(
                    request_id=request,
                    part=0,
                    kind="rank",
                    arm=chosen.name,
                    unit=unit,
                    model=chosen.model,
                    context=context,
                    rows=[candidates[place] for place in found.order],
                    places=found.order,
                    probabilities=found.probabilities,
                    forced=bool(arm),
                    time=self.clock(),
                )
            )
        return found

    def _show(self, impression: Impression) -> None:
        if self.log and impression.rows:
            self.log.show(impression)

    def explain(self, row: Row, arm: str = "") -> tuple[str, Explanation]:
        """Explains a row's probability by its arm, or a named one; nothing is logged."""
        self.check(row, "row")
        number = self.router.named(arm) if arm else self.router.arm(self.router.unit(row), new_id())
        chosen = self.arms[number]
        (own,) = _known([row], chosen, self.columns)
        return chosen.name, chosen.engine.explain(own)

    def respond(self, event: Event) -> Future[bool]:
        """Logs a response; see EventLog.respond."""
        if self.log is None:
            raise FieldwiseError("this server keeps no event log; start it without --log none")
        return self.log.respond(event)

    def close(self) -> None:
        if self.log:
            self.log.close()


def _load(name: str, path: Path, version: str = "") -> Arm:
    """Loads a bundle, of this version if one is given, and scores a row with it."""
    engine = Engine.load(path)
    if fingerprint(path) != engine.version or version not in ("", engine.version):
        raise BundleError(f"the bundle was replaced while it was read; load it again ({path})")
    with bundle.read_with_care(path):
        score_once(engine)
    return Arm(name, path, engine.version, engine, frozenset(engine.columns))


def new_id() -> str:
    return uuid.uuid4().hex


def _known(rows: Sequence[Row], arm: Arm, columns: frozenset[str]) -> Sequence[Row]:
    """Rows without the columns that only other arms know."""
    own = arm.columns
    if own == columns:
        return rows
    return [{name: value for name, value in row.items() if name in own} for row in rows]


def fingerprint(path: Path) -> str:
    """The version of a bundle; checks every file of it."""
    return bundle.digest_of(bundle.checked(path) / "bundle.json")[:12]
