"""The journal in words and in numbers: a line for each step, a row for each round, and where the work stands."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from fieldwise.follow.journal import Entry, Journal
from fieldwise.reporting.result_tables import Column

COLUMNS = (
    Column("rows", "Rows", ","),
    Column("before", "Served", ".4f"),
    Column("candidate", "New", ".4f"),
    Column("difference", "Gap", "+.4f"),
    Column("error", "±", ".4f"),
    Column("auc", "AUC", ".3f"),
    Column("calibration", "P/O", ".2f"),
    Column("version", "Version", "d"),
)


def words(entry: Entry) -> str:
    """A line of the journal for people."""
    step = entry["step"]
    at = f"round {entry['round']}: " if "round" in entry else ""
    told = {
        "adopted": lambda: f"version {entry['version']} is {entry['model']} {entry['id']}: {entry['why']}",
        "taken": lambda: (
            f"took {entry['file']}: {entry['rows']:,} rows, {entry['positives']:,} positive{_notes(entry)}"
        ),
        "refused": lambda: f"left {entry['file']} out: {entry['why']}",
        "waits": lambda: f"waiting: {entry['why']}",
        "began": lambda: f"{at}{_began(entry)}",
        "prepared": lambda: f"{at}prepared; {sum(entry['new_ids'].values()):,} new ids{_expired(entry)}",
        "trained": lambda: f"{at}trained {entry['epochs']} epochs, best {entry['best_epoch']}{_warnings(entry)}",
        "judged": lambda: f"{at}judged by {entry['rows']:,} rows: log loss {_losses(entry)}",
        "failed": lambda: f"{at}could not be {entry['at']}: {entry['why']}",
        "published": lambda: f"{at}version {entry['version']} is {entry['id']}{_history(entry)}",
        "swapped": lambda: f"{at}version {entry['version']} is in service",
        "done": lambda: f"{at}{entry['decision']}: {entry['why']}",
        "going back": lambda: f"going back to version {entry['version']}",
        "told": lambda: f"{entry['server']} serves version {entry['version']}",
        "not told": lambda: (
            f"{entry['server']} was not told of version {entry['version']}, tried again: {entry['why']}"
        ),
    }
    return told[step]()


def _notes(entry: Entry) -> str:
    return "".join(f"; {note}" for note in entry["notes"])


def _expired(entry: Entry) -> str:
    count = sum(entry.get("expired", {}).values())
    return f", {count:,} values expired" if count else ""


def _warnings(entry: Entry) -> str:
    return "".join(f"; warning: {warning}" for warning in entry["warnings"])


def _history(entry: Entry) -> str:
    moment = entry["history_to"]
    return "" if moment is None else f", with a history up to {moment:.15g}"


def _began(entry: Entry) -> str:
    first, end = entry["first"], entry["end"]
    if not entry["cut"]:
        return f"{end - first:,} rows for the history"
    a, b = entry["cut"]
    return f"{a - first:,} rows to train on, {b - a:,} to stop by, {end - b:,} to judge by"


def _losses(entry: Entry) -> str:
    if "candidate" not in entry:
        return f"{entry['current']['log_loss']:.5f}"
    return f"{entry['candidate']['log_loss']:.5f}, in service {entry['current']['log_loss']:.5f}"


def rounds(entries: Iterable[Entry]) -> list[dict[str, Any]]:
    """What is known of each round, the first one first."""
    found: dict[int, dict[str, Any]] = {}
    version = -1
    for entry in entries:
        version = entry["version"] if entry["step"] in ("adopted", "swapped") else version
        if "round" in entry:
            own = found.setdefault(entry["round"], {"round": entry["round"], "decision": "goes on"})
            own |= _facts(entry) | {"version": version}
    return [{"name": f"{own['round']} {own['decision']}"} | own for own in found.values()]


def _facts(entry: Entry) -> dict[str, Any]:
    """What a line says of its round."""
    if entry["step"] == "judged":
        better = entry.get("candidate", {})
        shown = better or entry["current"]
        own = {"before": entry["current"]["log_loss"], "candidate": better.get("log_loss")}
        own |= {name: entry.get(name) for name in ("rows", "difference", "error")}
        return own | {"auc": shown["auc"], "calibration": shown["calibration"]}
    if entry["step"] == "done":
        return {"decision": entry["decision"], "why": entry["why"], "ended": entry["time"]}
    return {"began": entry["time"]} if entry["step"] == "began" else {}


def facts(journal: Journal) -> dict[str, Any]:
    """Where the work stands, for programs."""
    state = journal.state
    current = state.versions.get(state.current)
    return {
        "version": state.current if current else None,
        "id": current.id if current else None,
        "files": len(state.files),
        "rows": state.rows,
        "not_learnt": state.rows - current.learnt if current else 0,
        "refused": sorted(state.refused),
        "waits": state.waits or None,
        "rejected_in_a_row": state.rejected,
        "not_told": state.silent,
        "rounds": rounds(journal.entries),
    }


def summary(found: dict[str, Any]) -> list[str]:
    """The same in lines, below the table of the rounds."""
    if found["version"] is None:
        return ["nothing was followed here yet"]
    rows = f"{found['files']:,} files, {found['rows']:,} rows, of which {found['not_learnt']:,} are not learnt yet"
    lines = [f"version {found['version']} ({found['id']}) is in service; {rows}"]
    lines += [f"last decision: {one['decision']}: {one['why']}" for one in found["rounds"][-1:] if "why" in one]
    lines += [f"left out: {', '.join(found['refused'])}"] if found["refused"] else []
    lines += [f"waiting: {found['waits']}"] if found["waits"] else []
    return lines + [f"{server}: {why}" for server, why in found["not_told"].items()]
