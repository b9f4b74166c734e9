"""Rounds of following: take new files in, move history and weights on, judge the candidate, swap it in.

Rows are numbered in the order in which they came. A round divides those that the weights have not learnt yet: the older
ones train a candidate, those behind them stop it and calibrate it, and by the newest it is judged against the bundle in
service. So a row judges before it teaches, and it teaches in the round after.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from fieldwise.bundle import bundle
from fieldwise.bundle.members import Blend, parts_of
from fieldwise.bundle.predictor import Predictor
from fieldwise.config.errors import BundleError, ConfigError, DataError, FieldwiseError, first_line
from fieldwise.config.progress import Progress
from fieldwise.config.settings import load_config
from fieldwise.data.encode.encoder import Encoder
from fieldwise.data.encode.plan import Plan
from fieldwise.data.encode.prepare import carry_out
from fieldwise.data.encode.split import Split, order_bounds
from fieldwise.data.schema import ROW_ORDER
from fieldwise.evaluation.significance import LEAST_BLOCKS
from fieldwise.follow import intake, judge, rows, server, versions
from fieldwise.follow.journal import Entry, Journal, State, Version
from fieldwise.nn.model import Model
from fieldwise.train.incremental import settings_of
from fieldwise.train.loop import train

ROUNDS = "rounds"
# How often a round that failed is tried again before there are new rows, and after how many rejections we say so.
TRIES, MANY = 3, 3


@dataclass(frozen=True)
class Wanted:
    """What is followed, and how. `split` are the shares of rows to train on, to stop by and to judge by."""

    logs: Path
    bundle: Path
    work: Path
    split: tuple[float, float, float] = (0.7, 0.15, 0.15)
    margin: float = 1.0
    min_rows: int = 1000
    min_age: float = 60.0
    files: int = 0
    keep: int = 5
    settings: tuple[str, ...] = ()
    device: str = ""
    skip_bad_rows: bool = False
    servers: tuple[str, ...] = ()
    token: str = ""
    onnx: bool = False
    after: str = ""

    def __post_init__(self) -> None:
        Split(self.split)
        if not min(self.split) > 0:
            found = ",".join(f"{share:g}" for share in self.split)
            raise ConfigError(f"--split needs rows to train on, to stop by and to judge by, found {found}")
        for name, least in (("margin", 0), ("min_rows", 1), ("min_age", 0), ("files", 0), ("keep", 1)):
            if not getattr(self, name) >= least:
                found = f"found {getattr(self, name):g}"
                raise ConfigError(f"--{name.replace('_', '-')} takes {least} or more, {found}")


class Follower:
    """Follows a folder of logs with a bundle. One process at a time; `tell` hears of each line of the journal."""

    def __init__(self, wanted: Wanted, tell: Callable[[Entry], None] = lambda entry: None) -> None:
        self.wanted, self.tell = wanted, tell
        self.work = wanted.work
        self.work.mkdir(parents=True, exist_ok=True)
        self.journal = Journal(self.work)
        self.progress: Progress = Progress()
        # The encoders of a version, which are read once.
        self._known: tuple[int, list[Encoder]] = (-1, [])

    @property
    def state(self) -> State:
        return self.journal.state

    def write(self, step: str, **facts: Any) -> None:
        self.tell(self.journal.write(step, **facts))

    def cycle(self) -> bool:
        """Ends what was begun, takes new files in, and does a round if there are enough rows; returns whether it did.

        Raises FieldwiseError for what a person must see to; the next cycle goes on with the rest.
        """
        self._settle()
        try:
            if not self.state.open:
                self._look_for_rows()
            done = bool(self.state.open)
            if done:
                self._round()
        finally:
            self._tell_servers()
        return done

    def _look_for_rows(self) -> None:
        """Takes new files in and begins a round; where it does not, the journal says what it waits for."""
        most = self.wanted.files or sys.maxsize
        while True:
            reasons, more = self._take_files(most)
            reasons += self._begin()
            if self.state.open or not more:
                break
            most += self.wanted.files  # so few files were not enough
        why = "; ".join(reasons)
        if why and not self.state.open and self.state.waits != why:
            self.write("waits", why=why)

    def go_back(self, version: int) -> None:
        """Serves an older version again; the next round goes on from it, with the rows that it had not learnt."""
        self._settle()
        if version not in self.state.versions or not versions.bundle_of(self.work, version).exists():
            known = [str(n) for n in self.state.versions if versions.bundle_of(self.work, n).exists()]
            raise ConfigError(f"there is no version {version} to go back to; there are: {', '.join(known)}")
        if self.state.open:
            self._end("stopped", f"someone went back to version {version}")
        self.write("going back", version=version)
        self._settle()
        self._tell_servers()

    # What is served

    def _settle(self) -> None:
        """Ends a swap that was begun, takes over a bundle that someone else put in place, and removes what is left."""
        if self.state.target != self.state.current and not self.state.open and not self._someone_was_here():
            self._swap()
        self._look_at_bundle()
        self._tidy()

    def _look_at_bundle(self) -> None:
        link = self.wanted.bundle
        found = versions.served(link, self.work)
        if self.state.current < 0:
            versions.refuse_unserved(link)
            self._adopt("the bundle as it was found", after=self.wanted.after)
        elif not link.exists():
            versions.serve(link, versions.bundle_of(self.work, self.state.current))
        elif found is not None and found != self.state.current and not self.state.open:
            self.write("going back", version=found, why="someone set the link")
            self._swap()
        elif found is None and self._someone_was_here():
            if self.state.open:
                self._end("stopped", "someone put another bundle in its place")
            self._adopt("someone put it in the place of the one before; it counts as having learnt all rows so far")

    def _adopt(self, why: str, **more: Any) -> None:
        link, number = self.wanted.bundle, self.state.rounds + 1 if self.state.versions else 0
        opened = bundle.load(link)
        learns = isinstance(opened.model, Model)
        encoders = [one for one, _ in parts_of(opened.encoder)]
        self._check(learns, encoders, opened.config.model)
        kept = versions.adopt(link.resolve(), self.work, number)
        rows_so_far = self.state.rows
        facts: dict[str, Any] = {"version": number, "run": number, "learnt": rows_so_far, "seen": rows_so_far}
        facts |= {"id": versions.id_of(kept), "model": opened.config.model, "learns": learns, "why": why}
        self.write("adopted", **facts, **more)

    def _check(self, learns: bool, encoders: list[Encoder], model: str) -> None:
        """Refuses a bundle with which there is nothing to do."""
        intake.clock_of(encoders)
        if not learns and not any(encoder.counts_rows for encoder in encoders):
            rule = f"{model} cannot go on with new rows, and has no history that could"
            raise BundleError(f"{rule}; train it anew on all rows, or follow a network ({self.wanted.bundle})")
        if any(ROW_ORDER in encoder.schema.columns for encoder in encoders):
            raise BundleError(f"rows are divided in their order; a column cannot be named '{ROW_ORDER}', rename it")

    def _swap(self) -> None:
        number = self.state.target
        more = {"round": self.state.open["began"]["round"]} if self.state.open else {}
        versions.serve(self.wanted.bundle, versions.bundle_of(self.work, number))
        self.write("swapped", version=number, **more)

    def _someone_was_here(self) -> bool:
        """Whether the path leads to another bundle than we left or are about to leave there: then that one stays."""
        link = self.wanted.bundle
        found = versions.served(link, self.work)
        if found is not None:
            return found not in (self.state.current, self.state.target)
        return link.exists() and versions.id_of(bundle.locate(link)) != self.state.version.id

    def _tidy(self) -> None:
        """Removes what nothing needs any more: older versions, rows that all of those kept have learnt, old rounds."""
        known: dict[int, Version] = self.state.versions
        newest = sorted(known)[-self.wanted.keep :]
        kept = {*newest, self.state.current, 0} & set(known)
        here = self.state.open["began"]["round"] if self.state.open else 0
        versions.drop_others(self.work, kept | {here}, {known[number].run for number in kept} | {here})
        needed = [known[number].learnt for number in kept if number or self.state.current == 0]
        rows.drop(self.work, self.state.files.values(), min(needed, default=0))
        for folder in (self.work / ROUNDS).glob("*"):
            if folder.name != f"{here:04d}":
                shutil.rmtree(folder, ignore_errors=True)

    def _tell_servers(self) -> None:
        """Tells each server of the version in service, until it has answered for it."""
        for address in self.wanted.servers:
            current = self.state.current
            if self.state.told.get(address) == current:
                continue
            try:
                answer = server.reload(address, self.wanted.token, self.state.version.id)
                self.write("told", server=address, version=current, workers=answer.get("workers"))
            except FieldwiseError as error:
                if self.state.silent.get(address) != str(error):
                    self.write("not told", server=address, version=current, why=str(error))

    # What is new

    def _take_files(self, most: int) -> tuple[list[str], bool]:
        """Takes in what is new, in the order of the names, until there are so many files for the next round. Returns
        why some files are left for later, and whether others were left because these are enough."""
        state = self.state
        reasons: list[str] = []
        self._refuse_changed()
        clock = intake.clock_of(self._encoders())
        for path in intake.listed(self.wanted.logs, state.after):
            if path.name in state.files or self._was_refused(path):
                continue
            if sum(taken.first >= state.judged for taken in state.files.values()) >= most:
                return reasons, True
            try:
                self._take(path, clock)
            except (intake.Unfinished, FileNotFoundError) as error:
                reasons.append(f"{path.name}: {error}")
                if clock:  # rows of later files would run ahead of it
                    break
            except (DataError, ConfigError, pa.ArrowException) as error:
                self._refuse(path, str(error) if isinstance(error, FieldwiseError) else first_line(error))
        return reasons, False

    def _take(self, path: Path, clock: str) -> None:
        """Takes one file in."""
        encoders, wanted = self._encoders(), self.wanted
        intake.usable_name(path, encoders[0].schema.recipe)
        if why := intake.unfinished(path, wanted.min_age):
            raise intake.Unfinished(why)
        reading = intake.Reading(encoders, clock, self._until(encoders), wanted.skip_bad_rows)
        number = len(self.state.files) + 1
        self.write("taken", number=number, **intake.take(path, reading, rows.path_of(self.work, number)))

    def _refuse_changed(self) -> None:
        for path, why in intake.changed(self.wanted.logs, self.state.files):
            if not self._was_refused(path):
                self._refuse(path, why)
            raise DataError(why)

    def _refuse(self, path: Path, why: str) -> None:
        found = path.stat()
        self.write("refused", file=path.name, size=found.st_size, modified=found.st_mtime_ns, why=why)

    def _was_refused(self, path: Path) -> bool:
        found = path.stat()
        return bool(self.state.refused.get(path.name) == (found.st_size, found.st_mtime_ns))

    def _until(self, encoders: list[Encoder]) -> float | None:
        """The last moment that counts: of the last row, or of the history as it was found."""
        if self.state.until is not None:
            return float(self.state.until)
        ends = [encoder.end for encoder in encoders if encoder.counts_rows and np.isfinite(encoder.end)]
        return max(ends, default=None)

    def _encoders(self) -> list[Encoder]:
        """The encoders of the bundle in service, without its models; nobody changes them."""
        current = self.state.current
        if self._known[0] != current:
            folder = versions.bundle_of(self.work, current)
            members = bundle.member_folders(folder) if (folder / Blend.file).is_file() else [folder]
            self._known = current, [bundle.load_encoder(member) for member in members]
        return self._known[1]

    # A round

    def _begin(self) -> list[str]:
        """Begins a round if there are enough rows to learn from and to judge by; else returns why not."""
        state, wanted = self.state, self.wanted
        new, again = state.rows - state.judged, 0 < state.failed < TRIES
        if new < wanted.min_rows and not again:
            why = f"{new:,} new rows so far; a round begins with {wanted.min_rows:,} (--min-rows)"
            return [why] if new else []
        facts = {"round": state.rounds + 1, "version": state.current, "end": state.rows}
        if not state.version.learns:
            self.write("began", first=state.version.seen, cut=[], **facts)
            return []
        first = max(state.version.learnt, rows.oldest(self.work, state.files.values()))
        bounds = order_bounds(Split(wanted.split, by=ROW_ORDER), state.rows - first)
        edges = [first, *(first + int(bound) for bound in bounds), state.rows]
        if why := self._no_use(edges):
            return [why]
        settings = {"split": wanted.split, "margin": wanted.margin, "set": wanted.settings, "device": wanted.device}
        self.write("began", first=first, cut=edges[1:3], settings=settings, **facts)
        return []

    def _no_use(self, edges: list[int]) -> str:
        """Why rows cannot be learnt from or judged by yet; empty where they can."""
        schema = self._encoders()[0].schema
        for place, word in enumerate(("rows to train on", "rows to stop by", "newest rows, to judge by,")):
            first, end = edges[place : place + 2]
            columns = [schema.label]
            chunks = partial(rows.read, self.work, list(self.state.files.values()), first, end, columns)
            labels = rows.labels_of(schema, chunks)
            if len(labels) < LEAST_BLOCKS or labels.all() or not labels.any():
                found = f"{int(labels.sum()):,} of {len(labels):,} positive"
                return f"the {word} need both labels, found {found}; they are kept and wait for more"
        return ""

    def _round(self) -> None:
        """Does the steps of the round that are not done yet."""
        steps: tuple[tuple[str, Callable[[Entry], dict[str, Any]]], ...] = (
            ("prepared", self._prepare),
            ("trained", self._train),
            ("judged", self._judge),
        )
        began = self.state.open["began"]
        for step, work in steps if began["cut"] else ():
            if step not in self.state.open and "failed" not in self.state.open:
                self._try(step, work, began)
        if not began["cut"] and "judged" not in self.state.open:
            self._try("judged", self._measure, began)
        if "failed" in self.state.open:
            self._end("failed", self.state.open["failed"]["why"])
            return
        judged = self.state.open["judged"]
        if "published" not in self.state.open and (judged["accepted"] or self._counts):
            self.write("published", round=began["round"], **self._publish(began, judged["accepted"]))
        if "published" in self.state.open and "swapped" not in self.state.open:
            if self._someone_was_here():
                self._end("stopped", "someone put another bundle in its place, or set the link")
                return
            self._swap()
        self._end(*self._decision(judged))

    def _try(self, step: str, work: Callable[[Entry], dict[str, Any]], began: Entry) -> None:
        """A step that may fail: then the round ends, and its rows are tried again with later ones."""
        try:
            facts = work(began)
        except (FieldwiseError, OSError, MemoryError) as error:
            why = str(error) if isinstance(error, FieldwiseError) else first_line(error)
            self.write("failed", round=began["round"], at=step, why=why)
        except Exception as error:
            self.write("failed", round=began["round"], at=step, why=first_line(error))
        else:
            self.write(step, round=began["round"], **facts)

    def _end(self, decision: str, why: str) -> None:
        self.write("done", round=self.state.open["began"]["round"], decision=decision, why=why)
        self._tidy()

    def _decision(self, judged: Entry) -> tuple[str, str]:
        if judged["accepted"]:
            return "swapped", judged["why"]
        if not self.state.open["began"]["cut"]:
            return "history", judged["why"]
        times = self.state.rejected + 1
        why = judged["why"] + ("; the history was moved on, the weights stay" if self._counts else "")
        if times >= MANY:
            way_out = "look at the new rows (fieldwise evaluate --by), or train anew on all rows"
            why += f"; rejected {times} times in a row: {way_out}"
        return "rejected", why

    @property
    def _counts(self) -> bool:
        """Whether the bundle in service has a history."""
        return any(encoder.counts_rows for encoder in self._encoders())

    def _folder(self, began: Entry, name: str) -> Path:
        folder = self.work / ROUNDS / f"{began['round']:04d}"
        folder.mkdir(parents=True, exist_ok=True)
        return folder / name

    def _rows(self, first: int, end: int) -> Callable[[], Iterator[pa.Table]]:
        return partial(rows.read, self.work, list(self.state.files.values()), first, end)

    def _origin(self, began: Entry) -> Path:
        return versions.run_of(self.work, self.state.versions[began["version"]].run)

    def _prepare(self, began: Entry) -> dict[str, Any]:
        known = bundle.load_encoder(self._origin(began))
        schema = known.schema
        plan = Plan(
            sources={"train": self._rows(began["first"], began["end"])},
            label=schema.label,
            split=Split(tuple(began["settings"]["split"]), by=ROW_ORDER),
            weight=schema.weight,
            names={"train": f"the rows of round {began['round']}"},
            known=known,
            recipe=schema.recipe,
            classes=schema.classes,
        )
        facts = carry_out(plan, self._folder(began, "data"), force=True)
        return {name: facts[name] for name in ("rows", "new_ids", "notes")}

    def _train(self, began: Entry) -> dict[str, Any]:
        given, origin = began["settings"], self._origin(began).absolute()
        base = {"device": given["device"]} if given["device"] else {}
        config = load_config(None, given["set"], base, settings_of(origin))
        data, run = self._folder(began, "data"), self._folder(began, "run")
        report = train(config, data, run, resume=True, progress=self.progress, pairs=False)
        found = {name: report[name] for name in ("epochs", "best_epoch", "warnings", "seconds")}
        return found | {"valid": report["valid"]["log_loss"]}

    def _judge(self, began: Entry) -> dict[str, Any]:
        """Both bundles' metrics on the newest rows; each begins with the history of where its weights stopped."""
        (a, b), end, device = began["cut"], began["end"], began["settings"]["device"] or "cpu"
        found = []
        for source, first in ((self._folder(began, "run"), a), (self._origin(began), began["first"])):
            predictor = Predictor.load(source, device)
            found.append(judge.scored(predictor, self._rows(first, b)(), self._rows(b, end)()))
        result = judge.verdict(found[0], found[1], began["settings"]["margin"])
        return result.facts | {"accepted": result.accepted, "why": result.why}

    def _measure(self, began: Entry) -> dict[str, Any]:
        """The bundle's own metrics on all new rows, where only its history goes on."""
        predictor = Predictor.load(versions.bundle_of(self.work, began["version"]))
        found = judge.scored(predictor, (), self._rows(began["first"], began["end"])())
        model = predictor.bundle.config.model
        facts = {"rows": len(found.labels), "positives": int(found.labels.sum()), "current": judge.measured(found)}
        why = f"the history was moved on; the weights stay, because {model} cannot go on with new rows (train anew)"
        return facts | {"accepted": False, "why": why}

    def _publish(self, began: Entry, accepted: bool) -> dict[str, Any]:
        """Makes the next version: the candidate, or the same weights, with a history of all rows."""
        number, before, end = began["round"], self.state.versions[began["version"]], began["end"]
        if accepted:
            run = versions.run_of(self.work, number)
            if not run.exists():
                run.parent.mkdir(exist_ok=True)
                self._folder(began, "run").rename(run)
            source, first, learnt, own = run, began["cut"][0], began["cut"][0], number
        else:
            source, first, own = versions.bundle_of(self.work, before.number), before.seen, before.run
            learnt = before.learnt if began["cut"] else end
        out = versions.publish(source, self.work, number, self._rows(first, end), self._counts)
        if self.wanted.onnx:
            versions.export(out)
        facts = {"version": number, "run": own, "learnt": learnt, "seen": end, "learns": before.learns}
        return facts | {"id": versions.id_of(out)}
