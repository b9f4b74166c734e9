import pickle

import joblib
import numpy as np
import polars
import pytest
from joblib.externals.loky import get_reusable_executor
from sklearn.base import clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.inspection import permutation_importance
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import FunctionTransformer

from fieldwise import Classifier, Predictor, Schema, World
from fieldwise.config.errors import ConfigError, DataError
from fieldwise.data.schema import Field

SETTINGS = {"train.epochs": 2, "model.dim": 4, "train.lr": 0.01, "train.batch_size": 100}


@pytest.fixture(scope="module")
def log():
    table = World("demo").log(2500).table.to_pandas()
    return table.drop(columns="click"), table["click"]


@pytest.fixture(scope="module")
def fitted(log):
    return Classifier("fm", SETTINGS).fit(*log)


def test_it_learns_and_gives_two_columns(fitted, log):
    probabilities = fitted.predict_proba(log[0])
    assert probabilities.shape == (2500, 2)
    np.testing.assert_allclose(probabilities.sum(axis=1), 1)
    assert roc_auc_score(log[1], probabilities[:, 1]) > 0.6
    assert set(fitted.predict(log[0])) <= {0, 1}


def test_unseen_and_missing_values(fitted, log):
    strange = log[0].head(2).copy()
    strange["user"] = ["nobody", None]
    assert np.isfinite(fitted.predict_proba(strange)).all()


def test_save_load_pickle_and_predictor_agree(fitted, log, tmp_path):
    expected = fitted.predict_proba(log[0].head(20))
    fitted.save(tmp_path / "bundle")
    np.testing.assert_array_equal(Classifier.load(tmp_path / "bundle").predict_proba(log[0].head(20)), expected)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(fitted)).predict_proba(log[0].head(20)), expected)
    np.testing.assert_array_equal(Predictor.load(tmp_path / "bundle").predict(log[0].head(20)), expected[:, 1])
    assert Predictor.load(tmp_path / "bundle").schema.label == "click"


def test_clone_pipeline_and_cross_validation(log):
    model = Classifier("lr", {"train.epochs": 1})
    assert clone(model).get_params() == model.get_params()
    pipeline = Pipeline([("same", FunctionTransformer()), ("model", model)])
    scores = cross_val_score(pipeline, *log, cv=2, scoring="roc_auc")
    assert (scores > 0.5).all()


def test_eval_set_and_weights(log):
    x, y = log
    held = (x.tail(500), y.tail(500))
    model = Classifier("lr", {"train.epochs": 2})
    model.fit(x.head(2000), y.head(2000), eval_set=[held], sample_weight=np.where(y.head(2000) > 0, 3.0, 1.0))
    assert model.report_["valid"]["rows"] == 500
    plain = Classifier("lr", {"train.epochs": 2, "train.calibration": "none"}).fit(x, y)
    heavy = Classifier("lr", {"train.epochs": 2, "train.calibration": "none"})
    heavy.fit(x, y, sample_weight=np.where(y > 0, 5.0, 1.0))
    assert heavy.predict_proba(x)[:, 1].mean() > plain.predict_proba(x)[:, 1].mean() + 0.05


def test_polars_labels_of_words_and_a_schema(log):
    x = polars.from_pandas(log[0])
    words = np.where(log[1] > 0, "yes", "no")
    schema = Schema("bought", (Field("user"), Field("item"), Field("genres", "set")))
    model = Classifier("fm", SETTINGS, schema=schema).fit(x, words)
    assert set(model.predict(x)) <= {"yes", "no"}
    assert model.predictor.schema.names == ["user", "item", "genres"]


def test_mistakes(log):
    with pytest.raises(DataError, match="two classes"):
        Classifier().fit(log[0], np.ones(2500))
    with pytest.raises(DataError, match="one length"):
        Classifier().fit(log[0], log[1].head(10))
    with pytest.raises(ConfigError, match="did you mean 'lr'"):
        Classifier(settings={"train.lrr": 1.0}).fit(*log)


def test_few_rows_of_one_class(log):
    """Rows to stop by have both classes, however few there are; the seed may be the one that drew the labels."""
    rows = log[0].head(30)
    y = (np.random.default_rng(0).random(30) < 0.1).astype(int)
    assert 2 <= y.sum() < 6
    assert Classifier("lr", {"train.epochs": 1}).fit(rows, y).report_["valid"]["positive_rate"] == pytest.approx(
        0.25, abs=0.1
    )
    with pytest.raises(DataError, match="y needs two rows of each class"):
        Classifier("lr").fit(rows, np.arange(30) == 0)
    with pytest.raises(ConfigError, match="valid_share takes a share above 0 and below 1, found 0"):
        Classifier("lr", valid_share=0).fit(rows, y)


@pytest.mark.parametrize("held", [[0, 0, 0], [0, 1, 2], []])
def test_an_eval_set_has_the_classes_of_y(log, held):
    rows = log[0].head(len(held))
    with pytest.raises(DataError, match=r"the y of eval_set must have both classes of y, 0, 1, found "):
        Classifier("lr", SETTINGS).fit(*log, eval_set=(rows, np.array(held)))


SMALL = {"train.epochs": 1, "train.batch_size": 100}


def test_a_grid_search_takes_models_and_settings(log):
    x, y = log[0].head(400), log[1].head(400)
    grid = {"model": ["lr"], "settings": [SMALL, {**SMALL, "train.lr": 0.05}]}
    found = GridSearchCV(Classifier(device="cpu"), grid, scoring="neg_log_loss", cv=2).fit(x, y)
    assert len(found.cv_results_["params"]) == 2
    assert found.best_params_ in found.cv_results_["params"]
    assert np.isfinite(found.cv_results_["mean_test_score"]).all()
    assert found.predict_proba(x).shape == (400, 2)


def test_scikit_learn_calibrates_it(log):
    x, y = log[0].head(600), log[1].head(600)
    calibrated = CalibratedClassifierCV(Classifier("lr", SMALL, device="cpu"), method="isotonic", cv=2).fit(x, y)
    assert abs(calibrated.predict_proba(x)[:, 1].mean() - y.mean()) < 0.05


def test_permutation_importance_finds_the_column_that_tells(log):
    random = np.random.default_rng(0)
    x = log[0].head(500)[["user", "item"]].assign(told=random.permutation(["yes", "no"] * 250))
    y = (x["told"] == "yes").astype(int)
    model = Classifier("lr", {**SMALL, "train.lr": 0.1}, device="cpu").fit(x, y)
    found = permutation_importance(model, x, y, scoring="roc_auc", n_repeats=2, random_state=0)
    assert found.importances_mean.argmax() == 2
    assert found.importances_mean[2] > 0.3


def test_joblib_takes_it_to_other_processes_and_disk(fitted, log, tmp_path):
    """A fitted model goes to a worker and to a file, with its bundle."""
    x = log[0].head(30)
    expected = fitted.predict_proba(x)
    joblib.dump(fitted, tmp_path / "model.joblib")
    np.testing.assert_array_equal(joblib.load(tmp_path / "model.joblib").predict_proba(x), expected)
    # What Parallel(backend="loky") does with each worker; one is enough, as each loads torch.
    with get_reusable_executor(max_workers=1) as pool:
        np.testing.assert_allclose(pool.submit(fitted.predict_proba, x).result(), expected, rtol=1e-6)
