"""Scores of LR, FM and FFM in compiled loops equal the plain ones."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest
import torch

from fieldwise.config.settings import Config, TrainSettings
from fieldwise.data.schema import Layout
from fieldwise.models import build
from fieldwise.nn.model import Model
from fieldwise.nn.shallow_scores import ROWS_PER_THREAD, no_scores, scores
from fieldwise.train.steps import ShallowStep
from tests.train.steps.test_shallow import WIDE, drawn_ids

LAYOUT = Layout.of([40, 30, 2, 25])
MODELS: list[tuple[str, dict[str, Any]]] = [
    ("lr", {}),
    ("fm", {"dim": 21}),
    ("ffm", {"dim": 3}),
    ("ffm", {"dim": 4}),
    ("ffm", {"dim": 18, "linear": False, "input_norm": True}),
]


def made(name: str, options: dict[str, Any], dtype: torch.dtype = torch.float64) -> Model:
    torch.manual_seed(0)
    model = build(name, LAYOUT, options)
    assert isinstance(model, Model)
    for weight in model.parameters():
        torch.nn.init.normal_(weight)
    return model.to(dtype)


def drawn(rows: int = ROWS_PER_THREAD + 7) -> Any:
    return (np.random.default_rng(0).random((rows, LAYOUT.fields)) * np.array(LAYOUT.sizes)).astype(np.int32)


@pytest.mark.parametrize("side_by_side", [False, True])
@pytest.mark.parametrize(("name", "options"), MODELS, ids=str)
def test_scores_equal_the_plain_ones(name: str, options: dict[str, Any], side_by_side: bool) -> None:
    model, ids = made(name, options), drawn()
    if side_by_side:  # as training leaves it
        ShallowStep(model, Config(name, options, TrainSettings()), 10)
    found = scores(model, ids)
    plain = model(torch.from_numpy(ids)).detach().numpy()
    np.testing.assert_allclose(found, plain, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("fields", [2, 3, 5, 8, 9, 13])
def test_parts_of_four_numbers(fields: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fields meet four by four."""
    monkeypatch.setattr(sys.modules[__name__], "LAYOUT", Layout.of([40, 30, 2, 25, 7] * 3).only(range(fields)))
    model, ids = made("ffm", {"dim": 4}), drawn(50)
    plain = model(torch.from_numpy(ids)).detach().numpy()
    np.testing.assert_allclose(scores(model, ids), plain, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize(("name", "options"), [("lr", {}), ("fm", {"dim": 21})], ids=str)
def test_fields_of_several_ids(name: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules[__name__], "LAYOUT", WIDE)
    model, ids = made(name, options), drawn_ids(np.random.default_rng(0), WIDE, ROWS_PER_THREAD + 7)
    assert not no_scores(model, ids)
    plain = model(torch.from_numpy(ids)).detach().numpy()
    np.testing.assert_allclose(scores(model, ids), plain, rtol=1e-11, atol=1e-11)
    for column, wrong in ((0, -1), (3, -2), (6, 2)):
        worse = ids.copy()
        worse[5, column] = wrong
        assert no_scores(model, worse) == "ids outside the tables"


def test_logits_take_them() -> None:
    model, ids = made("fm", {"dim": 5}, torch.float32), drawn()
    found = scores(model, ids)
    np.testing.assert_array_equal(model.logits(ids), found)
    np.testing.assert_allclose(model.logits(ids[:9]), found[:9], rtol=1e-5, atol=1e-5)


def test_threads_change_nothing() -> None:
    model, ids, threads = made("ffm", {"dim": 3}), drawn(3 * ROWS_PER_THREAD), torch.get_num_threads()
    found = []
    for count in (1, 3):
        torch.set_num_threads(count)
        found.append(scores(model, ids))
    torch.set_num_threads(threads)
    np.testing.assert_array_equal(found[0], found[1])


def test_what_no_table_has_is_refused_the_plain_way() -> None:
    model, ids = made("fm", {"dim": 5}), drawn()
    for wrong in (-1, 2000):
        ids[3, 0] = wrong
        assert no_scores(model, ids) == "ids outside the tables"
    with pytest.raises(IndexError):
        model.logits(ids)


def test_other_models_go_the_plain_way() -> None:
    assert no_scores(made("deepfm", {"dim": 3}), drawn()) == "not LR, FM or FFM (over fields of one id)"


def test_a_row_has_one_score_alone_and_among_many() -> None:
    model, ids = made("fm", {"dim": 3}), drawn()
    many, alone = scores(model, ids), [scores(model, ids[place : place + 1]) for place in range(20)]
    assert many[:20].tolist() == [float(one[0]) for one in alone]
