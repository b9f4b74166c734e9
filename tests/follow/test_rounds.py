"""Whole rounds: what becomes of files, of the bundle and of its history, and kills at every step."""

from __future__ import annotations

import json
import re
import shutil
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pytest

from fieldwise.bundle import bundle, freshen
from fieldwise.bundle.bundle import load_encoder
from fieldwise.bundle.predictor import Predictor
from fieldwise.config.errors import BundleError, ConfigError, DataError
from fieldwise.config.interrupts import Terminated
from fieldwise.config.progress import Progress
from fieldwise.data.encode.prepare import prepare
from fieldwise.data.read import formats
from fieldwise.follow import intake, judge, rounds, rows, service, versions
from fieldwise.follow.follower import Follower
from fieldwise.follow.journal import Journal
from fieldwise.follow.status import words
from fieldwise.train.blend import blend
from tests.follow.days import HISTORY, day, follow, lines, outcome, said, text_of, trained, wanted, write_day

# Every candidate is worse than this margin allows.
NEVER = {"margin": 0.0, "settings": ("train.epochs=1", "train.lr=30.0", "train.calibration=none")}


@pytest.mark.parametrize("name", ["plain", "history"])
def test_days_are_learnt_one_by_one(tmp_path, runs, name):
    for number in range(3, 6):
        write_day(tmp_path / "logs", number)
    journal = follow(tmp_path, runs[name], files=1)
    assert Counter(entry["step"] for entry in journal.entries) == {
        "adopted": 1,
        **dict.fromkeys(("taken", "began", "prepared", "trained", "judged", "published", "swapped", "done"), 3),
    }
    # Rows that have judged teach in the round after: 300 - 210, then 300 more.
    assert [entry["first"] for entry in lines(journal, "began")] == [0, 210, 483]
    assert [entry["cut"] for entry in lines(journal, "began")] == [[210, 255], [483, 541], [774, 837]]
    live = tmp_path / "live"
    assert live.resolve() == versions.bundle_of(tmp_path / "work", 3)
    assert bundle.load(live).config.train.epochs == 1
    assert load_encoder(live).codes[0].texts[: len(load_encoder(runs[name]).codes[0].texts)] == (
        load_encoder(runs[name]).codes[0].texts
    )
    assert len(load_encoder(live).codes[0].texts) > len(load_encoder(runs[name]).codes[0].texts)


@pytest.mark.parametrize("name", ["history", "folds"])
@pytest.mark.parametrize("more", [{}, NEVER], ids=["swapped", "rejected"])
def test_the_served_history_has_counted_all_rows(tmp_path, runs, name, more):
    """Whatever a round decides, the history is that of `history update` with all files, one after the other."""
    for number in (3, 4):
        write_day(tmp_path / "logs", number)
    freshen.update_history(runs[name], iter([day(3), day(4)]), tmp_path / "expected")
    follow(tmp_path, runs[name], files=1, **more)
    assert (tmp_path / "live").resolve().name == "0002"
    expected, found = (load_encoder(tmp_path / name) for name in ("expected", "live"))
    later = day(5)
    seen = [one.history.seen(later, one.buckets(later)) for one in (expected, found)]
    assert (seen[0] == seen[1]).all()


def test_a_rejected_candidate_is_not_served_and_its_rows_are_tried_again(tmp_path, runs):
    for number in (3, 4, 5):
        write_day(tmp_path / "logs", number)
    before = outcome(runs["history"] / "bundle")
    journal = follow(tmp_path, runs["history"], files=1, **NEVER)
    assert [entry["decision"] for entry in lines(journal, "done")] == ["rejected"] * 3
    assert [(entry["first"], entry["end"]) for entry in lines(journal, "began")] == [(0, 300), (0, 600), (0, 900)]
    assert "rejected 3 times in a row" in said(journal, "done")[-1]
    assert "the history was moved on, the weights stay" in said(journal, "done")[0]
    served = outcome(tmp_path / "live")
    assert {name for name in served if served[name] != before[name]} == {"history.json", "history.npz"}
    write_day(tmp_path / "logs", 6)
    journal = follow(tmp_path, runs["history"], files=1)
    assert lines(journal, "began")[-1]["first"] == 0
    assert lines(journal, "done")[-1]["decision"] == "swapped"
    assert journal.state.rejected == 0


def test_without_a_history_a_rejection_leaves_the_bundle_alone(tmp_path, runs):
    write_day(tmp_path / "logs", 3)
    journal = follow(tmp_path, runs["plain"], **NEVER)
    assert (tmp_path / "live").resolve() == runs["plain"]
    assert [entry["step"] for entry in journal.entries][-2:] == ["judged", "done"]


class Killed(BaseException):
    pass


class KillAtStep(Progress):
    def step(self, rows, loss, epoch):
        raise Killed


# Before and after each of these, and before and after each line of the journal.
PLACES = [
    (rows, "write"),
    (rounds, "carry_out"),
    (rounds, "train"),
    (judge, "scored"),
    (judge, "verdict"),
    (versions, "adopt"),
    (versions, "publish"),
    (freshen, "update_history"),
    (versions, "serve"),
    (versions, "drop_others"),
    (rows, "drop"),
]


def killed_everywhere(monkeypatch, find):
    """Kills at each place once, and with the line of each step; `find` gives the kills so far."""

    def dying(name, original):
        def call(*given, **named):
            for moment in ("before", "after"):
                key = f"{moment} {name(*given)}"
                if moment == "before" and key not in find:
                    find.add(key)
                    raise Killed
                if moment == "after":
                    found = original(*given, **named)
                    if key not in find:
                        find.add(key)
                        raise Killed
            return found

        return call

    for module, name in PLACES:
        monkeypatch.setattr(module, name, dying(lambda *given, name=name: name, getattr(module, name)))
    write = Journal.write
    monkeypatch.setattr(Journal, "write", dying(lambda journal, step, **facts: f"line {step}", write))


@pytest.mark.parametrize("name", ["plain", "history"])
def test_killed_at_every_step_equals_never_killed(tmp_path, runs, monkeypatch, name):
    for number in (3, 4):
        write_day(tmp_path / "logs", number)
    for folder in ("whole", "killed"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "logs").symlink_to(tmp_path / "logs")
    whole = follow(tmp_path / "whole", runs[name], files=1)
    found: set[str] = set()
    kills = 0
    with monkeypatch.context() as patch:
        killed_everywhere(patch, found)
        while True:
            try:
                progress = KillAtStep() if kills % 3 == 1 and "after train" not in found else Progress()
                follower = Follower(wanted(tmp_path / "killed", runs[name], files=1), progress=progress)
                while follower.cycle():
                    pass
                break
            except Killed:
                kills += 1
    assert kills >= 34
    assert lines(follower.journal) == lines(whole)
    assert outcome(tmp_path / "killed" / "live") == outcome(tmp_path / "whole" / "live")
    assert (tmp_path / "killed" / "live").resolve().name == "0002"


def test_someone_may_go_back(tmp_path, runs):
    for number in (3, 4):
        write_day(tmp_path / "logs", number)
    follow(tmp_path, runs["history"], files=1)
    follower = Follower(wanted(tmp_path, runs["history"]))
    with pytest.raises(ConfigError, match="no version 7 to go back to; there are: 0, 1, 2"):
        follower.go_back(7)
    follower.go_back(1)
    assert (tmp_path / "live").resolve().name == "0001"
    assert not follower.cycle()
    write_day(tmp_path / "logs", 5)
    journal = follow(tmp_path, runs["history"])
    # Version 1 had learnt 210 rows.
    assert lines(journal, "began")[-1]["first"] == 210
    assert (tmp_path / "live").resolve().name == "0003"


@pytest.mark.parametrize("more", [{}, NEVER], ids=["swapped", "rejected"])
def test_back_to_a_version_whose_rows_are_gone(tmp_path, runs, more):
    """The round goes on with those that are kept."""
    for number in range(3, 7):
        write_day(tmp_path / "logs", number)
    follow(tmp_path, runs["history"], files=1, keep=1)
    assert rows.oldest(tmp_path / "work", Journal(tmp_path / "work").state.files.values()) == 900
    Follower(wanted(tmp_path, runs["history"], keep=1)).go_back(0)
    write_day(tmp_path / "logs", 7)
    journal = follow(tmp_path, runs["history"], keep=1, **more)
    assert (lines(journal, "began")[-1]["first"], journal.state.current) == (900, 5)
    assert load_encoder(tmp_path / "live").end == day(7)["moment"][-1].as_py()


def test_someone_may_set_the_link_or_put_another_bundle_there(tmp_path, runs):
    for number in (3, 4):
        write_day(tmp_path / "logs", number)
    follow(tmp_path, runs["plain"], files=1)
    live = tmp_path / "live"
    live.unlink()
    live.symlink_to(versions.bundle_of(tmp_path / "work", 1))
    journal = follow(tmp_path, runs["plain"])
    assert journal.state.current == 1
    live.unlink()
    shutil.copytree(runs["history"] / "bundle", live)
    journal = follow(tmp_path, runs["plain"])
    assert lines(journal, "adopted")[-1]["version"] == 3
    write_day(tmp_path / "logs", 5)
    journal = follow(tmp_path, runs["plain"])
    assert (lines(journal, "began")[-1]["first"], live.resolve().name) == (600, "0004")
    assert outcome(tmp_path / "live.before") == outcome(runs["history"] / "bundle")
    live.unlink()
    follow(tmp_path, runs["plain"])
    assert live.resolve().name == "0004"


@pytest.mark.parametrize("how", ["link", "folder"])
def test_a_bundle_that_someone_sets_while_a_round_goes_on_stays(tmp_path, runs, monkeypatch, how):
    for number in (3, 4):
        write_day(tmp_path / "logs", number)
    follow(tmp_path, runs["plain"], files=1)
    live, verdict = tmp_path / "live", judge.verdict

    def meanwhile(*given):
        live.unlink()
        if how == "link":
            live.symlink_to(versions.bundle_of(tmp_path / "work", 1))
        else:
            shutil.copytree(runs["history"] / "bundle", live)
        return verdict(*given)

    write_day(tmp_path / "logs", 5)
    follower = Follower(wanted(tmp_path, runs["plain"]))
    with monkeypatch.context() as patch:
        patch.setattr(judge, "verdict", meanwhile)
        assert follower.cycle()
    assert lines(follower.journal, "done")[-1]["decision"] == "stopped"
    follower.cycle()
    assert follower.state.current == (1 if how == "link" else 4)
    expected = versions.bundle_of(tmp_path / "work", 1) if how == "link" else runs["history"] / "bundle"
    assert outcome(live) == outcome(expected)


def test_versions_are_exported_for_servers_without_torch(tmp_path, runs):
    pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    from fieldwise.serving.engine import Engine

    write_day(tmp_path / "logs", 3)
    follow(tmp_path, runs["plain"], onnx=True)
    for number in (0, 1):  # also the one that was found: the way back is served without torch too
        assert (versions.bundle_of(tmp_path / "work", number) / "online" / "model.onnx").is_file()
    rows_of_day = day(3).drop_columns(["click", "moment"]).to_pylist()[:20]
    expected = Predictor.load(tmp_path / "live").predict(rows_of_day)
    assert Engine.load(tmp_path / "live").predict(rows_of_day) == pytest.approx(expected, abs=1e-6)


def test_old_versions_and_learnt_rows_are_removed(tmp_path, runs):
    for number in range(3, 8):
        write_day(tmp_path / "logs", number)
    follow(tmp_path, runs["plain"], files=1, keep=2)
    work = tmp_path / "work"
    assert sorted(path.name for path in (work / "bundles").iterdir()) == ["0000", "0004", "0005"]
    assert sorted(path.name for path in (work / "runs").iterdir()) == ["0000", "0004", "0005"]
    assert list((work / "rounds").iterdir()) == []
    # Version 4 has learnt 210 + 273 + 291 + 292 = 1,077 of the rows, so those of the last two days may be needed again.
    assert len(list((work / "rows").iterdir())) == 2
    assert (work / "rows" / "000004.parquet").exists()


def test_bad_files_are_named_once_and_do_not_stop_the_rest(tmp_path, runs):
    logs = tmp_path / "logs"
    write_day(logs, 3)
    (logs / "day-1.csv").write_text("")
    (logs / "day-2.csv").write_text("click,user,device\n1,u1,desk\n")
    (logs / "notes.md").write_text("no log\n")
    (logs / "day-4.csv").write_text(text_of(day(4)).replace("desk", "desk,desk"))
    journal = follow(tmp_path, runs["history"])
    found = {entry["file"]: entry["why"] for entry in journal.entries if entry["step"] == "refused"}
    assert found["day-1.csv"] == "the file is empty"
    assert "column 'moment' is missing" in found["day-2.csv"]
    assert "must end in .csv" in found["notes.md"]
    assert "day-4.csv" in found["day-4.csv"]
    assert [entry["decision"] for entry in lines(journal, "done")] == ["swapped"]
    before = len(journal.entries)
    assert len(follow(tmp_path, runs["history"]).entries) == before
    write_day(logs, 4)
    assert follow(tmp_path, runs["history"]).state.files.keys() == {"day-3.csv", "day-4.csv"}


def test_a_file_that_cannot_be_read_waits(tmp_path, runs, monkeypatch):
    shut, opened = write_day(tmp_path / "logs", 3), Path.open

    def refusing(path, *given, **named):
        if path == shut:
            raise PermissionError(13, "Permission denied", str(path))
        return opened(path, *given, **named)

    write_day(tmp_path / "logs", 4)
    with monkeypatch.context() as patch:
        patch.setattr(Path, "open", refusing)
        assert list(follow(tmp_path, runs["plain"], min_rows=500).state.files) == ["day-4.csv"]
    journal = follow(tmp_path, runs["plain"])
    assert "day-3.csv: it cannot be read: Permission denied" in said(journal, "waits")[0]
    assert journal.state.rows == 600


def test_a_file_that_was_written_to_while_it_was_refused_is_looked_at_again(tmp_path, runs, monkeypatch):
    path, take = write_day(tmp_path / "logs", 3), intake.take
    text = path.read_text()
    path.write_text("click,user\n1,u1\n")

    def meanwhile(*given):
        try:
            return take(*given)
        finally:
            path.write_text(text)

    with monkeypatch.context() as patch:
        patch.setattr(intake, "take", meanwhile)
        follow(tmp_path, runs["plain"])
    assert "'device' is missing" in said(Journal(tmp_path / "work"), "refused")[0]
    assert list(follow(tmp_path, runs["plain"]).state.files) == ["day-3.csv"]


def test_a_file_is_taken_once_by_whatever_name(tmp_path, runs):
    path = write_day(tmp_path / "logs", 3)
    follow(tmp_path, runs["plain"])
    path.rename(path.with_name("day-3.old.csv"))
    journal = follow(tmp_path, runs["plain"])
    assert journal.state.rows == 300
    assert "it holds what day-3.csv held" in said(journal, "refused")[0]


def test_a_signal_does_not_wait_for_a_server(tmp_path, runs, monkeypatch):
    write_day(tmp_path / "logs", 3)
    told = []
    monkeypatch.setattr(service.server, "reload", lambda *given: told.append(given) or {"workers": 1})
    for error in (Terminated, MemoryError):
        follower = Follower(wanted(tmp_path, runs["plain"], servers=("http://a",)))
        with monkeypatch.context() as patch:
            patch.setattr(follower.rounds, "begin", lambda error=error: (_ for _ in ()).throw(error))
            with pytest.raises(error):
                follower.cycle()
        assert len(told) == (error is MemoryError)


def test_a_file_that_changes_is_said_once_and_stops_what_is_new(tmp_path, runs):
    path = write_day(tmp_path / "logs", 3)
    follow(tmp_path, runs["plain"])
    with path.open("a") as file:
        file.write("1,u1,desk,3999\n")
    write_day(tmp_path / "logs", 4)
    for _ in range(2):
        with pytest.raises(DataError, match="must not change"):
            follow(tmp_path, runs["plain"])
    assert len(lines(Journal(tmp_path / "work"), "refused")) == 1
    path.unlink()
    assert follow(tmp_path, runs["plain"]).state.rows == 600


def test_unfinished_files_keep_the_order_where_time_counts(tmp_path, runs):
    logs = tmp_path / "logs"
    write_day(logs, 4)
    path = write_day(logs, 3)
    text = path.read_text()
    path.write_text(text[:-1])
    journal = follow(tmp_path, runs["history"])
    assert journal.state.files == {}
    assert "day-3.csv: its last line has no end" in journal.state.waits
    path.write_text(text)
    assert [entry["file"] for entry in lines(follow(tmp_path, runs["history"]), "taken")] == ["day-3.csv", "day-4.csv"]


def test_without_a_time_an_unfinished_file_holds_up_nothing(tmp_path, runs):
    path = write_day(tmp_path / "logs", 3)
    path.write_text(path.read_text()[:-1])
    write_day(tmp_path / "logs", 4)
    assert list(follow(tmp_path, runs["plain"]).state.files) == ["day-4.csv"]


def test_too_few_rows_and_rows_of_one_label_wait(tmp_path, runs):
    logs = tmp_path / "logs"
    write_day(logs, 3, rows=60)
    journal = follow(tmp_path, runs["plain"])
    assert journal.state.waits == "60 new rows so far; a round begins with 100 (--min-rows)"
    quiet = day(4, 200)
    (logs / "day-4.csv").write_text(text_of(quiet.set_column(0, "click", pa.array([0] * 200))))
    journal = follow(tmp_path, runs["plain"])
    assert "need both labels" in journal.state.waits
    assert len(lines(journal, "waits")) == 2
    assert len(lines(follow(tmp_path, runs["plain"]), "waits")) == 2
    write_day(logs, 5)
    journal = follow(tmp_path, runs["plain"])
    assert (lines(journal, "began")[0]["end"], journal.state.current) == (560, 1)


def test_a_round_that_fails_is_tried_again(tmp_path, runs):
    write_day(tmp_path / "logs", 3)
    for times in (1, 2, 3, 3):
        # Each time waits for --every: what was wrong may be over then.
        journal = follow(tmp_path, runs["plain"], settings=("train.optimizer=none",))
        assert [entry["decision"] for entry in lines(journal, "done")] == ["failed"] * times
    assert all("train.optimizer" in why or "optimizer" in why for why in said(journal, "failed"))
    write_day(tmp_path / "logs", 4)
    journal = follow(tmp_path, runs["plain"])
    assert lines(journal, "done")[-1]["decision"] == "swapped"


def test_so_few_files_as_asked_for_but_enough_for_a_round(tmp_path, runs):
    for number in range(3, 7):
        write_day(tmp_path / "logs", number, rows=60)
    journal = follow(tmp_path, runs["plain"], files=1)
    assert [entry["end"] for entry in lines(journal, "began")] == [120, 240]


def test_files_up_to_a_name_are_known(tmp_path, runs):
    for number in range(3):
        write_day(tmp_path / "logs", number)
    journal = follow(tmp_path, runs["history"], after="day-2.csv")
    assert journal.state.files == {}
    write_day(tmp_path / "logs", 3)
    assert list(follow(tmp_path, runs["history"]).state.files) == ["day-3.csv"]


def test_rows_that_the_history_has_counted_are_refused(tmp_path, runs):
    write_day(tmp_path / "logs", 0)
    journal = follow(tmp_path, runs["history"])
    assert "history runs forward" in said(journal, "refused")[0]
    assert "--after" in said(journal, "refused")[0]


def test_of_a_blend_the_history_goes_on(tmp_path, runs):
    """Its weights cannot; a model without either is refused."""
    blended = tmp_path / "blend"
    blend([runs["history"], runs["history"]], blended, (), False, "platt", "cpu", False)
    write_day(tmp_path / "logs", 3)
    journal = follow(tmp_path, blended)
    (done,) = lines(journal, "done")
    assert done["decision"] == "history"
    assert "blend cannot go on with new rows" in done["why"]
    assert (tmp_path / "live").resolve().name == "0001"
    members = bundle.load(tmp_path / "live").members
    assert members[0].own_encoder.end == day(3)["moment"][-1].as_py()
    assert lines(journal, "judged")[0]["current"]["log_loss"] > 0
    write_day(tmp_path / "logs", 4)
    assert follow(tmp_path, blended).state.current == 2


def test_values_expire_in_rounds(tmp_path):
    """What --expire-after said of the first rows holds in every round."""
    run = trained(tmp_path, None, expire_after=("1",))
    before, sizes = load_encoder(run).codes[0], []
    for number in range(3, 12):
        write_day(tmp_path / "logs", number)
        journal = follow(tmp_path, run)
        code = load_encoder(tmp_path / "live").codes[0]
        assert all(code.vocabulary.get(text, id) == id for text, id in before.vocabulary.items())
        before = code
        sizes.append(code.size)
    # Three users come each day, and as many go.
    assert max(sizes[3:]) <= sizes[3] + 3
    prepared = [entry for entry in journal.entries if entry["step"] == "prepared"]
    assert sum(entry["expired"].get("user", 0) for entry in prepared[3:]) >= 12
    assert re.fullmatch(r"round 9: prepared; \d+ new ids, \d+ values expired", words(prepared[-1]))


def test_of_trees_the_history_goes_on(tmp_path):
    pytest.importorskip("xgboost")
    run = trained(tmp_path, HISTORY, ["model.name=gbdt", "model.rounds=3"])
    for number in (3, 4):
        write_day(tmp_path / "logs", number)
    freshen.update_history(run, iter([day(3), day(4)]), tmp_path / "expected")
    journal = follow(tmp_path, run, files=1)
    assert [entry["decision"] for entry in lines(journal, "done")] == ["history", "history"]
    expected, found = (Predictor.load(tmp_path / name).predict(day(5)) for name in ("expected", "live"))
    assert found == pytest.approx(expected)
    # Rows that the history has counted are of no use any more, but those of the versions that are kept.
    assert len(list((tmp_path / "work" / "rows").iterdir())) == 1


def test_trees_without_a_history_are_refused(tmp_path):
    pytest.importorskip("xgboost")
    run = trained(tmp_path, None, ["model.name=gbdt", "model.rounds=3"])
    with pytest.raises(BundleError, match="gbdt cannot go on with new rows, and has no history"):
        follow(tmp_path, run)
    assert not (tmp_path / "work" / "bundles").exists()


def test_nothing_to_follow_is_said(tmp_path, runs):
    (tmp_path / "logs").mkdir()
    given = wanted(tmp_path, tmp_path / "none")
    with pytest.raises(BundleError, match="found nothing"):
        Follower(given).cycle()
    with pytest.raises(ConfigError, match="--margin takes 0 or more"):
        wanted(tmp_path, runs["plain"], margin=-1.0)
    with pytest.raises(ConfigError, match="--split needs rows"):
        wanted(tmp_path, runs["plain"], split=(0.8, 0.0, 0.2))


def test_a_round_prepares_what_prepare_does(tmp_path, runs):
    """The first round is `prepare --continue-from` with the same split."""
    path = write_day(tmp_path / "logs", 3)
    journal = follow(tmp_path, runs["plain"])
    known = load_encoder(runs["plain"])
    split = rounds.Split((0.7, 0.15, 0.15), by="row")
    found = prepare({"train": lambda: formats.read([path])}, tmp_path / "data", "click", split=split, known=known)
    (prepared,) = lines(journal, "prepared")
    assert prepared["rows"] == found["rows"]
    assert prepared["new_ids"] == json.loads(json.dumps(found["new_ids"]))
    assert intake.natural("day-3.csv") < intake.natural("day-10.csv")
