"""What is served: the link, bundles that come from outside, the way back, servers to tell, versions to remove."""

from __future__ import annotations

import shutil
from typing import Any

from fieldwise.bundle import bundle
from fieldwise.bundle.members import parts_of
from fieldwise.config.errors import BundleError, ConfigError, FieldwiseError
from fieldwise.data.encode.encoder import Encoder
from fieldwise.data.schema import ROW_ORDER
from fieldwise.follow import intake, rows, server, versions
from fieldwise.follow.desk import Desk
from fieldwise.follow.journal import Version
from fieldwise.nn.model import Model

# The folder of the round that goes on.
ROUNDS = "rounds"


class Service:
    """Keeps the link, and what it may lead to."""

    def __init__(self, desk: Desk) -> None:
        self.desk = desk

    def settle(self) -> None:
        """Ends a swap that was begun, takes over a bundle that someone else put in place, and removes what is left."""
        state = self.desk.state
        if state.target != state.current and not state.open and not self.someone_was_here():
            self.swap()
        self._look_at_bundle()
        self.tidy()

    def _look_at_bundle(self) -> None:
        state, link = self.desk.state, self.desk.wanted.bundle
        found = versions.served(link, self.desk.work)
        if state.current < 0:
            versions.refuse_unserved(link)
            versions.refuse_followed(link, self.desk.work)
            self._adopt("the bundle as it was found", after=self.desk.wanted.after)
        elif not link.exists():
            versions.serve(link, versions.bundle_of(self.desk.work, state.current))
        elif found is not None and found != state.current and not state.open:
            self.desk.write("going back", version=found, why="someone set the link")
            self.swap()
        elif found is None and self.someone_was_here():
            if state.open:
                self.desk.end("stopped", "someone put another bundle in its place")
            self._adopt("someone put it in the place of the one before; it counts as having learnt all rows so far")

    def _adopt(self, why: str, **more: Any) -> None:
        link, number = self.desk.wanted.bundle, self.desk.state.rounds + 1 if self.desk.state.versions else 0
        opened = bundle.load(link)
        learns = isinstance(opened.model, Model)
        encoders = [one for one, _ in parts_of(opened.encoder)]
        self._check(learns, encoders, opened.config.model)
        self.desk.claim()
        kept = versions.adopt(link.resolve(), self.desk.work, number)
        if self.desk.wanted.onnx:  # for the way back
            versions.export(kept)
        rows_so_far = self.desk.state.rows
        facts: dict[str, Any] = {"version": number, "run": number, "learnt": rows_so_far, "seen": rows_so_far}
        facts |= {"id": versions.id_of(kept), "model": opened.config.model, "learns": learns, "why": why}
        self.desk.write("adopted", **facts, **more)

    def _check(self, learns: bool, encoders: list[Encoder], model: str) -> None:
        """Refuses a bundle with which there is nothing to do."""
        intake.clock_of(encoders)
        if not learns and not any(encoder.counts_rows for encoder in encoders):
            rule = f"{model} cannot go on with new rows, and has no history that could"
            raise BundleError(f"{rule}; train it anew on all rows, or follow a network ({self.desk.wanted.bundle})")
        if any(ROW_ORDER in encoder.schema.columns for encoder in encoders):
            raise BundleError(f"rows are divided in their order; a column cannot be named '{ROW_ORDER}', rename it")

    def swap(self) -> None:
        """Makes the link lead to the version that shall be served."""
        state = self.desk.state
        more = {"round": state.open["began"]["round"]} if state.open else {}
        versions.serve(self.desk.wanted.bundle, versions.bundle_of(self.desk.work, state.target))
        self.desk.write("swapped", version=state.target, **more)

    def someone_was_here(self) -> bool:
        """Whether the path leads to another bundle than we left or are about to leave there: then that one stays."""
        link = self.desk.wanted.bundle
        found = versions.served(link, self.desk.work)
        if found is not None:
            return found not in (self.desk.state.current, self.desk.state.target)
        return link.exists() and versions.id_of(bundle.locate(link)) != self.desk.state.version.id

    def tidy(self) -> None:
        """Removes what nothing needs any more: older versions, rows that all of those kept have learnt, old rounds."""
        state, work = self.desk.state, self.desk.work
        known: dict[int, Version] = state.versions
        kept = {*sorted(known)[-self.desk.wanted.keep :], state.current, 0} & set(known)
        here = state.open["began"]["round"] if state.open else 0
        versions.drop_others(work, kept | {here}, {known[number].run for number in kept} | {here})
        needed = [known[number].learnt for number in kept if number or state.current == 0]
        rows.drop(work, state.files.values(), min(needed, default=0))
        for folder in (work / ROUNDS).glob("*"):
            if folder.name != f"{here:04d}":
                shutil.rmtree(folder, ignore_errors=True)

    def tell_servers(self) -> None:
        """Tells each server of the version in service, until it has answered for it."""
        state, current = self.desk.state, self.desk.state.current
        for address in self.desk.wanted.servers if current >= 0 else ():
            if state.told.get(address) == current:
                continue
            try:
                answer = server.reload(address, self.desk.wanted.token, state.version.id)
                self.desk.write("told", server=address, version=current, workers=answer.get("workers"))
            except FieldwiseError as error:
                if state.silent.get(address) != str(error):
                    self.desk.write("not told", server=address, version=current, why=str(error))

    def go_back(self, version: int) -> None:
        """Serves an older version again; the next round goes on from it, with the rows that it had not learnt."""
        self.settle()
        state, work = self.desk.state, self.desk.work
        there = [number for number in state.versions if versions.bundle_of(work, number).exists()]
        if version not in there:
            known = ", ".join(map(str, there))
            raise ConfigError(f"there is no version {version} to go back to; there are: {known}")
        if state.open:
            self.desk.end("stopped", f"someone went back to version {version}")
        self.desk.write("going back", version=version)
        self.settle()
        self.tell_servers()
