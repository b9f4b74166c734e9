"""Following a folder of logs with a bundle: what a cycle does."""

from __future__ import annotations

import sys
from collections.abc import Callable

from fieldwise.config.interrupts import check
from fieldwise.config.progress import Progress
from fieldwise.follow.arrivals import Arrivals
from fieldwise.follow.desk import Desk, Wanted
from fieldwise.follow.journal import Entry, Journal, State
from fieldwise.follow.rounds import Rounds
from fieldwise.follow.service import Service


class Follower:
    """Follows a folder of logs with a bundle. One process at a time; `tell` hears of each line of the journal, and
    `progress` of the training."""

    def __init__(
        self, wanted: Wanted, tell: Callable[[Entry], None] = lambda entry: None, progress: Progress | None = None
    ) -> None:
        self.desk = Desk(wanted, tell)
        self.service, self.arrivals = Service(self.desk), Arrivals(self.desk)
        self.rounds = Rounds(self.desk, self.service, progress or Progress())

    @property
    def journal(self) -> Journal:
        return self.desk.journal

    @property
    def state(self) -> State:
        return self.desk.state

    def go_back(self, version: int) -> None:
        """Serves an older version again."""
        self.service.go_back(version)

    def cycle(self) -> bool:
        """Ends what was begun, takes new files in, and does a round if there are enough rows; returns whether there may
        be more to do at once: a round that failed is tried again later.

        Raises FieldwiseError for what a person must see to; the next cycle goes on with the rest.
        """
        check()
        self.service.settle()
        try:
            if not self.state.open:
                self._look_for_rows()
            done = bool(self.state.open)
            if done:
                self.rounds.go_on()
                self.service.tidy()
        except Exception:
            check()  # a signal does not wait for a server
            self.service.tell_servers()
            raise
        self.service.tell_servers()
        return done and not self.state.failed

    def _look_for_rows(self) -> None:
        """Takes new files in and begins a round; where it does not, the journal says what it waits for."""
        most = self.desk.wanted.files or sys.maxsize
        while True:
            reasons, more = self.arrivals.take_files(most)
            reasons += self.rounds.begin()
            if self.state.open or not more:
                break
            most += self.desk.wanted.files  # so few files were not enough
        why = "; ".join(reasons)
        if why and not self.state.open and self.state.waits != why:
            self.desk.write("waits", why=why)
