"""Many rows are scored in large batches as few are in small ones; here on a CPU, all but the pinned memory."""

import numpy as np
import pytest
import torch

from fieldwise.bundle import gpu_scores
from fieldwise.bundle.scoring import placed, score
from fieldwise.data.schema import Layout
from fieldwise.models import build

LAYOUT = Layout.of([5, 7, 3])
OPTIONS = {"lr": {}, "fm": {"dim": 4}, "deepfm": {"dim": 4, "hidden": (8, 8), "dropout": 0.5}}


@pytest.fixture(params=OPTIONS)
def model(request):
    torch.manual_seed(0)
    found = build(request.param, LAYOUT, OPTIONS[request.param]).train()
    with torch.no_grad():
        for parameter in found.parameters():
            parameter.add_(torch.randn_like(parameter))
    return found


def rows(count):
    return np.random.default_rng(0).integers(0, LAYOUT.sizes, (count, 3)).astype(np.int32)


def test_large_batches_give_the_logits_of_small_ones(model, monkeypatch):
    monkeypatch.setattr(gpu_scores, "ROWS", 7)
    ids = rows(100)
    expected = model.logits(ids)
    for given in (ids, torch.from_numpy(ids)):
        np.testing.assert_allclose(gpu_scores.scores(model, given), expected, rtol=1e-5, atol=1e-6)
    assert model.training


def test_batches_get_smaller_where_memory_is_short(model, monkeypatch):
    asked, real = [], gpu_scores._scores

    def short(model, ids, precision, rows):
        asked.append(rows)
        if rows > 2**13:
            raise torch.OutOfMemoryError
        return real(model, ids, precision, rows)

    monkeypatch.setattr(gpu_scores, "_scores", short)
    ids = rows(10)
    np.testing.assert_allclose(gpu_scores.scores(model, ids), model.logits(ids), rtol=1e-5, atol=1e-6)
    assert asked[-1] == 2**13
    monkeypatch.setattr(gpu_scores, "FEWEST", 2**14)
    with pytest.raises(torch.OutOfMemoryError):
        gpu_scores.scores(model, ids)


def test_bf16_is_near_float32_and_not_the_same():
    torch.manual_seed(0)
    model, ids = build("fnn", LAYOUT, {"dim": 4, "hidden": (8, 8)}), rows(100)
    plain, fast = score(model, ids), score(model, ids, precision="bf16")
    assert 0 < np.linalg.norm(fast - plain) < 0.05 * np.linalg.norm(plain)


def test_ids_stay_where_they_are_without_a_gpu(model):
    ids = rows(10)
    assert placed(model, ids) is ids
    assert gpu_scores.placed(model, ids) is ids
