"""Rounds of following: take new files in, move history and weights on, judge the candidate, swap it in.

Rows are numbered in the order in which they came. A round divides those that the weights have not learnt yet: the older
ones train a candidate, those behind them stop it and calibrate it, and by the newest it is judged against the bundle in
service. So a row judges before it teaches, and it teaches in the round after.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from fieldwise.bundle import bundle
from fieldwise.bundle.predictor import Predictor
from fieldwise.config.errors import FieldwiseError, first_line
from fieldwise.config.progress import Progress
from fieldwise.config.settings import load_config
from fieldwise.data.encode.plan import Plan
from fieldwise.data.encode.prepare import carry_out
from fieldwise.data.encode.split import Split, order_bounds
from fieldwise.data.schema import ROW_ORDER
from fieldwise.evaluation.significance import LEAST_BLOCKS
from fieldwise.follow import judge, rows, versions
from fieldwise.follow.desk import Desk
from fieldwise.follow.journal import Entry
from fieldwise.follow.service import ROUNDS, Service
from fieldwise.train.incremental import settings_of
from fieldwise.train.loop import train

# How often a round that failed is tried again before there are new rows, and after how many rejections we say so.
TRIES, MANY = 3, 3


class Rounds:
    """Begins rounds, and goes on with the one that is open."""

    def __init__(self, desk: Desk, service: Service, progress: Progress) -> None:
        self.desk, self.service, self.progress = desk, service, progress

    def begin(self) -> list[str]:
        """Begins a round if there are enough rows to learn from and to judge by; else returns why not."""
        state, wanted = self.desk.state, self.desk.wanted
        new, again = state.rows - state.judged, 0 < state.failed < TRIES
        if new < wanted.min_rows and not again:
            why = f"{new:,} new rows so far; a round begins with {wanted.min_rows:,} (--min-rows)"
            return [why] if new else []
        facts = {"round": state.rounds + 1, "version": state.current, "end": state.rows}
        if not state.version.learns:
            self.desk.write("began", first=self._kept_from(state.version.seen), cut=[], **facts)
            return []
        first = self._kept_from(state.version.learnt)
        bounds = order_bounds(Split(wanted.split, by=ROW_ORDER), state.rows - first)
        edges = [first, *(first + int(bound) for bound in bounds), state.rows]
        if why := self._no_use(edges):
            return [why]
        settings = {"split": wanted.split, "margin": wanted.margin, "set": wanted.settings, "device": wanted.device}
        self.desk.write("began", first=first, cut=edges[1:3], settings=settings, **facts)
        return []

    def _kept_from(self, row: int) -> int:
        """That row, or where rows of an old version are not kept any more, the first one that is."""
        return max(row, rows.oldest(self.desk.work, self.desk.state.files.values()))

    def _no_use(self, edges: list[int]) -> str:
        """Why rows cannot be learnt from or judged by yet; empty where they can."""
        schema = self.desk.encoders[0].schema
        for place, word in enumerate(("rows to train on", "rows to stop by", "newest rows, to judge by,")):
            first, end = edges[place : place + 2]
            columns = [name for name in (schema.label, schema.weight) if name]
            chunks = partial(rows.read, self.desk.work, list(self.desk.state.files.values()), first, end, columns)
            labels = rows.labels_of(schema, chunks)
            if len(labels) < LEAST_BLOCKS or labels.all() or not labels.any():
                found = f"{int(labels.sum()):,} of {len(labels):,} positive"
                return f"the {word} need both labels, found {found}; they are kept and wait for more"
        return ""

    def go_on(self) -> None:
        """Does the steps of the round that are not done yet."""
        steps: tuple[tuple[str, Callable[[Entry], dict[str, Any]]], ...] = (
            ("prepared", self._prepare),
            ("trained", self._train),
            ("judged", self._judge),
        )
        began = self.desk.state.open["began"]
        for step, work in steps if began["cut"] else ():
            if step not in self.desk.state.open and "failed" not in self.desk.state.open:
                self._try(step, work, began)
        if not began["cut"] and "judged" not in self.desk.state.open:
            self._try("judged", self._measure, began)
        if "failed" in self.desk.state.open:
            self.desk.end("failed", self.desk.state.open["failed"]["why"])
            return
        judged = self.desk.state.open["judged"]
        if "published" not in self.desk.state.open and (judged["accepted"] or self.desk.counts):
            self.desk.write("published", round=began["round"], **self._publish(began, judged["accepted"]))
        if "published" in self.desk.state.open and "swapped" not in self.desk.state.open:
            if self.service.someone_was_here():
                self.desk.end("stopped", "someone put another bundle in its place, or set the link")
                return
            self.service.swap()
        self.desk.end(*self._decision(judged))

    def _try(self, step: str, work: Callable[[Entry], dict[str, Any]], began: Entry) -> None:
        """A step that may fail: then the round ends, and its rows are tried again with later ones."""
        try:
            facts = work(began)
        except Exception as error:
            why = str(error) if isinstance(error, FieldwiseError) else first_line(error)
            self.desk.write("failed", round=began["round"], at=step, why=why)
        else:
            self.desk.write(step, round=began["round"], **facts)

    def _decision(self, judged: Entry) -> tuple[str, str]:
        if judged["accepted"]:
            return "swapped", judged["why"]
        if not self.desk.state.open["began"]["cut"]:
            return "history", judged["why"]
        times = self.desk.state.rejected + 1
        why = judged["why"] + ("; the history was moved on, the weights stay" if self.desk.counts else "")
        if times >= MANY:
            way_out = "look at the new rows (fieldwise evaluate --by), or train anew on all rows"
            why += f"; rejected {times} times in a row: {way_out}"
        return "rejected", why

    def _folder(self, began: Entry, name: str) -> Path:
        folder = self.desk.work / ROUNDS / f"{began['round']:04d}"
        folder.mkdir(parents=True, exist_ok=True)
        return folder / name

    def _rows(self, first: int, end: int) -> Callable[[], Iterator[pa.Table]]:
        return partial(rows.read, self.desk.work, list(self.desk.state.files.values()), first, end)

    def _origin(self, began: Entry) -> Path:
        return versions.run_of(self.desk.work, self.desk.state.versions[began["version"]].run)

    def _prepare(self, began: Entry) -> dict[str, Any]:
        known = bundle.load_encoder(self._origin(began))
        schema, files = known.schema, list(self.desk.state.files.values())
        plan = Plan(
            sources={"train": partial(rows.alike, self.desk.work, files, began["first"], began["end"], schema)},
            label=schema.label,
            split=Split(tuple(began["settings"]["split"]), by=ROW_ORDER),
            weight=schema.weight,
            names={"train": f"the rows of round {began['round']}"},
            known=known,
            recipe=schema.recipe,
            classes=schema.classes,
        )
        facts = carry_out(plan, self._folder(began, "data"), force=True)
        return {name: facts[name] for name in ("rows", "new_ids", "expired", "notes")}

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
        predictor = Predictor.load(versions.bundle_of(self.desk.work, began["version"]))
        found = judge.scored(predictor, (), self._rows(began["first"], began["end"])())
        model = predictor.bundle.config.model
        facts = {"rows": len(found.labels), "positives": int(found.labels.sum()), "current": judge.measured(found)}
        why = f"the history was moved on; the weights stay, because {model} cannot go on with new rows (train anew)"
        return facts | {"accepted": False, "why": why}

    def _publish(self, began: Entry, accepted: bool) -> dict[str, Any]:
        """Makes the next version: the candidate, or the same weights, with a history of all rows."""
        number, before, end = began["round"], self.desk.state.versions[began["version"]], began["end"]
        if accepted:
            run = versions.run_of(self.desk.work, number)
            if not run.exists():
                run.parent.mkdir(exist_ok=True)
                self._folder(began, "run").rename(run)
            source, first, learnt, own = run, began["cut"][0], began["cut"][0], number
        else:
            source, own = versions.bundle_of(self.desk.work, before.number), before.run
            first = self._kept_from(before.seen)
            learnt = before.learnt if began["cut"] else end
        out = versions.publish(source, self.desk.work, number, self._rows(first, end), self.desk.counts)
        if self.desk.wanted.onnx:
            versions.export(out)
        facts = {"version": number, "run": own, "learnt": learnt, "seen": end, "learns": before.learns}
        return facts | {"id": versions.id_of(out), "history_to": self.desk.state.until if self.desk.counts else None}
