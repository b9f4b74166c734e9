"""Studies at once: the results of one after the other, from one pool of runs; an error ends its own study alone."""

import json
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fieldwise.config.errors import DataError, FieldwiseError
from fieldwise.studies import runner
from fieldwise.studies.series import run_studies
from fieldwise.studies.study import Case, Plan, Results, Setup, Study, Verdict
from tests.studies.test_studies import TOY, plan, run


def after(setup: Setup) -> Plan:
    """FM's runs start FNN's."""
    whole = plan(setup)
    later = [
        Case({"model": "fnn", "lr": 0.02}, "drawn", {"model.name": "fnn", **shorter(case)}, case.seed, case.name)
        for case in whole.cases
        if case.keys["model"] == "fm"
    ]
    return Plan(whole.sources, [*later, *whole.cases])


def shorter(case: Case) -> dict[str, Any]:
    return {key: value for key, value in case.settings.items() if key != "model.name"}


def raises(error: Exception) -> Any:
    def make(folder: Path) -> None:
        raise error

    return make


COMPUTED = replace(
    TOY,
    id="computed",
    plan=None,
    look=None,
    compute=lambda setup: [{"model": "none", "lr": 0, "auc": 0.7}],
    claims=lambda results: [Verdict("it is", results.mean("auc"), results.seeds)],
)
STARTED = replace(TOY, id="started", plan=after)
USES = replace(TOY, id="uses", plan=lambda setup: Plan({}, [], {"toy": plan(setup)}))


def heard(studies: list[Study], out: Path, **settings: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    run_studies(studies, out, lambda study, result: found.update({study.id: result}), **settings)
    return found


def test_studies_at_once_find_what_they_find_one_after_the_other(tmp_path: Path):
    studies = [USES, STARTED, COMPUTED, TOY]
    found = heard(studies, tmp_path / "once", workers=2)
    assert set(found) == {study.id for study in studies}
    for study in studies:
        alone = runner.run_study(study, tmp_path / "alone", workers=1)
        assert {**found[study.id], "folder": ""} == {**alone, "folder": ""}
    assert found["started"]["failed"] == []
    # The runs that two studies need are there once, and a second call trains nothing.
    done = {path: path.stat().st_mtime_ns for path in (tmp_path / "once").glob("*/small/runs/*/*/DONE")}
    assert len(done) == 4 + 6
    again = heard(studies, tmp_path / "once", workers=2)
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "once").glob("*/small/runs/*/*/DONE")} == done
    assert {**again["toy"], "folder": ""} == {**found["toy"], "folder": ""}


def test_an_error_ends_its_own_study(tmp_path: Path):
    def bad(setup: Setup) -> Plan:
        return Plan({"drawn": raises(DataError("no rows"))}, plan(setup).cases)

    found = heard([replace(TOY, id="bad", plan=bad), TOY, COMPUTED], tmp_path, workers=2, seeds=1)
    assert isinstance(found["bad"], FieldwiseError)
    assert [line[:9] for line in found["toy"]["lines"]] == ["UNDECIDED", "UNDECIDED"]
    assert found["computed"]["lines"][0].startswith("PASS")


def test_a_defect_is_raised_when_the_others_are_done(tmp_path: Path):
    def broken(results: Results) -> list[Verdict]:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        heard([replace(COMPUTED, claims=broken)], tmp_path)
    assert [thread for thread in threading.enumerate() if thread.name.startswith("series")] == []


def test_a_run_that_fails_leaves_the_other_studies_alone(tmp_path: Path):
    def failing(setup: Setup) -> Plan:
        whole = plan(setup)
        first = replace(whole.cases[0], settings={**whole.cases[0].settings, "train.lr": 1e30, "model.name": "fm"})
        return Plan(whole.sources, [first, *whole.cases[1:]])

    found = heard([replace(TOY, id="failing", plan=failing), TOY], tmp_path, workers=2, seeds=1)
    assert "1 of 1 runs failed (the loss" in found["failing"]["failed"][0]
    assert found["toy"]["failed"] == []


def test_a_study_that_is_under_way_is_refused(tmp_path: Path):
    with (
        runner.claimed(tmp_path, "toy", runner.setup_of(TOY, "small", None, 1, "cpu")),
        pytest.raises(FieldwiseError, match="is at the study"),
    ):
        heard([TOY], tmp_path, workers=2)


def test_several_ids_are_run_at_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert run("study", "fig9, fig8", "--out", tmp_path, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert {one["study"] for one in found["studies"]} == {"fig8", "fig9"}
    assert run("study", "fig8,fig9", "--out", tmp_path) == 0
    shown = capsys.readouterr().out
    assert "fig8: Figure 8." in shown
    assert "fig9: Figure 9." in shown
    assert run("study", "fig8,fig99", "--out", tmp_path) == 2
    assert "unknown study 'fig99'; did you mean" in capsys.readouterr().err
