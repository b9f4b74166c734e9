"""The GPU's kernels for scores alone beside the plain parts in float64, through Triton's interpreter."""

import sys

import pytest

from tests.parts.interpreter import in_interpreter

FOLDERS = {
    "dnn": "norm",
    "fm": "pair_sum",
    "ffm": "field_aware",
    "afm": "attention",
    "afm without projection": "attention",
    "pin": "micro",
    "kfm": "kernel",
}


@pytest.mark.parametrize("kind", FOLDERS)
def test_scores(kind):
    in_interpreter(__name__, "check", kind)


def test_scores_of_drawn_shapes():
    in_interpreter(__name__, "check_drawn")


def check_drawn():
    from hypothesis import strategies as some

    from fieldwise.nn.classifiers import DNN, Layers
    from fieldwise.parts.attention.formula import AttentionPool
    from fieldwise.parts.field_aware.formula import FieldAwareProduct
    from fieldwise.parts.pair_sum.formula import PairSum
    from tests.parts.interpreter import over_shapes

    kinds = {
        "dnn": lambda fields, dim, units: (lambda: DNN(dim, Layers((units, fields))), (dim,)),
        "fm": lambda fields, dim, _: (lambda: PairSum([dim] * fields), (fields, dim)),
        "ffm": lambda fields, dim, _: (lambda: FieldAwareProduct(fields, dim), (fields, dim * (fields - 1))),
        # Scores of weights that are not small are: an exponent would make much of their rounding.
        "afm": lambda fields, dim, units: (
            lambda: AttentionPool([dim] * fields, units, temperature=(dim * units) ** 0.5), (fields, dim)
        ),
    }  # fmt: skip

    def compared(rows, kind, **sizes):
        make, shape = kinds[kind](*sizes.values())
        compare(make, rows, shape)

    sizes = {"fields": some.integers(2, 17), "dim": some.integers(1, 70), "units": some.integers(1, 70)}
    for kind in kinds:
        over_shapes(compared, 3, rows=some.integers(1, 20), kind=some.just(kind), **sizes)


def check(kind):
    from fieldwise.nn.classifiers import DNN, Layers
    from fieldwise.parts.attention.formula import AttentionPool
    from fieldwise.parts.field_aware.formula import FieldAwareProduct
    from fieldwise.parts.kernel.formula import KernelProduct
    from fieldwise.parts.micro.formula import MicroNetwork
    from fieldwise.parts.pair_sum.formula import PairSum

    make, shape = {
        "dnn": (lambda: DNN(13, Layers((11, 20), dropout=0.5)), (13,)),
        "fm": (lambda: PairSum([5] * 11), (11, 5)),
        "ffm": (lambda: FieldAwareProduct(5, 3, scale=0.5), (5, 12)),
        "afm": (lambda: AttentionPool([5] * 4, 6, temperature=0.5, dropout=0.5), (4, 5)),
        "afm without projection": (lambda: AttentionPool([5] * 13, 6, project=False), (13, 5)),
        "pin": (lambda: MicroNetwork([5] * 4, (6, 3)), (4, 5)),
        "kfm": (lambda: KernelProduct([5] * 4, "mat", "uniform"), (4, 5)),
    }[kind]
    compare(make, 9, shape)
    assert f"fieldwise.parts.{FOLDERS[kind]}.triton" in sys.modules


def compare(make, rows, shape):
    """What a part gives for drawn inputs in float32 by the kernel, and in float64 without."""
    import torch

    from tests.parts.drawn import drawn

    torch.manual_seed(0)
    fast, slow = drawn(make()).float().eval(), make().double().eval()
    slow.load_state_dict(fast.state_dict())
    x = torch.randn(rows, *shape)
    with torch.inference_mode():
        found, expected = fast(x), slow(x.double())
    assert found.dtype == torch.float32
    assert found.shape == expected.shape
    assert (found.double() - expected).norm() <= 1e-6 * expected.norm()
