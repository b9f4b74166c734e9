from __future__ import annotations

import pytest
import torch

from fieldwise.config.errors import ConfigError
from fieldwise.parts.norm.norms import ACTIVATIONS, PairNorm, activation, pair_norm
from tests.parts import slow
from tests.parts.drawn import drawn, gradients_hold, numbers

P, B, H = 3, 4, 5


@pytest.mark.parametrize("kind", ["fused", "fused-per-pair", "layer"])
def test_pair_norm_equals_the_loop(kind: str) -> None:
    part, x = drawn(PairNorm(P, H, kind)), 3 * numbers(P, B, H) + 2
    expected = [torch.stack(slow.norm_pairs(list(x[:, row]), part, kind)) for row in range(B)]
    torch.testing.assert_close(part(x), torch.stack(expected, dim=1), rtol=0, atol=1e-10)


@pytest.mark.parametrize("kind", ["fused", "fused-per-pair", "layer"])
def test_pair_norm_gradients(kind: str) -> None:
    assert gradients_hold(drawn(PairNorm(P, H, kind)), numbers(P, B, H))


@pytest.mark.parametrize("kind", ["fused", "fused-per-pair", "layer"])
def test_gradients_of_gains_are_not_added_up_in_bf16(kind: str) -> None:
    part, x, along = (
        drawn(PairNorm(P, H, kind)).float(),
        numbers(P, 2000, H).bfloat16(),
        numbers(P, 2000, H).float() + 1,
    )
    found, expected = (torch.autograd.grad((part(v) * along).sum(), part.parameters()) for v in (x, x.float()))
    torch.testing.assert_close(found, expected, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize(("kind", "gains"), [("fused", 1), ("fused-per-pair", P), ("layer", P)])
def test_gains_are_shared_or_each_pairs_own(kind: str, gains: int) -> None:
    part = PairNorm(P, H, kind)
    assert part.gain.shape == part.shift.shape == (gains, 1, H)


@pytest.mark.parametrize("kind", ["fused", "fused-per-pair", "layer"])
def test_a_fresh_norm_leaves_mean_0_and_variance_1(kind: str) -> None:
    x = PairNorm(P, 200, kind).double()(7 * numbers(P, B, 200) - 3)
    over = (2,) if kind == "layer" else (0, 2)
    variance, mean = torch.var_mean(x, dim=over, correction=0)
    torch.testing.assert_close(mean, torch.zeros_like(mean), rtol=0, atol=1e-10)
    torch.testing.assert_close(variance, torch.ones_like(variance), rtol=1e-6, atol=0)


def test_fused_statistics_see_other_pairs_and_layer_statistics_do_not() -> None:
    x = numbers(P, B, H)
    other = x.clone()
    other[1] += numbers(B, H, seed=9)
    layer, fused = drawn(PairNorm(P, H, "layer")), drawn(PairNorm(P, H, "fused"))
    assert torch.equal(layer(x)[0], layer(other)[0])
    assert not torch.allclose(fused(x)[0], fused(other)[0])


@pytest.mark.parametrize("kind", ["fused", "fused-per-pair", "layer"])
def test_equal_units_are_no_division_by_zero(kind: str) -> None:
    x = torch.full((P, B, H), 2.0, requires_grad=True)
    out = PairNorm(P, H, kind)(x)
    out.sum().backward()
    assert torch.equal(out, torch.zeros_like(out))
    assert x.grad is not None
    assert x.grad.isfinite().all()


@pytest.mark.parametrize(("pairs", "width", "kind"), [(P, H, "none"), (P, 1, "layer"), (1, 1, "fused")])
def test_what_has_nothing_to_norm_passes(pairs: int, width: int, kind: str) -> None:
    x = numbers(pairs, B, width)
    assert torch.equal(pair_norm(pairs, width, kind)(x), x)


def test_one_unit_of_several_pairs_is_normed_over_the_pairs() -> None:
    assert isinstance(pair_norm(P, 1, "fused"), PairNorm)


def test_an_unknown_kind_is_refused_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match="unknown sub-network norm 'fusd'; did you mean 'fused'"):
        pair_norm(P, H, "fusd")


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations(name: str) -> None:
    x = torch.linspace(-3, 3, 41, dtype=torch.float64)
    torch.testing.assert_close(activation(name)(x), slow.activate(x, name), rtol=0, atol=1e-10)


def test_an_unknown_activation_is_refused_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match="unknown activation 'rely'; did you mean 'relu'"):
        activation("rely")
