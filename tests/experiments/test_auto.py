"""AutoClassifier is `prepare`, `compare` and `predict`: the same numbers, behind scikit-learn's face."""

import pickle
import traceback

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from sklearn.base import clone
from sklearn.utils.estimator_checks import check_estimator

from fieldwise import AutoClassifier, Classifier, Predictor, World, cli
from fieldwise.config.errors import ArgumentError, ConfigError
from fieldwise.data.schema import Field, Schema

# One model of each way to read the rows, and their blend.
QUICK = {"models": "gbdt-order,lr-rates,fm", "blend": "all", "seeds": 1}


@pytest.fixture(scope="module")
def log():
    return World("demo").log(900).table.to_pandas()


@pytest.fixture(scope="module")
def fitted(log):
    return AutoClassifier("lr", seeds=1, refit=False).fit(log.drop(columns="click"), log["click"])


def run(*arguments):
    with pytest.raises(SystemExit) as end:
        cli.main([str(argument) for argument in arguments])
    assert end.value.code == 0


@pytest.mark.parametrize("by", [{}, {"time_column": "day"}, {"groups": ["user", "item"]}], ids=["", "time", "groups"])
def test_it_equals_the_command_line_bit_for_bit(log, by, tmp_path):
    file, data, out = tmp_path / "log.csv", tmp_path / "data", tmp_path / "comparison"
    log.to_csv(file, index=False)
    rows = pd.read_csv(file)
    # One model where the way to split is the question: without close candidates no folds are trained.
    asked = {"models": "lr", "seeds": 1} if by else QUICK
    model = AutoClassifier(**asked, **by)
    model.fit(rows.drop(columns="click"), rows["click"])
    split = {"time_column": ["--split-by", "day"], "groups": ["--split-group", "user,item"]}
    run("prepare", file, "--label", "click", *(split[next(iter(by))] if by else ()), "--out", data)
    blend = ["--blend", asked["blend"]] if "blend" in asked else []
    run("compare", data, "--models", model.models, *blend, "--seeds", 1, "--out", out)
    run("predict", out / "best", file, "-o", tmp_path / "predictions.csv")
    expected = pd.read_csv(tmp_path / "predictions.csv")["probability"].to_numpy()
    np.testing.assert_array_equal(model.predict_proba(rows)[:, 1], expected)
    assert "refit_rows" in model.report_["best"]


def test_the_usual_line_up_is_that_of_the_command_line(log, tmp_path, monkeypatch):
    """Without a setting both hand the same models, members, seeds and rows to the comparison."""
    from fieldwise.experiments import auto, compare

    seen = []

    def stop(entrants, data, out, *more, **named):
        names = ("seeds", "recipes", "device", "workers", "watch", "members", "refit", "limit")
        settings = {"recipes": None, "workers": 1, "limit": float("inf")} | dict(zip(names, more, strict=False)) | named
        bytes_of = {part: (data / part / "ids.npy").read_bytes() for part in ("train", "valid", "test")}
        seen.append(([(one.name, one.settings) for one in entrants], bytes_of, settings | {"watch": None}))
        raise ConfigError("seen")

    monkeypatch.setattr(auto, "compare", stop)
    monkeypatch.setattr(compare, "compare", stop)
    with pytest.raises(ConfigError, match="seen"):
        AutoClassifier().fit(log.drop(columns="click"), log["click"])
    log.to_csv(tmp_path / "log.csv", index=False)
    run("prepare", tmp_path / "log.csv", "--label", "click", "--out", tmp_path / "data")
    with pytest.raises(SystemExit):
        cli.main(["compare", str(tmp_path / "data"), "--out", str(tmp_path / "comparison")])
    assert seen[0] == seen[1]
    assert seen[0][2]["members"] == [name for name, _ in seen[0][0]]


def test_tables_arrays_pickles_and_bundles_agree(fitted, log, tmp_path):
    rows = log.drop(columns="click").head(50)
    expected = fitted.predict_proba(rows)
    assert expected.shape == (50, 2)
    np.testing.assert_array_equal(fitted.predict_proba(pa.Table.from_pandas(rows)), expected)
    np.testing.assert_array_equal(fitted.predict_proba(rows.to_numpy()), expected)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(fitted)).predict_proba(rows), expected)
    fitted.save(tmp_path / "bundle")
    np.testing.assert_array_equal(AutoClassifier.load(tmp_path / "bundle").predict_proba(rows), expected)
    np.testing.assert_array_equal(Predictor.load(tmp_path / "bundle").predict(rows), expected[:, 1])
    assert fitted.score(rows, log["click"].head(50)) > 0.5
    log.head(50).to_csv(tmp_path / "log.csv", index=False)
    run("predict", tmp_path / "bundle", tmp_path / "log.csv", "-o", tmp_path / "p.csv")
    np.testing.assert_array_equal(pd.read_csv(tmp_path / "p.csv")["probability"], expected[:, 1])


def test_names_and_numbers_of_features(fitted, log):
    assert list(fitted.feature_names_in_) == list(log.columns.drop("click"))
    assert fitted.n_features_in_ == 11
    with pytest.raises(ValueError, match="X has 10 features, but AutoClassifier is expecting 11 features as input"):
        fitted.predict(log.drop(columns="click").to_numpy()[:, 1:])


def test_an_array_has_numbers_for_columns(log):
    values = log.drop(columns=["click", "genres"]).to_numpy()
    model = AutoClassifier("lr", seeds=1, refit=False, time_column=0, groups=None).fit(values, log["click"])
    assert not hasattr(model, "feature_names_in_")
    assert model.n_features_in_ == 10
    assert model.left_out_ == ["c0"]


def test_parameters_are_those_of_scikit_learn():
    model = AutoClassifier(time_column="day", time_budget=60.0)
    assert clone(model).get_params() == model.get_params()
    assert model.set_params(groups="user", time_column=None).groups == "user"


def test_left_out_columns_are_named(log):
    rows = log.drop(columns="click").assign(request=[f"r{n}" for n in range(len(log))])
    with pytest.warns(UserWarning, match="columns left out: request .*another value in every row"):
        model = AutoClassifier("lr", seeds=1, refit=False).fit(rows, log["click"])
    assert model.left_out_ == ["request"]


def test_classes_of_any_kind(log):
    words = np.where(log["click"] > 0, "yes", "no")
    model = AutoClassifier("lr", seeds=1, refit=False).fit(log[["user", "item", "price"]], words)
    assert list(model.classes_) == ["no", "yes"]
    assert set(model.predict(log)) <= {"no", "yes"}


def test_a_schema_and_weights(log):
    schema = Schema("bought", (Field("user"), Field("item")))
    model = AutoClassifier("lr", seeds=1, refit=False, schema=schema)
    model.fit(log.drop(columns="click"), log["click"], sample_weight=np.where(log["click"] > 0, 5.0, 1.0))
    assert model.predictor.schema.names == ["user", "item"]
    assert model.predict_proba(log)[:, 1].mean() > log["click"].mean() + 0.1


def test_a_time_budget_leaves_the_best_of_what_was_trained(log):
    model = AutoClassifier("lr,fm", seeds=2, time_budget=1e-3)
    model.fit(log.drop(columns="click"), log["click"])
    assert [row["model"] for row in model.report_["models"]] == ["lr"]
    assert "refit_rows" not in model.report_["best"]
    with pytest.raises(ConfigError, match="time_budget takes seconds above 0, or None, found 0"):
        AutoClassifier(time_budget=0).fit(log.drop(columns="click"), log["click"])


@pytest.mark.parametrize("make", [AutoClassifier, Classifier])
@pytest.mark.parametrize("gap", [None, float("nan"), pd.NA])
def test_a_gap_in_y_is_named(log, make, gap):
    y = log["click"].astype(object)
    y[[3, 7]] = gap
    with pytest.raises(
        ArgumentError, match=r"y must have a class for each row, found NaN in 2 of 900 \(the first in row 4"
    ):
        make("lr").fit(log.drop(columns="click"), y)


def test_mistakes_name_x_and_not_a_file(log):
    rows = log.drop(columns="click")
    with pytest.raises(ValueError, match="two classes, found 1 class"):
        AutoClassifier().fit(rows, np.zeros(900))
    with pytest.raises(ConfigError, match="unknown model 'lrr'"):
        AutoClassifier("lrr").fit(rows, log["click"])
    with pytest.raises(ValueError, match=r"bad_column.*X\)$") as error:
        AutoClassifier("lr", schema=Schema("y", (Field("bad_column"),))).fit(rows, log["click"])
    assert "rows.parquet" not in str(error.value)


# Rows are held out at random, whatever they weigh; those of some checks are too few to hold out some of both classes.
NOT_OURS = {"check_sample_weight_equivalence_on_dense_data": "rows are held out at random"}
TOO_FEW = ("must be of both classes", "needs a validation part", "needs at least")


@pytest.mark.parametrize(
    ("model", "least"),
    [(Classifier("lr", {"train.epochs": 3}), 45), (AutoClassifier("lr", seeds=1, refit=False), 30)],
    ids=["Classifier", "AutoClassifier"],
)
@pytest.mark.filterwarnings("ignore")
def test_scikit_learns_own_checks(model, least):
    found = check_estimator(model, expected_failed_checks=NOT_OURS, on_skip=None, on_fail=None)
    # A check may raise an error of its own upon ours.
    failed = {
        one["check_name"]: "".join(traceback.format_exception(one["exception"]))
        for one in found
        if one["status"] == "failed"
    }
    few = {name for name, error in failed.items() if any(words in error for words in TOO_FEW)}
    assert {name: error for name, error in failed.items() if name not in few} == {}
    assert not few or isinstance(model, AutoClassifier)
    assert sum(one["status"] == "passed" for one in found) >= least
