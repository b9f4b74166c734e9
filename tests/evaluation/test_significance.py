"""The test against enumerating all signs, its direction, and how it is said."""

import itertools
import json
import shutil

import numpy as np
import pytest
from scipy.stats import rankdata, wilcoxon

from fieldwise import cli
from fieldwise.bundle.predictions import FILE, Predictions
from fieldwise.config.errors import BundleError, ConfigError, FieldwiseError
from fieldwise.config.settings import load_config
from fieldwise.data.encode.prepare import prepare
from fieldwise.data.world import World
from fieldwise.evaluation import metrics
from fieldwise.evaluation.significance import by_block, compare_pairs, loss_gap, sentences, signed_rank
from fieldwise.reporting.report import differences, write_report
from fieldwise.train.loop import train


def enumerated(gains):
    """p of the rank sum of positive gains among all 2^n ways to choose signs, in float64: two-sided, more, less."""
    gains = gains[gains != 0]
    ranks = rankdata(np.abs(gains))
    signs = np.array(list(itertools.product([0, 1], repeat=len(gains))))
    sums, found = signs @ ranks, ranks[gains > 0].sum()
    more, less = (sums >= found - 1e-9).mean(), (sums <= found + 1e-9).mean()
    return min(1.0, 2 * min(more, less)), more, less


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("shift", [-0.6, 0.0, 0.8])
def test_p_equals_enumerating_all_signs(shift, ties):
    for seed in range(5):
        gains = np.random.default_rng(seed).normal(shift, 1, 11)
        if ties:
            gains = np.append(np.round(gains * 2) / 2, 0.0)
        found = signed_rank(gains)
        assert (found["p"], found["p_better"], found["p_worse"]) == pytest.approx(enumerated(gains), abs=1e-12)


@pytest.mark.parametrize(("blocks", "ties"), [(12, False), (50, False), (51, False), (80, True), (300, True)])
def test_p_is_that_of_scipy(blocks, ties):
    gains = np.random.default_rng(blocks).normal(0.2, 1, blocks)
    if ties:
        gains = np.round(gains * 4) / 4
    found = signed_rank(gains)
    method = "exact" if blocks <= 50 else "asymptotic"
    for key, side in {"p": "two-sided", "p_better": "greater", "p_worse": "less"}.items():
        expected = wilcoxon(gains[gains != 0], alternative=side, correction=False, method=method).pvalue
        assert found[key] == pytest.approx(float(expected), rel=1e-9), key


def test_no_difference_is_no_reason_to_call_one_better():
    found = signed_rank(np.zeros(50))
    assert (found["p"], found["verdict"], found["better"], found["worse"]) == (1.0, "not told apart", 0, 0)
    nothing = signed_rank(np.empty(0))
    assert (nothing["p"], nothing["mean"], nothing["median"], nothing["blocks"]) == (1.0, None, None, 0)


def predictions(noise, rows=4000, seed=0, weights=None, part="test"):
    """Predictions whose logits miss the truth by `noise`, on the same labels whatever the noise."""
    rng = np.random.default_rng(0)
    truth = rng.normal(-1, 1, rows)
    labels = (rng.random(rows) < metrics.sigmoid(truth)).astype(np.uint8)
    missed = noise * np.random.default_rng(seed + 1).normal(size=rows)
    return Predictions(part, labels, metrics.sigmoid(truth + missed).astype(np.float32), weights)


def test_blocks_are_consecutive_rows():
    found = predictions(0.5, rows=103, weights=np.linspace(0, 2, 103).astype(np.float32))
    blocks = by_block(found, 10)
    for number, rows in enumerate(np.array_split(np.arange(103), 10)):
        own = found.labels[rows], found.probabilities[rows], found.weights[rows]
        assert blocks["log_loss"][number] == pytest.approx(metrics.log_loss(*own))
        assert blocks["auc"][number] == pytest.approx(metrics.auc(*own), nan_ok=True)


def test_the_direction_is_right_whichever_is_named_first():
    named = {"good": [predictions(0.1)], "bad": [predictions(1.5)]}
    tested = compare_pairs(named, [("good", "bad"), ("bad", "good")])
    first, second = tested["pairs"]
    assert (tested["part"], tested["rows"], tested["blocks"]) == ("test", 4000, 50)
    for metric in ("log_loss", "auc"):
        one, two = first[metric], second[metric]
        assert (one["verdict"], two["verdict"]) == ("better", "worse")
        assert (one["better"], one["worse"]) == (two["worse"], two["better"])
        assert one["mean"] == -two["mean"] > 0
        assert one["median"] == -two["median"] > 0
        assert one["p"] == two["p"] < 1e-3
        assert (one["p_better"], one["p_worse"]) == pytest.approx((two["p_worse"], two["p_better"]))
    words, blocks = sentences(tested), f"{first['log_loss']['better']} of 50 blocks, p = "
    assert words[0].startswith(f"good is better than bad on log loss: better in {blocks}")
    assert words[1].startswith("good is better than bad on AUC: better in ")
    assert words[2].startswith(f"bad is worse than good on log loss: worse in {blocks}")
    gain = metrics.log_loss(named["bad"][0].labels, named["bad"][0].probabilities) - metrics.log_loss(
        named["good"][0].labels, named["good"][0].probabilities
    )
    assert first["log_loss"]["mean"] == pytest.approx(gain)  # blocks of 80 rows each


@pytest.mark.parametrize("weighted", [False, True])
def test_the_gap_is_that_of_both_log_losses_and_its_error_that_of_blocks(weighted):
    random = np.random.default_rng(1)
    labels, weights = random.integers(0, 2, 120).astype(np.uint8), random.random(120).astype(np.float32)
    probabilities = random.uniform(0.1, 0.9, (2, 120))
    one, other = (Predictions("test", labels, own, weights if weighted else None) for own in probabilities)
    gap, error, blocks = loss_gap(one, other, 10)
    both = [metrics.evaluate(each.labels, each.probabilities, each.weights)["log_loss"] for each in (one, other)]
    assert gap == pytest.approx(both[0] - both[1], abs=1e-12)
    weights = weights if weighted else np.ones(120)
    away = []
    for block in range(10):
        total = 0.0
        for row in range(12 * block, 12 * block + 12):
            loss = [-np.log(p if y else 1 - p) for y, p in zip(one.labels, one.probabilities, strict=True)][row]
            rival = [-np.log(p if y else 1 - p) for y, p in zip(one.labels, other.probabilities, strict=True)][row]
            total += weights[row] * (loss - rival - gap)
        away.append(total / weights.sum(dtype=float))
    assert error == pytest.approx(np.sqrt(sum(one**2 for one in away) * 10 / 9))
    assert blocks == 10
    with pytest.raises(ConfigError, match="blocks must be from 6"):
        loss_gap(one, other, 3)


def test_models_of_equal_worth_are_not_told_apart():
    tested = compare_pairs({"a": [predictions(0.5, seed=1)], "b": [predictions(0.5, seed=2)]}, [("a", "b")])
    assert tested["pairs"][0]["log_loss"]["verdict"] == "not told apart"
    assert sentences(tested)[0].startswith("a and b are not told apart on log loss: a is better in ")


def test_seeds_are_averaged_block_by_block():
    seeds = [predictions(0.5, seed=seed) for seed in range(3)]
    tested = compare_pairs({"a": seeds, "b": [predictions(1.0)]}, [("a", "b")])
    losses = np.mean([by_block(run, 50)["log_loss"] for run in seeds], axis=0)
    expected = signed_rank(by_block(predictions(1.0), 50)["log_loss"] - losses)
    assert tested["pairs"][0]["log_loss"] == expected


def test_blocks_without_both_classes_have_no_auc():
    rare = predictions(0.5)
    rare = Predictions("test", np.where(np.arange(4000) < 400, rare.labels, 0).astype(np.uint8), rare.probabilities)
    never = Predictions("test", np.zeros_like(rare.labels), rare.probabilities)
    tested = compare_pairs({"a": [rare], "b": [rare]}, [("a", "b")])["pairs"][0]
    assert (tested["log_loss"]["blocks"], tested["auc"]["blocks"]) == (50, 5)
    words = sentences(compare_pairs({"a": [never], "b": [never]}, [("a", "b")]))
    assert words[1] == "a and b cannot be compared on AUC: no block has rows of both classes."


def test_other_rows_and_too_few_or_many_blocks_are_refused():
    one = predictions(0.5)
    others = [
        predictions(0.5, rows=3999),
        predictions(0.5, part="valid"),
        predictions(0.5, weights=np.ones(4000, dtype=np.float32)),
        Predictions("test", 1 - one.labels, one.probabilities),
    ]
    for other in others:
        with pytest.raises(FieldwiseError, match="only runs with the same held-out rows compare; those of b are not"):
            compare_pairs({"a": [one], "b": [other]}, [("a", "b")])
    for blocks in (5, 4001):
        with pytest.raises(ConfigError, match=f"blocks must be from 6 to the number of rows, 4,000, found {blocks:,}"):
            compare_pairs({"a": [one]}, [("a", "a")], blocks)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """LR and FM on one prepared folder, and LR on other rows."""
    folder = tmp_path_factory.mktemp("significance")
    for name, seed in (("data", 0), ("other", 1)):
        log = World("demo", seed).log(2000, seed).table
        prepare({"train": lambda log=log: iter([log])}, folder / name, "click")
    for model, data in (("lr", "data"), ("fm", "data"), ("far", "other")):
        name = "lr" if model == "far" else model
        base = {"model.name": name, "train.epochs": 2, "device": "cpu"}
        train(load_config(base=base), folder / data, folder / model)
    return folder


def run(*arguments):
    with pytest.raises(SystemExit) as end:
        cli.main([str(argument) for argument in arguments])
    return end.value.code


def test_a_run_keeps_its_test_predictions(runs):
    found = Predictions.load(runs / "lr")
    report = json.loads((runs / "lr" / "report.json").read_text())
    assert (found.part, len(found.labels)) == ("test", report["test"]["rows"])
    kept = metrics.evaluate(found.labels, found.probabilities, found.weights)
    assert kept["log_loss"] == pytest.approx(report["test"]["log_loss"], rel=1e-6)
    assert kept["auc"] == pytest.approx(report["test"]["auc"], abs=1e-6)


def test_report_with_significance(runs, tmp_path, capsys):
    page = tmp_path / "report.html"
    assert run("report", runs / "lr", runs / "fm", "--significance", "-o", page, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    best = min(found["runs"], key=lambda row: row["log_loss"])["name"]
    tested = found["significance"]
    assert [(pair["name"], {pair["name"], pair["other"]}) for pair in tested["pairs"]] == [(best, {"lr", "fm"})]
    assert tested["blocks"] == 50
    assert run("report", runs / "lr", runs / "fm", "--significance", "--blocks", 20, "-o", page) == 0
    text = capsys.readouterr().out
    words = sentences(differences([runs / "lr", runs / "fm"], 20))
    assert len(words) == 2
    for sentence in words:
        assert sentence in text
        assert sentence in page.read_text()
    assert "Is the difference real?" in page.read_text()
    assert "--significance --blocks 20" in page.read_text()
    assert "Is the difference real?" not in write_report([runs / "lr"], tmp_path / "plain.html").read_text()


def test_a_run_against_itself_is_not_significant(runs, tmp_path, capsys):
    assert run("report", runs / "lr", runs / "lr", "--significance", "-o", tmp_path / "r.html") == 0
    assert "lr (1) and lr (2) are not told apart on log loss: lr (1) is better in 0 of 50 blocks, p = 1" in (
        capsys.readouterr().out
    )


def test_what_cannot_be_compared_is_one_line(runs, tmp_path, capsys):
    page = tmp_path / "r.html"
    unfinished, old = tmp_path / "unfinished", tmp_path / "old"
    for copy in (unfinished, old):
        shutil.copytree(runs / "fm", copy)
    (unfinished / "DONE").unlink()
    (old / FILE).unlink()
    for arguments, message in (
        ([runs / "lr", runs / "far"], "only runs with the same held-out rows compare"),
        ([runs / "lr"], "--significance compares runs: name at least two, found 1"),
        ([runs / "lr", unfinished], "needs a finished run"),
        ([runs / "lr", old], f"the run's {FILE} is missing or damaged"),
        ([runs / "lr", runs / "fm", "--blocks", 3], "blocks must be from 6"),
    ):
        assert run("report", *arguments, "--significance", "-o", page) == 2
        lines = capsys.readouterr().err.splitlines()
        assert len(lines) == 1
        assert message in lines[0]
        assert not page.exists()
    assert run("report", runs / "lr", "--blocks", 20, "-o", page) == 2
    (old / FILE).write_bytes(b"PAR1 no")
    with pytest.raises(BundleError, match="missing or damaged"):
        Predictions.load(old)
