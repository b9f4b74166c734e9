"""LR as numbers alone: the bits of the network, and its file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file

from fieldwise.config.errors import BundleError
from fieldwise.data.kinds.kind import PAD
from fieldwise.data.schema import Layout
from fieldwise.models import build
from fieldwise.nn.lines import BIAS, WEIGHTS, Lines

# A category, a set of up to three, a number between anchors, and one in buckets.
LAYOUT = Layout((7, 5, 6, 4), (1, 3, 4, 1), ordered=(2, 3))


def drawn(rows: int, layout: Layout = LAYOUT) -> Any:
    random = np.random.default_rng(0)
    members = np.where(random.random((rows, 3)) < 0.5, random.integers(1, 5, (rows, 3)), PAD)
    members[:, 0] = random.integers(1, 5, rows)
    low = random.integers(2, 5, (rows, 1))
    anchors = np.sort(low + (random.random((rows, 4)) < 0.5), axis=1)
    first, last = random.integers(0, 7, (rows, 1)), random.integers(0, 4, (rows, 1))
    ids = np.hstack([first, members, anchors, last])
    return np.ascontiguousarray(ids, dtype=np.int32)


def network() -> Any:
    torch.manual_seed(0)
    model: Any = build("lr", LAYOUT)
    with torch.no_grad():
        model.linear.weights.weight.normal_()
        model.linear.bias.fill_(-0.3)
    return model


def test_a_row_has_the_bits_that_the_network_gives_it(tmp_path: Path) -> None:
    model, lines = network(), Lines(LAYOUT)
    model.save(tmp_path / "weights")
    lines.load(tmp_path / "weights")
    ids = drawn(500)
    np.testing.assert_array_equal(lines.logits(ids), model.logits(ids))
    np.testing.assert_array_equal(lines.logits(ids[:1]), lines.logits(ids)[:1])
    assert lines.size == model.size


def test_the_network_reads_its_file(tmp_path: Path) -> None:
    lines, model = Lines(LAYOUT), network()
    random = np.random.default_rng(1)
    lines.put([random.normal(size=size) for size in LAYOUT.sizes], 0.25)
    lines.save(tmp_path / "weights")
    model.load(tmp_path / "weights")
    np.testing.assert_array_equal(model.logits(drawn(50)), lines.logits(drawn(50)))


def test_an_id_outside_of_its_field_is_refused() -> None:
    ids = drawn(3)
    ids[1, 0] = 7
    with pytest.raises(IndexError, match="out of range: field 0 has 7"):
        Lines(LAYOUT).logits(ids)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({BIAS: np.zeros(1, np.float32)}, "must be"),
        ({WEIGHTS: np.zeros((22, 1))}, "float64"),
        ({WEIGHTS: np.full((22, 1), np.nan, np.float32)}, "finite"),
        ({"more": np.zeros(1, np.float32)}, "no 'more'"),
    ],
)
def test_a_damaged_file_is_one_line(changed: dict[str, Any], words: str, tmp_path: Path) -> None:
    whole = {BIAS: np.zeros((), np.float32), WEIGHTS: np.zeros((22, 1), np.float32)}
    save_file(whole | changed, tmp_path / "weights")
    with pytest.raises(BundleError, match=words):
        Lines(LAYOUT).load(tmp_path / "weights")
    (tmp_path / "weights").write_bytes(b"nothing")
    with pytest.raises(BundleError, match="damaged"):
        Lines(LAYOUT).load(tmp_path / "weights")
