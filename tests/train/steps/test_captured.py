"""The windowed step that a GPU captures equals the plain one; here on a CPU, its kernels interpreted."""

import gc
import threading

import numpy as np
import pytest
import torch

from fieldwise.config.settings import Config, TrainSettings
from fieldwise.data.dataset import Part
from fieldwise.data.feed import Source, ahead
from fieldwise.data.schema import Layout
from fieldwise.models import build
from fieldwise.optim import row_clip
from fieldwise.train.steps import Step, captured
from tests.parts.interpreter import in_interpreter

LAYOUT = Layout.of([5, 7, 3])
# What earlier rows had in the second field, and how long ago each of them came.
PAST = Layout((5, 7, 7, 6), (1, 1, 4, 4), like=(0, 1, 1, 3), sequences=((2, 3),))


def rows(count, weighted=False, layout=LAYOUT):
    random = np.random.default_rng(0)
    sizes = [size for size, width in zip(layout.sizes, layout.widths, strict=True) for _ in range(width)]
    ids = random.integers(0, sizes, (count, len(sizes))).astype(np.int32)
    used = random.integers(1, 5, count)
    for place in range(1, 4 if layout is PAST else 0):
        ids[used <= place, 2 + place] = ids[used <= place, 6 + place] = -1
    labels = (random.random(count) < 0.3).astype(np.uint8)
    return Part(ids, labels, random.random(count).astype(np.float32) if weighted else None)


def test_windows_give_the_steps_of_batches():
    in_interpreter(__name__, "check_equal", False)


def test_windows_go_on_in_the_middle_with_weights():
    in_interpreter(__name__, "check_equal", True)


def test_windows_give_the_steps_of_batches_with_a_penalty_of_whole_tables():
    in_interpreter(__name__, "check_equal", False, True)


@pytest.mark.parametrize("name", ["din", "bst", "pin"])
def test_windows_give_the_steps_of_batches_with_sequences(name):
    in_interpreter(__name__, "check_equal", False, False, name)


@pytest.mark.parametrize("whole", [False, True])
def test_windows_give_the_steps_of_batches_with_clipped_rows_and_two_rates(whole):
    in_interpreter(__name__, "check_equal", True, whole, "", True)


@pytest.mark.parametrize("name", ["din", "bst", "pin"])
def test_a_step_with_sequences_needs_nothing_that_a_graph_has_not(name):
    # On the meta device there are shapes alone: what depends on a value, or asks the host for one, fails.
    from torch.nn.functional import binary_cross_entropy_with_logits

    model = build(name, PAST, MODELS[name]).train().to("meta")
    ids, labels = torch.zeros(8, PAST.id_columns, dtype=torch.int32, device="meta"), torch.zeros(8, device="meta")
    binary_cross_entropy_with_logits(model(ids), labels).backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
    with pytest.raises(NotImplementedError, match="meta"):
        ids[ids >= 0]


# FCN's branches have a share in its loss.
SMALL = {"dim": 4, "hidden": [8], "dropout": 0.0}
MODELS = {
    "fm": {"dim": 4},
    "fcn": {"dim": 4, "exponential": 1, "linear": 1, "dropout": 0.0},
    "din": SMALL,
    "bst": SMALL,
    "pin": SMALL | {"sequence": "attention", "subnet": [4, 2]},
}


def trained(kind, name, part, start, whole, clipped):
    torch.manual_seed(0)
    more = {"sparse_mode": "dense", "l2_full": 0.01} if whole else {}
    more |= {"row_clip": 0.01, "row_clip_least": 1e-4, "dense_lr": 5e-3} if clipped else {}
    settings = TrainSettings(8, epochs=2, schedule="cosine", warmup=3, shuffle_rows=50, compile=False, **more)
    layout = LAYOUT if part.ids.shape[1] == LAYOUT.id_columns else PAST
    step = kind(build(name, layout, MODELS[name]).train(), Config(name, MODELS[name], settings), total=40)
    losses, number = [], start
    for epoch in range(2):
        for batch in step.batches(part, epoch, start if epoch == 0 else 0):
            losses += step.run(batch, number)
            number += 1
            if number == 5:
                losses += step.flush()
    return losses + step.flush(), step


def check_equal(weighted, whole=False, name="", clipped=False):
    import fieldwise.train.steps.captured as captured

    captured.WINDOW_BATCHES = 3
    part, start = rows(85, weighted, PAST if name else LAYOUT), 2 if weighted else 0
    name = name or ("fcn" if weighted else "fm")
    plain, one = trained(Step, name, part, start, whole, clipped)
    if clipped:  # as on a GPU, whose graph has no other way
        row_clip._summed = lambda grad, orders: row_clip._summed_in_place(grad)
    fast, other = trained(captured.CapturedStep, name, part, start, whole, clipped)
    assert other.capturable
    np.testing.assert_allclose(fast, plain, rtol=1e-5)
    assert len(fast) == 22 - start
    ids = torch.from_numpy(part.ids)
    torch.testing.assert_close(other.model(ids), one.model(ids), rtol=1e-3, atol=1e-4)
    for ours, theirs in zip(other.model.parameters(), one.model.parameters(), strict=True):
        # Adam lets rounding errors move what a softmax does not see, such as the bias of its scores.
        if name in ("fm", "fcn"):
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)
    assert other.optimizer.param_groups[0]["step"] == one.optimizer.param_groups[0]["step"]


@pytest.mark.parametrize("resident", [True, False])
def test_rows_reach_the_device_by_their_numbers(resident):
    part, numbers = rows(20, weighted=True), np.array([3, 19, 3, 0])
    source = Source(part, torch.device("cpu"), resident)
    into = [torch.zeros(4, 3, dtype=torch.int32), torch.zeros(4), torch.zeros(4)]
    source.put(source.load(numbers), into)
    for found, expected in zip(into, (part.ids, part.labels, part.weights), strict=True):
        np.testing.assert_array_equal(found, expected[numbers])


def test_a_thread_works_ahead_and_its_errors_are_raised():
    assert list(ahead(range(10))) == list(range(10))

    def failing():
        yield 1
        raise ValueError("as meant")

    items = ahead(failing())
    assert next(items) == 1
    with pytest.raises(ValueError, match="as meant"):
        next(items)


def test_a_thread_ends_with_its_reader():
    before = set(threading.enumerate())
    items = ahead(iter(range(10**9)))
    assert next(items) == 0
    assert len(set(threading.enumerate()) - before) == 1
    items.close()
    assert not set(threading.enumerate()) - before


def test_no_garbage_is_collected_during_a_capture():
    with captured._uncollected():
        assert not gc.isenabled()
    assert gc.isenabled()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_thread_may_pin_memory_while_a_step_is_captured_and_a_failed_capture_harms_no_later_run():
    x, stream = torch.randn(9, device="cuda"), torch.cuda.Stream()
    drop = torch.nn.Dropout(0.5)
    drop(x)
    with captured._capturing(torch.cuda.CUDAGraph(), stream):
        drop(x)
        pinning = threading.Thread(target=lambda: torch.zeros(2**20).pin_memory())
        pinning.start()
        pinning.join()
    with pytest.raises(RuntimeError), captured._capturing(torch.cuda.CUDAGraph(), stream):
        drop(x).sum().item()  # the host waits for it, which no graph can do
    assert torch.isfinite(drop(x)).all()
