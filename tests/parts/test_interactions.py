from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from fieldwise.config.errors import ConfigError
from fieldwise.parts.attention.formula import AttentionPool
from fieldwise.parts.convolution.formula import Convolution
from fieldwise.parts.features.formula import Concat, Flatten, Normed, normed
from fieldwise.parts.field_aware.formula import FieldAwareProduct
from fieldwise.parts.inner.formula import InnerProduct
from fieldwise.parts.interactions import Interaction, pairs
from fieldwise.parts.kernel.formula import KernelProduct, KernelSum
from fieldwise.parts.micro.formula import MicroNetwork
from fieldwise.parts.pair_sum.formula import PairSum
from fieldwise.parts.weights import Packed
from tests.parts import slow
from tests.parts.drawn import drawn, gradients_hold, numbers

B = 3
SAME, SIZES = (3, 3, 3, 3), (2, 4, 1, 4)
Slow = Callable[[Any], Callable[[slow.Row], Tensor]]


def micro(widths: tuple[int, ...], *, dims: tuple[int, ...] = SAME, **options: Any) -> tuple[Any, ...]:
    return (
        dims,
        lambda dims: MicroNetwork(dims, widths, **options),
        lambda part: lambda v: slow.micro_networks(v, part, widths, **options),
    )


def kernels(*options: str, dims: tuple[int, ...] = SAME) -> tuple[Any, ...]:
    return (
        dims,
        lambda dims: KernelProduct(dims, *options),
        lambda part: lambda v: slow.kernel_products(v, slow.kernels_of(part, dims)),
    )


def kernel_sums(*options: str, dims: tuple[int, ...] = SAME) -> tuple[Any, ...]:
    return (
        dims,
        lambda dims: KernelSum(dims, *options),
        lambda part: lambda v: slow.kernel_products(v, slow.kernels_of(part, dims)).sum(dim=0, keepdim=True),
    )


def convolved(channels: tuple[int, ...], widths: tuple[int, ...], keep: tuple[int, ...]) -> tuple[Any, ...]:
    return (
        (3,) * 6,
        lambda dims: Convolution(dims, channels, widths, keep),
        lambda part: lambda v: slow.convolution(v, part),
    )


def attended(**options: Any) -> tuple[Any, ...]:
    return (
        SAME,
        lambda dims: AttentionPool(dims, 5, **options),
        lambda part: lambda v: slow.attention_pool(v, part),
    )


# Name -> the fields' sizes, the part for these sizes, and its slow formula.
CASES: dict[str, tuple[tuple[int, ...], Callable[[tuple[int, ...]], Interaction], Slow]] = {
    "flat": (SAME, Flatten, lambda part: slow.flat),
    "flat, sizes": (SIZES, Flatten, lambda part: slow.flat),
    "pair sum": (SAME, PairSum, lambda part: slow.pair_sum),
    "inner product": (SAME, InnerProduct, lambda part: slow.inner_products),
    "kernel num": kernels("num"),
    "kernel vec": kernels("vec"),
    "kernel mat": kernels("mat"),
    "kernel mat, uniform": kernels("mat", "uniform"),
    "kernel mat, sizes": kernels("mat", dims=SIZES),
    "kernel mat, two fields": kernels("mat", dims=(2, 5)),
    "kernel sum num": kernel_sums("num"),
    "kernel sum vec": kernel_sums("vec"),
    "kernel sum mat": kernel_sums("mat"),
    "kernel sum mat, sizes": kernel_sums("mat", dims=SIZES),
    "kernel sum mat, two fields": kernel_sums("mat", dims=(2, 5)),
    "kernel sum mat, seven fields": kernel_sums("mat", dims=(2,) * 7),
    "field-aware": (
        (6,) * 4,
        lambda dims: FieldAwareProduct(4, 2),
        lambda part: lambda v: slow.field_aware_products(v, 2),
    ),
    "field-aware, scaled": (
        (6,) * 4,
        lambda dims: FieldAwareProduct(4, 2, 0.25),
        lambda part: lambda v: slow.field_aware_products(v, 2, 0.25),
    ),
    "micro network": micro((4, 2)),
    "micro network, no product": micro((4, 1), product=False, last_norm=False),
    "micro network, per pair": micro((4, 2), norm="fused-per-pair"),
    "micro network, layer": micro((4, 2), norm="layer"),
    "micro network, no norm": micro((4, 2), norm="none"),
    "micro network, tanh, three layers": micro((4, 3, 2), activation_name="tanh"),
    "micro network, one layer": micro((2,)),
    "micro network, sizes": micro((4, 1), dims=SIZES, product=False),
    "attention": attended(),
    "attention, temperature": attended(temperature=3.0),
    "attention, no projection": attended(project=False),
    "convolution": convolved((4,), (3,), (1,)),
    "convolution, keeps two": convolved((4,), (3,), (2,)),
    "convolution, keeps all": convolved((4,), (3,), (9,)),
    "convolution, two stages": convolved((4, 3), (2, 3), (3, 1)),
    "convolution, wider than the fields": convolved((4,), (7,), (1,)),
    "concat": (
        SAME,
        lambda dims: Concat(Flatten(dims), InnerProduct(dims)),
        lambda part: lambda v: torch.cat([slow.flat(v), slow.inner_products(v)]),
    ),
    "normed": (SAME, lambda dims: Normed(InnerProduct(dims)), lambda part: lambda v: normed_products(v, part.norm)),
}


def normed_products(v: slow.Row, norm: nn.LayerNorm) -> Tensor:
    products = slow.inner_products(v)
    return slow.norm(products, products, norm.weight, norm.bias)


def vectors(dims: tuple[int, ...], rows: int = B) -> Tensor:
    """Drawn vectors (B, F, D), with zeros behind the smaller ones."""
    v = numbers(rows, len(dims), max(dims))
    for field, dim in enumerate(dims):
        v[:, field, dim:] = 0
    return v


@pytest.mark.parametrize("case", CASES)
def test_features_equal_the_loop(case: str) -> None:
    dims, make, formula = CASES[case]
    part, v = drawn(make(dims)), vectors(dims)
    expected = slow.each_row(v, dims, formula(part))
    assert expected.shape == (B, part.width)
    torch.testing.assert_close(part(v), expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("case", CASES)
def test_gradients_equal_finite_differences(case: str) -> None:
    dims, make, _ = CASES[case]
    assert gradients_hold(drawn(make(dims)), vectors(dims))


@pytest.mark.parametrize("case", CASES)
def test_gradients_equal_the_loop(case: str) -> None:
    dims, make, formula = CASES[case]
    part, v = drawn(make(dims)), vectors(dims).requires_grad_()
    wanted = [v, *part.parameters()]
    factors = numbers(B, part.width, seed=3)
    fast = torch.autograd.grad((part(v) * factors).sum(), wanted)
    loop = torch.autograd.grad((slow.each_row(v, dims, formula(part)) * factors).sum(), wanted)
    filled = torch.arange(max(dims))[None, :] < torch.tensor(dims)[:, None]
    torch.testing.assert_close(fast[0] * filled, loop[0], rtol=0, atol=1e-10)
    torch.testing.assert_close(fast[1:], loop[1:], rtol=0, atol=1e-10)


class Largest(TorchDispatchMode):
    """Remembers the largest tensor that any operation makes."""

    numel = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, (tuple, list)) else [out]:
            if isinstance(tensor, Tensor):
                self.numel = max(self.numel, tensor.numel())
        return out


@pytest.mark.parametrize("case", [case for case in CASES if not case.startswith("field-aware")])
def test_nothing_is_as_large_as_rows_by_pairs_by_sizes_squared(case: str) -> None:
    rows, fields, dim = 64, 12, 16
    small, make, _ = CASES[case]
    dims = (dim,) * fields if len(set(small)) == 1 else tuple(range(dim - fields + 1, dim + 1))
    part, v = make(dims), torch.randn(rows, fields, dim, requires_grad=True)
    with Largest() as largest:
        part(v).sum().backward()
    pair_vectors = rows * len(slow.pairs(fields)) * dim
    assert 0 < largest.numel <= 3 * pair_vectors < pair_vectors * dim / 4


def test_pairs_are_in_lexicographic_order() -> None:
    for fields in range(1, 6):
        first, second = pairs(fields)
        assert list(zip(first.tolist(), second.tolist(), strict=True)) == list(itertools.combinations(range(fields), 2))


def test_kernels_start_as_the_identity() -> None:
    v = vectors(SAME)
    for kernel in KernelProduct.KERNELS:
        torch.testing.assert_close(KernelProduct(SAME, kernel).double()(v), InnerProduct(SAME)(v), rtol=0, atol=1e-12)


def test_uniform_kernels_fill_their_range() -> None:
    entries = KernelProduct((9,) * 8, "mat", "uniform").kernel.entries
    assert entries.abs().max().item() == pytest.approx(math.sqrt(3 / 9), rel=0.01)


def test_kernels_of_different_sizes_have_the_sizes_of_their_fields() -> None:
    part = KernelProduct(SIZES)
    assert isinstance(part.kernel, Packed)
    expected = sum(SIZES[i] * SIZES[j] for i, j in slow.pairs(4))
    assert [p.numel() for p in part.parameters()] == [expected]


def test_micro_networks_of_different_sizes_have_the_sizes_of_their_fields() -> None:
    part = MicroNetwork(SIZES, (7, 2), product=False, norm="none")
    inputs = sum(SIZES[i] + SIZES[j] for i, j in slow.pairs(4))
    assert sum(p.numel() for p in part.weights.parameters()) == inputs * 7 + 6 * 7 * 2


def test_numbers_behind_a_smaller_vector_are_not_looked_at() -> None:
    for case, (dims, make, _) in CASES.items():
        if len(set(dims)) > 1:
            part, v = drawn(make(dims)), vectors(dims)
            beyond = v + numbers(*v.shape, seed=1) * (torch.arange(max(dims)) >= torch.tensor(dims)[:, None])
            assert torch.equal(part(v), part(beyond)), case


@pytest.mark.parametrize("norm", ["none", "layer"])
@pytest.mark.parametrize("product", [True, False])
def test_a_micro_network_sees_only_its_two_fields(norm: str, product: bool) -> None:
    part, v = drawn(MicroNetwork(SAME, (5, 3), product, norm)), vectors(SAME)
    for field in range(4):
        other = v.clone()
        other[:, field] += numbers(B, 3, seed=8)
        changed = (part(v) != part(other)).unflatten(1, (6, 3)).any(dim=2).all(dim=0)
        assert changed.tolist() == [field in pair for pair in slow.pairs(4)]


@pytest.mark.parametrize("kernel", KernelProduct.KERNELS)
def test_a_pairs_kernel_touches_only_its_pair(kernel: str) -> None:
    part, v = drawn(KernelProduct(SAME, kernel)), vectors(SAME)
    before = part(v)
    for pair in range(6):
        with torch.no_grad():
            part.kernel.entries[pair] += 1
        after = part(v)
        assert (before != after).all(dim=0).tolist() == [p == pair for p in range(6)]
        assert torch.equal(before != after, (before != after).all(dim=0).expand_as(before))
        before = after


def test_attention_sums_to_one_and_is_not_constant() -> None:
    part, v = drawn(AttentionPool(SAME, 5)), vectors(SAME)
    first, second = pairs(4)
    weights = part.attention(v[:, first] * v[:, second])
    torch.testing.assert_close(weights.sum(dim=1), torch.ones(B, dtype=torch.float64))
    assert (weights.max(dim=1).values > 1.5 * weights.min(dim=1).values).all()
    assert (weights[0] - weights[1]).abs().max() > 0.01
    expected = slow.each_row(v, SAME, lambda row: slow.attention_weights(row, part))
    torch.testing.assert_close(weights, expected, rtol=0, atol=1e-10)


def test_a_high_temperature_attends_to_all_pairs_and_a_low_one_to_one() -> None:
    v = vectors(SAME)
    products = v[:, pairs(4)[0]] * v[:, pairs(4)[1]]
    even = drawn(AttentionPool(SAME, 5, temperature=math.inf)).attention(products)
    torch.testing.assert_close(even, torch.full_like(even, 1 / 6))
    sharp = drawn(AttentionPool(SAME, 5, temperature=1e-4)).attention(products)
    torch.testing.assert_close(sharp.max(dim=1).values, torch.ones(B, dtype=torch.float64))


def test_attention_drops_pairs_with_the_given_probability() -> None:
    part = AttentionPool((2,) * 30, project=False, dropout=0.3)
    seen: list[Tensor] = []
    part.dropout.register_forward_hook(lambda module, inputs, output: seen.append(output))
    torch.manual_seed(0)
    v = torch.randn(100, 30, 2)
    part(v)
    part.eval()(v)
    dropped, kept = ((weights == 0).float().mean().item() for weights in seen)
    assert dropped == pytest.approx(0.3, abs=0.01)
    assert kept == 0


def test_convolution_keeps_the_largest_in_field_order() -> None:
    part = Convolution((1,) * 5, (1,), (1,), (3,))
    with torch.no_grad():
        part.convolutions[0].weight.fill_(1.0)
    assert part(torch.tensor([[[5.0], [-1.0], [2.0], [9.0], [3.0]]])).tolist() == [[5.0, 9.0, 3.0]]


def test_a_single_product_is_not_cut_by_its_norm() -> None:
    assert isinstance(normed(InnerProduct((2, 2, 2)), True), Normed)
    assert isinstance(normed(InnerProduct((2, 2, 2)), False), InnerProduct)
    assert isinstance(normed(InnerProduct((2, 2)), True), InnerProduct)


@pytest.mark.parametrize("norm", ["fused", "fused-per-pair", "layer"])
def test_a_single_output_is_not_cut_by_its_norm(norm: str) -> None:
    part = drawn(MicroNetwork((3, 3), (4, 1), norm=norm))
    assert part(vectors((3, 3))).unique().numel() == B


@pytest.mark.parametrize(
    "make",
    [
        PairSum,
        InnerProduct,
        lambda dims: KernelProduct(dims, "vec"),
        lambda dims: KernelProduct(dims, "num"),
        lambda dims: KernelSum(dims, "vec"),
        lambda dims: MicroNetwork(dims, (4, 2)),
        lambda dims: Convolution(dims, (4,), (2,), (1,)),
    ],
)
def test_a_part_that_needs_one_size_says_so(make: Callable[[tuple[int, ...]], Interaction]) -> None:
    name = type(make(SAME)).__name__
    with pytest.raises(ConfigError, match=f"{name} needs vectors of one size, found 1 to 4; set model.adaptive=0"):
        make(SIZES)


@pytest.mark.parametrize(
    ("make", "line"),
    [
        (lambda: InnerProduct((3,)), "InnerProduct needs at least two fields, found 1"),
        (lambda: KernelProduct(SAME, "vex"), "unknown kernel 'vex'; did you mean 'vec'"),
        (lambda: KernelProduct(SIZES, "vex"), "unknown kernel 'vex'; did you mean 'vec'"),
        (lambda: KernelProduct(SAME, "mat", "identty"), "unknown kernel start 'identty'; did you mean 'identity'"),
        (lambda: KernelProduct(SAME, "vec", "uniform"), "'uniform' is for kernel 'mat', found kernel 'vec'"),
        (lambda: FieldAwareProduct(3, 0), r"dim must be positive whole numbers, found \[0\]"),
        (lambda: MicroNetwork(SAME, ()), "a sub-network needs at least one layer, found none"),
        (lambda: MicroNetwork(SAME, (4, 0)), r"subnet must be positive whole numbers, found \(4, 0\)"),
        (lambda: MicroNetwork(SAME, (4,), norm="fusd"), "unknown sub-network norm 'fusd'; did you mean 'fused'"),
        (lambda: AttentionPool(SAME, 0), r"attention must be positive whole numbers, found \[0\]"),
        (lambda: AttentionPool(SAME, temperature=0.0), "temperature must be positive, found 0.0"),
        (lambda: AttentionPool(SAME, temperature=math.nan), "temperature must be positive, found nan"),
        (lambda: AttentionPool(SAME, dropout=1.5), "dropout is the probability of dropping, in .*, found 1.5"),
        (lambda: Convolution(SAME, (4,), (2, 2), (1,)), "channels, widths and keep need one length"),
        (lambda: Convolution(SAME, (), (), ()), "channels, widths and keep need one length"),
        (lambda: Convolution(SAME, (4,), (2,), (0,)), r"must be positive whole numbers, found \[4, 2, 0\]"),
    ],
)
def test_settings_out_of_range(make: Callable[[], Interaction], line: str) -> None:
    with pytest.raises(ConfigError, match=line):
        make()
