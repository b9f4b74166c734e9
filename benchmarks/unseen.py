"""What a stranger gets without a setting, on any folder of csv files, beside CatBoost, LightGBM, XGBoost and LR.

    python benchmarks/unseen.py SETS --out OUT [--sets adult,amazon] [--only lr,catboost] [--peers PYTHON] [--name NAME]

SETS/NAME holds a csv file and target.txt: the 0/1 label column in its first line, then any of `time COLUMN` (rows are
split by it), `category COLUMN` (whole numbers that are codes; `*`: all of them). Test rows are the last fifth by time,
else a fifth of each class at random; a folder with train.csv and test.csv has its own. Ours: `prepare`, `compare` and
`predict` as a user types them, in processes of their own, on the training rows. Peers have their own defaults and stop
early on a tenth of the training rows, the last ones where there is a time; text columns are their categories. Where
there is a time they run twice, reading it as a number and not at all. Each has an environment of its own in the user's
cache folder, or `--peers`. Processor seconds are those of the whole processes, imports and reading included.

Leaves OUT/results.jsonl, a line for each set and entrant, and OUT/table.md, a line for each set, and prints a table.
What is in OUT is kept: a killed call goes on, and `--name` runs ours once more beside what is there, such as before and
after a change.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from environments import environment
from numpy.typing import NDArray

from fieldwise.evaluation import metrics

PINS = {
    "lr": ("scikit-learn==1.7.2",),
    "xgboost": ("xgboost==3.2.0", "scikit-learn==1.7.2"),
    "lightgbm": ("lightgbm==4.7.0", "scikit-learn==1.7.2"),
    "catboost": ("catboost==1.2.10",),
}
CHILD = Path(__file__).with_name("trees_peers.py")
NO_TIME = "no-time"
BOOTSTRAPS, AUC_BOOTSTRAPS = 1000, 200
Rows = list[list[str]]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Set:
    """A folder of SETS: its files, and what target.txt says of the columns."""

    folder: Path
    label: str
    time: str
    categories: tuple[str, ...]

    @classmethod
    def read(cls, folder: Path) -> Set:
        label, *lines = (folder / "target.txt").read_text(encoding="utf-8").splitlines()
        said = [line.split(" ", 1) for line in lines if line.strip()]
        for words in said:
            if len(words) != 2 or words[0] not in ("time", "category"):
                sys.exit(f"target.txt takes `time COLUMN` and `category COLUMN`, found '{' '.join(words)}' ({folder})")
        time = next((name for word, name in said if word == "time"), "")
        return cls(folder, label.strip(), time, tuple(name for word, name in said if word == "category"))

    @property
    def name(self) -> str:
        return self.folder.name

    def rows(self) -> tuple[list[str], Rows, Rows]:
        """The header, the training rows and the test rows, each in the order of the file."""
        if (self.folder / "test.csv").exists():
            header, train = read_csv(self.folder / "train.csv")
            return header, train, read_csv(self.folder / "test.csv")[1]
        header, rows = read_csv(next(self.folder.glob("*.csv")))
        away = self.last(header, rows, 0.2)
        return header, _chosen(rows, ~away), _chosen(rows, away)

    def last(self, header: list[str], rows: Rows, share: float) -> NDArray[np.bool_]:
        """Which rows are the last share by time, rows of one time together, or a share of each class at random."""
        if self.time:
            times = _ordered([row[header.index(self.time)] for row in rows])
            return np.asarray(times >= np.sort(times)[round((1 - share) * len(times))])
        labels, random = self.labels(header, rows), np.random.default_rng(0)
        away = np.zeros(len(rows), dtype=bool)
        for value in (0, 1):
            own = np.flatnonzero(labels == value)
            away[random.choice(own, round(share * len(own)), replace=False)] = True
        return away

    def labels(self, header: list[str], rows: Rows) -> NDArray[np.int64]:
        found = [row[header.index(self.label)] for row in rows]
        if not set(found) <= {"0", "1"}:
            sys.exit(f"the label must be 0 or 1, found {sorted(set(found))[:5]} ({self.folder}, {self.label})")
        return np.array(found, dtype=np.int64)

    def columns(self, header: list[str], rows: Rows) -> dict[str, Any]:
        """What peers read: categories, numbers and times. Texts of which no two are alike say nothing and are left
        out."""
        kinds: dict[str, list[str]] = {"numbers": [], "categories": [], "times": []}
        for place, name in enumerate(header):
            values = {row[place] for row in rows}
            is_number = all(map(_is_number, values))
            coded = name in self.categories or ("*" in self.categories and not any("." in v for v in values))
            if name == self.time:
                kinds["numbers" if is_number else "times"].append(name)
            elif is_number and not coded:
                kinds["numbers"].append(name)
            elif name != self.label and len(values) < 0.9 * len(rows):
                kinds["categories"].append(name)
        kinds["numbers"] = [name for name in kinds["numbers"] if name != self.label]
        return {"label": self.label, "own_settings": True, **kinds}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sets", type=Path, metavar="SETS")
    parser.add_argument("--sets", dest="some", default="", help="some of the sets, with commas")
    parser.add_argument("--only", default="", help="some of the peers and ours, with commas")
    parser.add_argument("--peers", default="", help="a python that has all peers; environments are made without it")
    parser.add_argument("--name", default="ours", help="what ours is called in the results")
    parser.add_argument("--out", type=Path, required=True)
    asked = parser.parse_args()
    names = asked.some.split(",") if asked.some else sorted(p.parent.name for p in asked.sets.glob("*/target.txt"))
    entrants = asked.only.split(",") if asked.only else [asked.name, *PINS]
    for name in names:
        one = Set.read(asked.sets / name)
        _run(one, entrants, asked)
        lines = write_results(asked.out)
        _show(name, [line for line in lines if line["set"] == name])


def _run(one: Set, entrants: list[str], asked: argparse.Namespace) -> None:
    """Runs the entrants of a set that are not in its folder yet."""
    folder = asked.out / one.name
    if not (folder / "facts.json").exists():
        _write(one, folder)
    for name in entrants:
        if name == asked.name:
            _keep(folder, name, partial(_ours, folder, name))
        elif name not in PINS:
            sys.exit(f"--only takes {', '.join(PINS)} and {asked.name}, found '{name}'")
        else:
            python = asked.peers or environment(f"unseen-{name}", PINS[name], ("pandas==2.3.3",))
            for view in [(), (NO_TIME,)] if one.time else [()]:
                _keep(folder, "-".join([name, *view]), partial(_peer, folder, python, name, *view))


def _write(one: Set, folder: Path) -> None:
    """The files that entrants read: ours train.csv and test.csv without the label, peers those in peers/."""
    header, train, test = one.rows()
    shutil.rmtree(folder, ignore_errors=True)
    peers = folder / "peers"
    peers.mkdir(parents=True)
    label = header.index(one.label)
    _write_csv(folder / "train.csv", header, train)
    _write_csv(folder / "test.csv", header[:label] + header[label + 1 :], [r[:label] + r[label + 1 :] for r in test])
    held = one.last(header, train, 0.1)
    for part, rows in (("train", _chosen(train, ~held)), ("valid", _chosen(train, held)), ("test", test)):
        _write_csv(peers / f"{part}.csv", header, rows)
    columns = one.columns(header, train)
    _write_json(peers / "columns.json", columns)
    without = {kind: [name for name in columns[kind] if name != one.time] for kind in ("numbers", "times")}
    _write_json(peers / f"{NO_TIME}.json", columns | without)
    np.save(folder / "labels.npy", one.labels(header, test))
    facts = {"rows": len(train), "test_rows": len(test), "bytes": (folder / "train.csv").stat().st_size}
    _write_json(folder / "facts.json", {**facts, "label": one.label})


def _keep(folder: Path, name: str, run: Callable[[], tuple[Floats, int]]) -> None:
    """Runs an entrant, unless it is there, and keeps its probabilities, its processor seconds, and how many bytes it
    left on the disk. One that fails is named and left out."""
    if (folder / f"{name}.json").exists():
        return
    began, wall = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    try:
        probabilities, disk = run()
    except subprocess.CalledProcessError as error:
        print(f"{folder.name}: {name} is left out; {error}", flush=True)
        return
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    spent = ended.ru_utime + ended.ru_stime - began.ru_utime - began.ru_stime
    np.save(folder / f"{name}.npy", probabilities)
    facts = {"processor_s": round(spent, 1), "wall_s": round(time.monotonic() - wall, 1), "disk": disk}
    _write_json(folder / f"{name}.json", facts)


def _ours(folder: Path, name: str) -> tuple[Floats, int]:
    """`prepare`, `compare` and `predict` with no setting but the names of files and of the label."""
    work = folder / f"work-{name}"
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir()
    label = json.loads((folder / "facts.json").read_text(encoding="utf-8"))["label"]
    data, runs, predictions = work / "data", work / "comparison", work / "predictions.csv"
    _fieldwise(work, "prepare", folder / "train.csv", "--label", label, "--out", data)
    _fieldwise(work, "compare", data, "--out", runs)
    _fieldwise(work, "predict", runs / "best", folder / "test.csv", "-o", predictions)
    found = np.array([float(row[0]) for row in read_csv(predictions)[1]])
    disk = sum({file.stat().st_ino: file.stat().st_size for file in work.rglob("*") if file.is_file()}.values())
    shutil.rmtree(work)
    return found, disk


def _fieldwise(work: Path, *arguments: Any) -> None:
    """One verb, whose output goes to a file beside the work."""
    with work.with_suffix(".log").open("a", encoding="utf-8") as log:
        command = [sys.executable, "-m", "fieldwise", *map(str, arguments)]
        subprocess.run(command, stdout=log, stderr=subprocess.STDOUT, check=True)


def _peer(folder: Path, python: str, name: str, *view: str) -> tuple[Floats, int]:
    command = [python, str(CHILD), str(folder / "peers"), name, *view]
    subprocess.run(command, check=True, env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": ""})
    with np.load(folder / "peers" / f"{'-'.join([name, *view])}.npz") as kept:
        return kept["test"].astype(np.float64), 0


def write_results(out: Path) -> list[dict[str, Any]]:
    """Writes results.jsonl of all that is there, and returns its lines: metrics, and differences to the first of
    ours. A difference is ours less theirs, so that a negative one is better for us in log loss."""
    lines = [line for folder in sorted(out.glob("*/facts.json")) for line in _lines(folder.parent)]
    work = out / ".results.jsonl"
    work.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    work.rename(out / "results.jsonl")
    (out / "table.md").write_text(_table(lines), encoding="utf-8")
    return lines


def _table(lines: list[dict[str, Any]]) -> str:
    """A line for each set and each of ours: log loss of all, and the difference to the best of the peers. A peer that
    ran twice is there with its better log loss."""
    heads = [
        "set",
        "ours",
        *PINS,
        "to the best of them",
        "AUC to its AUC",
        "predicted / observed",
        "CPU s",
        "CatBoost's",
    ]
    shown = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for name in dict.fromkeys(line["set"] for line in lines):
        own = [line for line in lines if line["set"] == name]
        peers = {peer: min(_of(own, peer), key=lambda line: line["log_loss"]) for peer in PINS if _of(own, peer)}
        for line in own:
            if peers and not any(line in _of(own, peer) for peer in PINS):
                shown.append(f"| {name} | {line['entrant']} {line['log_loss']:.4f} | {_beside(line, peers)} |")
    return "\n".join(shown) + "\n"


def _of(lines: list[dict[str, Any]], peer: str) -> list[dict[str, Any]]:
    return [line for line in lines if line["entrant"] in (peer, f"{peer}-{NO_TIME}")]


def _beside(line: dict[str, Any], peers: dict[str, dict[str, Any]]) -> str:
    """The cells of a line after our log loss."""
    best = min(peers.values(), key=lambda peer: peer["log_loss"])
    gap = best["ours_less_this"][line["entrant"]]
    cells = [f"{peers[peer]['log_loss']:.4f}" if peer in peers else "" for peer in PINS]
    cells += [f"{gap[key]:+.4f} ± {gap[f'{key}_se']:.4f}" for key in ("log_loss", "auc")]
    spent = f"{peers['catboost']['processor_s']:.0f}" if "catboost" in peers else ""
    return " | ".join([*cells, f"{line['predicted_observed']:.3f}", f"{line['processor_s']:.0f}", spent])


def _lines(folder: Path) -> list[dict[str, Any]]:
    facts, labels = json.loads((folder / "facts.json").read_text(encoding="utf-8")), np.load(folder / "labels.npy")
    known = {path.stem: np.load(path) for path in sorted(folder.glob("*.npy")) if path.stem != "labels"}
    ours = [name for name in known if name.removesuffix(f"-{NO_TIME}") not in PINS]
    lines = []
    for name in [*ours, *(name for name in known if name not in ours)]:
        spent = json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))
        measured = metrics.evaluate(labels, known[name])
        line = {"set": folder.name, "entrant": name, **{key: measured[key] for key in ("log_loss", "auc")}}
        line |= {"predicted_observed": float(known[name].mean() / labels.mean()), **spent}
        line |= {"disk_of_csv": spent["disk"] / facts["bytes"], "positives": int(labels.sum()), **facts}
        line["ours_less_this"] = {own: difference(labels, known[own], known[name]) for own in ours if own != name}
        lines.append(line)
    return lines


def difference(labels: NDArray[np.int64], ours: Floats, theirs: Floats) -> dict[str, float]:
    """Our log loss and AUC less theirs on the same rows, with standard errors from bootstraps of the rows."""
    random, count = np.random.default_rng(0), len(labels)
    gaps = metrics.losses(labels, ours) - metrics.losses(labels, theirs)
    means = [float(gaps[random.integers(count, size=count)].mean()) for _ in range(BOOTSTRAPS)]
    areas = []
    for _ in range(AUC_BOOTSTRAPS):
        drawn = random.integers(count, size=count)
        areas.append(metrics.auc(labels[drawn], ours[drawn]) - metrics.auc(labels[drawn], theirs[drawn]))
    auc = metrics.auc(labels, ours) - metrics.auc(labels, theirs)
    return {
        "log_loss": float(gaps.mean()),
        "log_loss_se": float(np.std(means)),
        "auc": float(auc),
        "auc_se": float(np.nanstd(areas)),
    }


def _show(name: str, lines: list[dict[str, Any]]) -> None:
    if not lines:
        return
    facts = lines[0]
    print(
        f"\n{name}: {facts['rows']:,} rows, {facts['test_rows']:,} test rows, {facts['positives']:,} of them positive"
    )
    print(f"{'':18}{'log loss':>9}{'AUC':>8}{'pred/obs':>9}{'CPU s':>8}{'disk':>7}  ours less this")
    for line in sorted(lines, key=lambda one: one["log_loss"]):
        shown = f"{line['entrant']:18}{line['log_loss']:9.4f}{line['auc']:8.4f}{line['predicted_observed']:9.3f}"
        disk = f"{line['disk_of_csv']:6.1f}x" if line["disk"] else f"{'':7}"
        beside = "  ".join(
            f"{own}: {gap['log_loss']:+.4f} +- {gap['log_loss_se']:.4f}" for own, gap in line["ours_less_this"].items()
        )
        print(f"{shown}{line['processor_s']:8.0f}{disk}  {beside}", flush=True)


def read_csv(path: Path) -> tuple[list[str], Rows]:
    with path.open(encoding="utf-8", newline="") as file:
        header, *rows = csv.reader(file)
    return header, rows


def _write_csv(path: Path, header: list[str], rows: Rows) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([header, *rows])


def _write_json(path: Path, facts: dict[str, Any]) -> None:
    work = path.with_name(f".{path.name}")
    work.write_text(json.dumps(facts), encoding="utf-8")
    work.rename(path)


def _chosen(rows: Rows, which: NDArray[np.bool_]) -> Rows:
    return [rows[place] for place in np.flatnonzero(which)]


def _is_number(text: str) -> bool:
    """Whether a cell holds a number, or nothing."""
    try:
        float(text or 0)
    except ValueError:
        return False
    return True


def _ordered(times: list[str]) -> NDArray[Any]:
    """Times that compare in their order: numbers, or texts such as ISO dates."""
    return np.array([float(text) for text in times] if all(map(_is_number, times)) else times)


if __name__ == "__main__":
    main()
