"""The GPU's micro networks and kernel products beside the plain ones in float64, through Triton's interpreter."""

import pytest

from tests.parts.interpreter import in_interpreter

MICRO = [(True, "fused", 3), (False, "fused-per-pair", 1), (True, "fused-per-pair", 2), (False, "fused", 1)]


@pytest.mark.parametrize(("product", "norm", "out"), MICRO)
def test_micro_networks(product, norm, out):
    in_interpreter(__name__, "check_micro", product, norm, out)


def test_a_dnn_behind_features_with_zeros_behind_them():
    in_interpreter(__name__, "check_padded")


def test_kernel_products():
    in_interpreter(__name__, "check_kernels")


def test_drawn_shapes():
    in_interpreter(__name__, "check_drawn")


def test_rows_of_a_table_and_their_gradient():
    in_interpreter(__name__, "check_rows")


def test_a_compiler_takes_the_kernels_into_one_graph():
    in_interpreter(__name__, "check_compiled")


def compare(make, rows=70, fields=4, dim=5):
    """Features and all gradients of a part in float32 by the kernel, and in float64 without."""
    import torch

    from fieldwise.speed.checks import clear
    from tests.parts.drawn import drawn

    torch.manual_seed(0)
    fast = drawn(make()).float()
    slow = make().double()
    slow.load_state_dict(fast.state_dict())
    v = clear(slow, torch.randn(rows, fields, dim))
    v32, v64 = v.clone().requires_grad_(), v.double().requires_grad_()
    ours, theirs = fast(v32), slow(v64)
    pull = torch.randn(theirs.shape, dtype=torch.float64)
    ours.backward(pull.float())
    theirs.backward(pull)
    pairs = [(ours, theirs), (v32.grad, v64.grad)]
    pairs += [(a.grad, b.grad) for a, b in zip(fast.parameters(), slow.parameters(), strict=True)]
    for found, expected in pairs:
        assert found.shape == expected.shape
        assert (found.double() - expected).norm() <= 1e-5 * expected.norm() + 1e-6


def check_micro(product, norm, out):
    from fieldwise.parts.micro.formula import MicroNetwork

    compare(lambda: MicroNetwork([5] * 4, (6, out), product, norm, last_norm=out > 1))


def check_drawn():
    """Vectors shorter and longer than the units, and sizes on both sides of a tile's."""
    from hypothesis import strategies as some

    from fieldwise.parts.kernel.formula import KernelProduct
    from fieldwise.parts.micro.formula import MicroNetwork
    from tests.parts.interpreter import over_shapes

    sizes = {"rows": some.integers(1, 70), "fields": some.integers(2, 4), "dim": some.integers(1, 40)}
    layers = {"units": some.integers(4, 40), "outs": some.integers(1, 4), "product": some.booleans()}

    def check_micro(rows, fields, dim, units, outs, product):
        compare(lambda: MicroNetwork([dim] * fields, (units, outs), product, last_norm=outs > 1), rows, fields, dim)

    def check_kernels(rows, fields, dim):
        compare(lambda: KernelProduct([dim] * fields, "mat", "uniform"), rows, fields, dim)

    over_shapes(check_micro, 5, **sizes | layers)
    over_shapes(check_kernels, 3, **sizes)


def check_padded():
    import torch

    from fieldwise import models
    from fieldwise.data.schema import Layout
    from fieldwise.nn.classifiers import DNN, Layers
    from fieldwise.nn.model import Branch
    from fieldwise.parts.micro.formula import MicroNetwork

    network = MicroNetwork([5] * 4, (6, 3), padded=True)
    assert network(torch.randn(2, 4, 5)).shape == (2, 24)
    compare(lambda: Branch(MicroNetwork([5] * 4, (6, 3), padded=True), DNN(18, Layers((7,)))))
    options = {"dim": 5, "subnet": (6, 3), "hidden": (7,), "dropout": 0.0, "members": 2}
    members = models.build("pin", Layout.of([3] * 4), options).branches[0]
    assert members(torch.randn(2, 4, 5)).shape == (2, 2)


def check_kernels():
    from fieldwise.parts.kernel.formula import KernelProduct

    compare(lambda: KernelProduct([5] * 4, "mat", "uniform"))


def check_rows():
    import torch
    from torch.nn import functional

    from fieldwise.loops.triton_rows import Rows

    tables, offsets = [torch.randn(30, dim, requires_grad=True) for dim in (5, 1)], torch.tensor([0, 10, 25])
    ids = torch.randint(0, 5, (40, 3), dtype=torch.int32)
    for own in (tables[:1], tables):
        found = Rows.apply(ids, offsets, *own)
        expected = [functional.embedding(ids + offsets, table) for table in own]
        assert all(torch.equal(*pair) for pair in zip(found, expected, strict=True))
        pulls = [torch.randn_like(part) for part in found]
        ours, theirs = torch.autograd.grad(found, own, pulls), torch.autograd.grad(expected, own, pulls)
        for one, two in zip(ours, theirs, strict=True):
            torch.testing.assert_close(one.to_dense(), two)
        # Adam moves tables together whose ids are the same.
        assert len({one._indices().data_ptr() for one in ours}) == 1


def check_compiled():
    import torch

    from fieldwise.parts.kernel.formula import KernelProduct
    from fieldwise.parts.micro.formula import MicroNetwork

    graphs, v = [], torch.randn(70, 4, 5)

    def remember(module, inputs):
        graphs.append(module.code)
        return module.forward

    for part, name in ((MicroNetwork([5] * 4, (6, 3)), "micro"), (KernelProduct([5] * 4), "kernel_products")):
        found = torch.compile(part, backend=remember, fullgraph=True)(v)
        assert f"fieldwise.{name}" in graphs[-1]
        torch.testing.assert_close(found, part(v))
