"""The kernels over pairs are left out where a pair's matrices would not fit into a processor's own memory."""

import pytest
import torch

from fieldwise.loops import gpu
from fieldwise.parts import ways
from fieldwise.parts.kernel import gpu as kernel
from fieldwise.parts.kernel.formula import KernelProduct
from fieldwise.parts.micro import gpu as micro
from fieldwise.parts.micro.formula import MicroNetwork

H200 = 232_448  # bytes; NIFM with vectors of 64 asked for 262,144 there


@pytest.mark.parametrize(
    ("dim", "subnet", "product", "fits"),
    [(20, (40, 5), True, True), (32, (64, 1), False, True), (64, (32, 1), False, False), (64, (64, 1), False, False)],
)
def test_micro_networks_fit_or_go_the_plain_way(monkeypatch, dim, subnet, product, fits):
    monkeypatch.setattr(ways, "HAS_TRITON", True)
    monkeypatch.setattr(torch.Tensor, "is_cuda", True)
    monkeypatch.setattr(ways, "shared_memory_bytes", lambda: H200)
    network = MicroNetwork([dim] * 3, subnet, product=product)
    with torch.no_grad():
        assert bool(micro.TRITON.against(network, torch.zeros(2, 3, dim))) != fits


@pytest.mark.parametrize(("dim", "fits"), [(20, True), (128, True), (200, False)])
def test_kernels_fit_or_go_the_plain_way(monkeypatch, dim, fits):
    monkeypatch.setattr(ways, "HAS_TRITON", True)
    monkeypatch.setattr(torch.Tensor, "is_cuda", True)
    monkeypatch.setattr(ways, "shared_memory_bytes", lambda: H200)
    with torch.no_grad():
        part = KernelProduct([dim] * 3, "mat", "identity")
        assert bool(kernel.TRITON.against(part, torch.zeros(2, 3, dim))) != fits


@pytest.mark.parametrize(("size", "side"), [(1, 16), (16, 16), (17, 32), (61, 64), (128, 128), (129, 256)])
def test_a_tiles_side_is_a_power_of_two(size, side):
    assert gpu.padded(size) == side
