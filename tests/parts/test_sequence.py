"""How sequences become vectors, beside loops in float64; what is not there changes nothing."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from fieldwise import models
from fieldwise.data.schema import Layout
from fieldwise.nn.embedding import POOLS, Vectors
from fieldwise.nn.shallow_scores import is_shallow
from fieldwise.parts.sequence.formula import CandidateAttention, Encoder, Last, Pool, Shape
from tests.parts.drawn import numbers

B, L, D = 4, 5, 3
LENGTHS = (5, 3, 1, 4)
PRESENT = torch.tensor([[place < length for place in range(L)] for length in LENGTHS])


def drawn(shape: Shape) -> tuple[Tensor, Tensor]:
    return numbers(B, shape.fields, L, D), numbers(B, len(shape.own), D)


def started(pool: Pool) -> Pool:
    """All weights at random, those that start at 0 too."""
    torch.manual_seed(1)
    for parameter in pool.parameters():
        torch.nn.init.uniform_(parameter, -1, 1)
    return pool.double()


def affine(layer: torch.nn.Module, x: list[float]) -> list[float]:
    weight, bias = (parameter.tolist() for parameter in (layer.weight, layer.bias))
    return [sum(w * one for w, one in zip(row, x, strict=True)) + b for row, b in zip(weight, bias, strict=True)]


@pytest.mark.parametrize("softmax", [True, False])
@pytest.mark.parametrize("places", [True, False])
@pytest.mark.parametrize("own", [(0, 1), (1,), ()])
def test_attention_of_the_candidate_equals_the_loop(own: tuple[int, ...], places: bool, softmax: bool) -> None:
    shape = Shape(2, L, D, own)
    pool = started(CandidateAttention(shape, (4, 3), softmax, places))
    s, candidate = drawn(shape)
    found = pool(s, PRESENT, candidate)
    for row, length in enumerate(LENGTHS):
        v = [one for field in candidate[row].tolist() for one in field]
        scores = []
        for place in range(length):
            more = pool.places[place].tolist() if places else [0.0] * 2 * D
            fields = [[one + more[f * D + d] for d, one in enumerate(s[row, f, place].tolist())] for f in (0, 1)]
            x = [one for f in own for one in fields[f]]
            pairs = list(zip(v, x, strict=True))
            x = [*v, *x, *(one - two for one, two in pairs), *(one * two for one, two in pairs)]
            x += [one for f in (0, 1) if f not in own for one in fields[f]]
            for layer in pool.layers:
                x = [max(0.0, one) for one in affine(layer, x)]
            scores += affine(pool.score, x)
        total = sum(math.exp(score) for score in scores)
        weights = [math.exp(score) / total if softmax else score for score in scores]
        for field in range(2):
            expected = sum(weight * s[row, field, place] for place, weight in enumerate(weights))
            torch.testing.assert_close(found[row, field], expected, rtol=0, atol=1e-10)


def normed(x: Tensor, norm: torch.nn.Module) -> Tensor:
    centred = x - x.mean()
    return centred / (centred.square().mean() + 1e-5).sqrt() * norm.weight + norm.bias


@pytest.mark.parametrize("own", [(0, 1), (1,), ()])
def test_the_encoder_equals_the_loop(own: tuple[int, ...]) -> None:
    shape = Shape(2, L, D, own)
    pool = started(Encoder(shape, heads=2))
    s, candidate = drawn(shape)
    found = pool(s, PRESENT, candidate)
    width, size = 2 * D, D
    for row, length in enumerate(LENGTHS):
        rows = [s[row, :, place].flatten() for place in range(length)]
        if own:
            first = torch.zeros(2, D, dtype=torch.float64)
            for place, field in enumerate(own):
                first[field] = candidate[row, place]
            rows = [first.flatten(), *rows]
        x = [one + pool.places[place] for place, one in enumerate(rows)]
        three = [pool.three.weight @ one + pool.three.bias for one in x]
        heads = []
        for head in range(2):
            part = [[one[k * width + head * size : k * width + (head + 1) * size] for k in range(3)] for one in three]
            weights = torch.stack([part[0][0] @ key / math.sqrt(size) for _, key, _ in part]).softmax(dim=0)
            heads.append(sum(weight * value for weight, (_, _, value) in zip(weights, part, strict=True)))
        joined = pool.joined.weight @ torch.cat(heads) + pool.joined.bias
        y = normed(x[0] + joined, pool.norms[0])
        wide = torch.relu(pool.wide.weight @ y + pool.wide.bias)
        expected = normed(y + pool.narrow.weight @ wide + pool.narrow.bias, pool.norms[1])
        torch.testing.assert_close(found[row].flatten(), expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("pool", [CandidateAttention, Encoder])
@pytest.mark.parametrize("own", [(0,), ()])
def test_unused_places_change_nothing(pool: type[CandidateAttention] | type[Encoder], own: tuple[int, ...]) -> None:
    shape = Shape(1, L, D, own)
    part = started(pool(shape))
    s, candidate = drawn(shape)
    other = torch.where(PRESENT[:, None, :, None], s, 1e3)
    torch.testing.assert_close(part(s, PRESENT, candidate), part(other, PRESENT, candidate), rtol=0, atol=1e-12)


def test_loops_over_rows_of_ones_own_do_not_take_shared_ones() -> None:
    apart, shared = Layout((5, 5), (1, 1)), Layout((5, 5), (1, 1), like=(0, 0), sequences=((1,),))
    kinds = [(apart, {}, True), (shared, {}, False), (replace(apart, sequences=((1,),)), {"sequence": "last"}, False)]
    for layout, options, shallow in kinds:
        assert is_shallow(models.build("fm", layout, options)) == shallow


def test_the_newest_place_stands_first() -> None:
    s, candidate = drawn(Shape(2, L, D, (0,)))
    assert torch.equal(Last()(s, PRESENT, candidate), s[:, :, 0])


@pytest.mark.parametrize("pool", POOLS)
@pytest.mark.parametrize("adaptive", [0.0, 1.5])
def test_vectors_of_sequences_in_a_row(pool: str, adaptive: float) -> None:
    # The fields of a sequence need not lie together, nor behind those whose vectors they share.
    layout = Layout((40, 9, 4, 9, 40), (3, 1, 1, 3, 1), like=(4, 1, 2, 1, 4), sequences=((0, 3),))
    torch.manual_seed(0)
    embedding = Vectors(6, adaptive, sequence=pool).embedding(layout).double()
    assert sum(table.weight.shape[0] for table in embedding.tables) == 53
    ids = torch.tensor(
        [[30, 2, 7, 8, 3, 5, 5, 2, 30], [2, -1, -1, 1, 3, 8, -1, -1, 7], [0, -1, -1, 1, 3, 0, -1, -1, 7]]
    )
    found = embedding(ids)
    assert found.shape == (3, 5, 6)
    # A row with one place has its vectors, except from the encoder; the others are as they always are.
    same = embedding.tables[0].weight if not adaptive else None
    if same is not None:
        starts = layout.offsets
        assert torch.equal(found[0, 4], same[starts[4] + 30])
        assert torch.equal(found[0, 1], same[starts[1] + 8])
        if pool in ("mean", "last") or (pool == "attention"):
            torch.testing.assert_close(found[1, 0], same[starts[0] + 2])
            torch.testing.assert_close(found[1, 3], same[starts[3] + 8])
        if pool == "mean":
            torch.testing.assert_close(found[0, 0], same[[starts[0] + id for id in (30, 2, 7)]].mean(dim=0))
    found.sin().sum().backward()
    assert all(parameter.grad is not None for parameter in embedding.parameters())
