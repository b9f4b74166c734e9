"""The page and the table, from run folders made by hand."""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from fieldwise.config.errors import BundleError, FieldwiseError
from fieldwise.evaluation import metrics
from fieldwise.reporting.report import print_table, table_rows, write_report

FIELDS = ["user", "item", "hour", "<b>evil</b>"]
MakeRun = Callable[..., Path]


def some_metrics(noise: float) -> dict[str, Any]:
    """Metrics of a model whose logits miss the truth by `noise`."""
    rng = np.random.default_rng(0)
    truth = rng.normal(-1, 1, 4000)
    labels = (rng.random(4000) < metrics.sigmoid(truth)).astype(np.float32)
    return metrics.evaluate(labels, metrics.sigmoid(truth + noise * rng.normal(size=4000)))


def some_log(epochs: int, loss: float) -> list[dict[str, Any]]:
    records: list[dict[str, Any]] = []
    for step in range(1, 10 * epochs + 1):
        epoch, rows = (step + 9) // 10, step * 1000
        decay = float(loss + 0.3 * np.exp(-step / 6))
        records.append({"event": "train", "epoch": epoch, "step": step, "rows": rows, "loss": decay, "rows_per_s": 5e4})
        if step % 10 == 0:
            valid = {
                "auc": 0.7,
                "log_loss": decay + 0.01,
                "rig": 0.1,
                "calibration": 1.0,
                "ece": 0.01,
                "best": True,
            }
            records.append({"event": "valid", "epoch": epoch, "step": step, "rows": rows, **valid})
    return records


@pytest.fixture
def make_run(tmp_path: Path) -> MakeRun:
    """Writes a run folder; keywords beyond the first few replace values of its report.json."""

    def make(
        model: str,
        noise: float = 0.5,
        name: str = "",
        done: bool = True,
        additive: bool = False,
        **changes: Any,
    ) -> Path:
        run = tmp_path / (name or model)
        run.mkdir()
        (run / "config.toml").write_text(f'seed = 0\n\n[model]\nname = "{model}"\n', encoding="utf-8")
        log = "".join(json.dumps(record) + "\n" for record in some_log(3, 0.4 + noise / 10))
        (run / "log.jsonl").write_text(log, encoding="utf-8")
        strength = np.zeros((4, 4)) if additive else np.add.outer(np.arange(4.0), np.arange(4.0)) * (1 - np.eye(4))
        report = {
            "model": model,
            "parameters": 123456,
            "rows_per_s": 50000.0 + noise,
            "seconds": 12.3,
            "epochs": 3,
            "best_epoch": 2,
            "seed": 0,
            "data": "somewhere/clicks",
            "calibration": "platt",
            "valid": some_metrics(noise),
            "test": some_metrics(noise),
            "pair_strength": {"fields": FIELDS, "matrix": strength.tolist()},
        } | changes
        if done:
            kept = {key: value for key, value in report.items() if value is not None}
            (run / "report.json").write_text(json.dumps(kept), encoding="utf-8")
            (run / "DONE").touch()
        return run

    return make


class Outline(HTMLParser):
    """Checks that tags close in order, and collects headings and table cells."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.addresses: list[str] = []
        self.rows: list[list[str]] = []
        self.headings: list[str] = []
        self.text = ""
        self.feed(page)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.addresses += [value or "" for key, value in attrs if key in ("src", "href", "xlink:href")]
        if tag != "meta":
            self.open.append(tag)
        if tag == "tr":
            self.rows.append([])
        elif tag in ("th", "td"):
            self.rows[-1].append("")
        elif tag in ("h1", "h2"):
            self.headings.append("")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if {"th", "td"} & set(self.open):
            self.rows[-1][-1] += data
        if {"h1", "h2"} & set(self.open):
            self.headings[-1] += data
        if "style" not in self.open:
            self.text += data


def page_of(runs: list[Path], out: Path, **options: Any) -> tuple[str, Outline]:
    page = write_report(runs, out, **options).read_text(encoding="utf-8")
    return page, Outline(page)


def test_rows_hold_the_numbers_of_the_test_part(make_run: MakeRun) -> None:
    run = make_run("pin", valid=some_metrics(1.0))
    (row,) = table_rows([run])
    expected = some_metrics(0.5)
    assert {key: row[key] for key in ("auc", "log_loss", "rig", "calibration", "ece")} == {
        key: expected[key] for key in ("auc", "log_loss", "rig", "calibration", "ece")
    }
    assert (row["name"], row["model"], row["part"], row["finished"]) == ("pin", "pin", "test", True)
    assert (row["parameters"], row["epochs"], row["path"]) == (123456, 3, str(run))
    json.dumps(row, allow_nan=False)


def test_the_page_has_all_its_parts_in_order(make_run: MakeRun, tmp_path: Path) -> None:
    runs = [make_run("lr", 1.0, additive=True), make_run("fm", 0.6), make_run("pin", 0.2)]
    truth = some_metrics(0.0)
    oracle = {"auc": truth["auc"], "log_loss": truth["log_loss"]}
    page, outline = page_of(runs, tmp_path / "new" / "report.html", oracle=oracle)
    assert outline.headings == [
        "lr · fm · pin",
        "The table",
        "Training curves",
        "Reliability diagram",
        "Which fields interact",
        "Settings",
    ]
    assert [row[0] for row in outline.rows] == ["Model", "lr", "fm", "pin", "oracle"]
    assert all(len(row) == 9 for row in outline.rows)
    assert outline.rows[-1][1:3] == [f"{truth['auc']:.4f}", f"{truth['log_loss']:.5f}"]
    assert outline.rows[-1][3:] == ["–"] * 6
    best, second = some_metrics(0.2)["log_loss"], some_metrics(0.6)["log_loss"]
    assert f"pin is best with a log loss of {best:.5f}, {second - best:.5f} ahead of fm." in outline.text
    assert f"reaches {truth['log_loss']:.5f}; the best run is {best - truth['log_loss']:.5f} above it" in outline.text
    assert page.count("<svg") == 4
    assert "No map for lr" in outline.text
    assert "Strongest: hour × <b>evil</b> (5.0)" in outline.text
    assert "trained on clicks." in outline.text
    assert "fieldwise report" in outline.text


def test_the_page_stands_alone(make_run: MakeRun, tmp_path: Path) -> None:
    page, outline = page_of([make_run("fm"), make_run("pin")], tmp_path / "report.html")
    assert not {"script", "link", "img", "iframe", "object"} & outline.tags
    assert [address for address in outline.addresses if not address.startswith(("#", "data:image/png;"))] == []
    assert "@import" not in page
    assert not re.search(r"url\((?!#)", page)
    ids = re.findall(r'\bid="([^"]+)"', page)
    assert len(ids) == len(set(ids))
    assert set(re.findall(r"url\(#([^)]+)\)", page)) <= set(ids)


def test_the_same_runs_give_the_same_page(make_run: MakeRun, tmp_path: Path) -> None:
    runs = [make_run("fm"), make_run("pin")]
    first = write_report(runs, tmp_path / "report.html").read_bytes()
    assert write_report(runs, tmp_path / "report.html").read_bytes() == first


def test_the_best_of_each_column_is_marked_once(make_run: MakeRun, tmp_path: Path) -> None:
    runs = [make_run("fm", 0.6), make_run("pin", 0.2)]
    page, _ = page_of(runs, tmp_path / "report.html")
    lines = re.findall(r"<tr><th scope=\"row\">.*?</tr>", page)
    best = some_metrics(0.2)
    assert f'<td class="best">{best["auc"]:.4f}</td>' in lines[1]
    assert f'<td class="best">{best["log_loss"]:.5f}</td>' in lines[1]
    assert lines[0].count("best") + lines[1].count("best") == 6
    alone, _ = page_of(runs[:1], tmp_path / "one.html")
    assert 'class="best"' not in alone


def test_calibration_nearest_to_one_is_best(make_run: MakeRun) -> None:
    values = {"low": 0.8, "near": 1.05, "high": 1.2}
    runs = [make_run(name, test=some_metrics(0.5) | {"calibration": value}) for name, value in values.items()]
    console = Console(file=io.StringIO(), width=120, force_terminal=True, color_system="standard")
    print_table(table_rows(runs), None, console)
    marked = re.findall(r"\x1b\[1;32m\s*([\d.,]+)", console.file.getvalue())  # type: ignore[attr-defined]
    assert "1.050" in marked
    assert not {"0.800", "1.200"} & set(marked)


def test_without_test_data_validation_is_shown_and_said(make_run: MakeRun, tmp_path: Path) -> None:
    _, outline = page_of([make_run("pin", test=None)], tmp_path / "report.html")
    assert outline.rows[1][0] == "pin – validation"
    assert outline.rows[1][1] == f"{some_metrics(0.5)['auc']:.4f}"
    assert "There was no test data" in outline.text


def test_validation_numbers_do_not_compete_with_test_numbers(make_run: MakeRun, tmp_path: Path) -> None:
    runs = [make_run("fm", 0.1, test=None), make_run("fnn", 0.6), make_run("pin", 0.5)]
    page, outline = page_of(runs, tmp_path / "report.html")
    assert "pin is best" in outline.text
    assert 'class="best"' not in re.findall(r"<tr><th scope=\"row\">.*?</tr>", page)[0]


def test_an_unfinished_run_shows_its_curves_and_dashes(make_run: MakeRun, tmp_path: Path) -> None:
    run = make_run("pin", done=False)
    with (run / "log.jsonl").open("a", encoding="utf-8") as file:
        file.write('{"event": "train", "epo')
    page, outline = page_of([run], tmp_path / "report.html")
    assert outline.rows[1] == ["pin – unfinished"] + ["–"] * 8
    assert "No run has a result yet" in outline.text
    assert page.count("<svg") == 1
    assert table_rows([run])[0]["finished"] is False
    (run / "log.jsonl").write_text("")
    page_of([run, make_run("fm")], tmp_path / "report.html")


def test_runs_of_one_model_are_told_apart(make_run: MakeRun, tmp_path: Path) -> None:
    runs = [make_run("pin", name="a"), make_run("pin", name="b")]
    assert [row["name"] for row in table_rows(runs)] == ["pin (a)", "pin (b)"]
    assert [row["name"] for row in table_rows([runs[0], runs[0]])] == ["pin (1)", "pin (2)"]


def test_what_comes_from_data_is_escaped(make_run: MakeRun, tmp_path: Path) -> None:
    evil = "<script>alert('$x$ & \"')</script>"
    run = make_run(evil, name="<i>run", data=evil)
    (run / "config.toml").write_text(f"# {evil}\n", encoding="utf-8")
    _, outline = page_of([run, make_run("字段")], tmp_path / "report.html")
    assert not {"script", "i", "b"} & outline.tags
    assert evil in outline.text


def test_metrics_without_a_meaning_are_dashes(make_run: MakeRun, tmp_path: Path) -> None:
    nothing = {"auc": None, "rig": None, "calibration": None, "log_loss": float("nan")}
    _, outline = page_of([make_run("pin", test=some_metrics(0.5) | nothing)], tmp_path / "report.html")
    assert outline.rows[1][1:5] == ["–"] * 4


def test_heat_maps_can_be_left_out(make_run: MakeRun, tmp_path: Path) -> None:
    _, outline = page_of([make_run("pin")], tmp_path / "report.html", heat_maps=False)
    assert "Which fields interact" not in outline.headings
    _, outline = page_of([make_run("fm", pair_strength=None)], tmp_path / "report.html")
    assert "Which fields interact" not in outline.headings


def test_the_terminal_shows_the_same_table_within_80_columns(make_run: MakeRun, tmp_path: Path) -> None:
    runs = [
        make_run("lr", 1.0),
        make_run("pin [red]", name="pin", parameters=12345678),
        make_run("fm", done=False),
    ]
    console = Console(file=io.StringIO(), width=80)
    print_table(table_rows(runs), {"auc": 0.8, "log_loss": 0.41}, console)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert max(map(len, text.splitlines())) <= 80
    _, outline = page_of(runs, tmp_path / "report.html", oracle={"auc": 0.8, "log_loss": 0.41})
    for row in outline.rows:
        assert all(cell in text for cell in row[1:])
    assert "[red]" in text
    assert "unfinished" in text


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda run: (run / "config.toml").unlink(), "is not a run: it has no config.toml"),
        (lambda run: (run / "log.jsonl").unlink(), "is not a run: it has no log.jsonl"),
        (lambda run: run.rename(run.with_name("elsewhere")), "is not a run: no such folder"),
        (lambda run: (run / "report.json").write_text('{"model": '), "is damaged"),
        (lambda run: (run / "report.json").write_text("{}"), "is damaged: KeyError('model')"),
        (lambda run: (run / "report.json").unlink(), "is damaged"),
        (lambda run: (run / "log.jsonl").write_text("x\n{}\n"), "is damaged"),
        (lambda run: (run / "log.jsonl").write_text('{"event": "train", "rows": 1}\n'), "KeyError('loss')"),
        (lambda run: (run / "report.json").write_text('{"model": "x", "test": {}}'), "KeyError('rows')"),
        (lambda run: (run / "log.jsonl").write_bytes(b"\xff\xfe\n"), "is damaged"),
    ],
)
def test_a_folder_that_is_no_run_is_named_in_one_line(
    make_run: MakeRun, tmp_path: Path, spoil: Callable[[Path], Any], words: str
) -> None:
    run = make_run("pin")
    spoil(run)
    with pytest.raises(BundleError) as caught:
        write_report([run], tmp_path / "report.html")
    assert words in str(caught.value)
    assert str(run) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.glob("*report.html*"))


def test_no_runs_or_no_place_to_write(make_run: MakeRun, tmp_path: Path) -> None:
    with pytest.raises(FieldwiseError, match="at least one run, found none"):
        write_report([], tmp_path / "report.html")
    (tmp_path / "file").touch()
    with pytest.raises(FieldwiseError, match=r"cannot make the folder .*file: File exists"):
        write_report([make_run("pin")], tmp_path / "file" / "report.html")
    (tmp_path / "folder" / "x").mkdir(parents=True)
    with pytest.raises(FieldwiseError, match=r"expected the name of a file to write, found a folder \(.*folder\)"):
        write_report([tmp_path / "pin"], tmp_path / "folder")
    assert not list(tmp_path.glob(".*"))


def test_a_report_needs_no_torch_and_no_pyplot() -> None:
    code = (
        "import sys, fieldwise.reporting.report; sys.exit('torch' in sys.modules or 'matplotlib.pyplot' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
