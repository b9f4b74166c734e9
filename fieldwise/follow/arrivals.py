"""Takes the new files of the folder of logs in, one after the other, or says why not."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pyarrow as pa

from fieldwise.config.errors import ConfigError, DataError, FieldwiseError, first_line
from fieldwise.data.encode.encoder import Encoder
from fieldwise.follow import intake, rows
from fieldwise.follow.desk import Desk


class Arrivals:
    """The files that come."""

    def __init__(self, desk: Desk) -> None:
        self.desk = desk

    def take_files(self, most: int) -> tuple[list[str], bool]:
        """Takes in what is new, in the order of the names, until there are so many files for the next round. Returns
        why some files are left for later, and whether others were left because these are enough."""
        state = self.desk.state
        reasons: list[str] = []
        self._refuse_changed()
        clock = intake.clock_of(self.desk.encoders)
        for path in intake.listed(self.desk.wanted.logs, state.after):
            try:
                found = path.stat()
            except FileNotFoundError:  # moved away since it was listed
                continue
            if path.name in state.files or self._was_refused(path.name, found):
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
                self._refuse(path.name, found, str(error) if isinstance(error, FieldwiseError) else first_line(error))
        return reasons, False

    def _take(self, path: Path, clock: str) -> None:
        """Takes one file in."""
        encoders, wanted = self.desk.encoders, self.desk.wanted
        intake.usable_name(path, encoders[0].schema.recipe)
        if why := intake.unfinished(path, wanted.min_age):
            raise intake.Unfinished(why)
        contents = {taken.content: name for name, taken in self.desk.state.files.items()}
        reading = intake.Reading(encoders, clock, self._until(encoders), wanted.skip_bad_rows, contents)
        number = len(self.desk.state.files) + 1
        self.desk.write("taken", number=number, **intake.take(path, reading, rows.path_of(self.desk.work, number)))

    def _refuse_changed(self) -> None:
        for path, why in intake.changed(self.desk.wanted.logs, self.desk.state.files):
            found = path.stat()
            if not self._was_refused(path.name, found):
                self._refuse(path.name, found, why)
            raise DataError(why)

    def _refuse(self, name: str, found: os.stat_result, why: str) -> None:
        """Leaves a file out as it was `found` before it was read: it may have been written to since."""
        self.desk.write("refused", file=name, size=found.st_size, modified=found.st_mtime_ns, why=why)

    def _was_refused(self, name: str, found: os.stat_result) -> bool:
        return bool(self.desk.state.refused.get(name) == (found.st_size, found.st_mtime_ns))

    def _until(self, encoders: list[Encoder]) -> float | None:
        """The last moment that counts: of the last row, or of the history as it was found."""
        if self.desk.state.until is not None:
            return float(self.desk.state.until)
        ends = [encoder.end for encoder in encoders if encoder.counts_rows and np.isfinite(encoder.end)]
        return max(ends, default=None)
