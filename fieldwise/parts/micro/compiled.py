"""Micro networks of two layers with the fused norm, by compiled loops (CPU)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

from fieldwise.loops import running
from fieldwise.parts.micro.gpu import unknown_layers
from fieldwise.parts.norm.norms import EPSILON
from fieldwise.parts.ways import Way, no_loops_of_rows


def two_layers(v: Tensor, first: Tensor, second: Tensor, layers: tuple[Tensor, ...]) -> Tensor:
    """(B, F, D) -> (B, P, U): affine, fused norm, ReLU, affine, on v_i, v_j and, if weights are 3 D wide, v_i * v_j.

    `layers`: weight (P, 2 D or 3 D, H) and bias (P, 1, H), gain and shift (1 or P, 1, H), weight (P, H, U) and bias
    (P, 1, U). Under autocast the first layer multiplies in bfloat16 if the processor can; all else is in the type of
    the weights.
    """
    from fieldwise.loops import halves

    kept = torch.is_grad_enabled() and any(part.requires_grad for part in (v, *layers))
    narrow = torch.is_autocast_enabled("cpu") and v.dtype == torch.float32 and halves.available()
    with torch.autocast("cpu", enabled=False):
        found: Tensor = TwoLayers.apply(v, first, second, kept, narrow, *layers)  # type: ignore[no-untyped-call]
    return found


class TwoLayers(torch.autograd.Function):
    """`two_layers`; with `kept` the backward pass gets the units, one array of blocks (n, P, H, BLOCK)."""

    @staticmethod
    def forward(
        ctx: Any, v: Tensor, first: Tensor, second: Tensor, kept: bool, narrow: bool, *layers: Tensor
    ) -> Tensor:
        from fieldwise.loops.blocks import BLOCK
        from fieldwise.parts.micro import loops as micro

        compute, v = _any(micro.forward), v.contiguous()
        weight, bias, gain, shift, last, last_bias = layers
        blocks, (pairs, _, height) = -(-len(v) // BLOCK), weight.shape
        threads = running.threads_for(len(v))
        units = v.new_empty(blocks if kept else threads, pairs, height, BLOCK)
        stats, out = v.new_empty(blocks, 2, BLOCK), v.new_empty(len(v), pairs, last.shape[2])
        norm = gain.squeeze(1), shift.squeeze(1)
        inputs = micro.Inputs(running.array(v), running.array(first), running.array(second), weight.shape[1])
        network = micro.Layers(*map(running.array, (_words(weight, 1) if narrow else weight, *norm, last)))
        biases = micro.Biases(*map(running.array, (bias.squeeze(1), last_bias.squeeze(1))))
        held, moments, found = map(running.array, (units, stats, out))

        def part(low: int, high: int, thread: int) -> None:
            room = micro.Kept(held if kept else held[thread : thread + 1], moments)
            compute(inputs, network, biases, EPSILON, low, high, room, found)

        running.on_threads(part, blocks, threads)
        if kept:
            ctx.narrow = narrow
            ctx.save_for_backward(v, first, second, weight, *norm, last, units, stats)
        return out

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator, unused-ignore]
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override, unused-ignore]
        from fieldwise.loops.lanes import LANES
        from fieldwise.parts.micro import loops as micro

        compute = _any(micro.backward)
        v, first, second, weight, gain, shift, last, units, stats = ctx.saved_tensors
        grad, by_v, threads = grad.contiguous(), torch.empty_like(v), running.threads_for(len(v))
        (_, wide, height), outs = weight.shape, last.shape[2]
        # Each thread has its own sums, added in a fixed order: the result does not depend on which thread ends first.
        by_weight = v.new_zeros(threads, *_shape(weight, height, wide + 1, LANES))
        by_gain, by_shift = v.new_zeros(2, threads, *gain.shape, LANES)
        by_last = v.new_zeros(threads, *_shape(last, height, outs, LANES))
        inputs = micro.Inputs(running.array(v), running.array(first), running.array(second), wide)
        layers = micro.Layers(*map(running.array, (_words(weight, 2) if ctx.narrow else weight, gain, shift, last)))
        kept, pulls = micro.Kept(*map(running.array, (units, stats))), running.array(grad)
        sums = [running.array(part) for part in (by_weight, by_gain, by_shift, by_last)]

        def part(low: int, high: int, thread: int) -> None:
            own = micro.Sums(*(found[thread] for found in sums))
            compute(pulls, inputs, layers, kept, low, high, own, running.array(by_v))

        running.on_threads(part, len(units), threads)
        affine, collect = (torch.empty_like(weight), weight.new_empty(len(weight), 1, height)), _any(micro.collect)
        filled = running.array(affine[0]), running.array(affine[1][:, 0])
        running.on_threads(lambda low, high, _: collect(sums[0], low, high, *filled), len(weight), threads)
        shared = [found.sum((0, 3))[:, None] for found in (by_gain, by_shift)]
        return (
            by_v,
            None,
            None,
            None,
            None,
            *affine,
            *shared,
            by_last.sum(0)[:, :, :outs].contiguous(),
            grad.sum(0)[:, None],
        )


def _words(weight: Tensor, along: int) -> Tensor:
    """Packs two bfloat16, neighbours along a dimension, into a word of 32 bits; an odd last one is paired with zero."""
    halves = weight.detach().to(torch.bfloat16).movedim(along, -1)
    even = functional.pad(halves, (0, halves.shape[-1] % 2))
    # Flattened first: a matrix of one column may have the strides of its transpose, which `view` refuses.
    words = even.reshape(-1).view(torch.int32).view(*even.shape[:-1], -1)
    return words.movedim(-1, along).contiguous()


def _shape(weight: Tensor, height: int, wide: int, lanes: int) -> tuple[int, int, int]:
    """The shape of the pairs' sums: the last size is rounded up to whole vectors."""
    return len(weight), height, -(-wide // lanes) * lanes


def _any(compiled: Any) -> Any:
    """A compiled function without numba's types, which do not describe its arguments."""
    return compiled


def _by_loops(part: Any, v: Tensor) -> Tensor:
    norm, last_norm = part.norms
    first, last = ((weight(), bias) for weight, bias in zip(part.weights, part.biases, strict=True))
    found = two_layers(v, part.first, part.second, (*first, norm.gain, norm.shift, *last))
    normal: Tensor = last_norm(found.transpose(0, 1))
    return normal.transpose(0, 1).flatten(1)


LOOPS = Way("compiled loops", lambda part, v: no_loops_of_rows(v) or unknown_layers(part), _by_loops)
