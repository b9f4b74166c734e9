"""Every compiled loop on numbers of a drawn shape, beside a plain twin: in float64, or of Python's own dictionaries.

Each case takes its shape and gives (found, expected), and the least by which to measure their difference. Run as a
program, this is the guarded process (guard.py) that test_guarded.py asks.
"""

from __future__ import annotations

import hashlib
import math
import random
from collections import defaultdict
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray
from torch import Tensor

from fieldwise.config.settings import Config, TrainSettings
from fieldwise.data.batches import Batch
from fieldwise.data.encode.encoder import Encoder
from fieldwise.data.history.counts import Counts, Events
from fieldwise.data.history.trails import Trail
from fieldwise.data.kinds import lookup
from fieldwise.data.kinds.category import CategoryField
from fieldwise.data.kinds.kind import Code
from fieldwise.data.kinds.number import BucketCode, NumberField
from fieldwise.data.read.cells import cells_of
from fieldwise.data.read.formats import text_of
from fieldwise.data.schema import Layout, Schema
from fieldwise.data.world import world_loops
from fieldwise.data.world.effects import Effect, Packed
from fieldwise.models import build
from fieldwise.nn import symmetric_loops as tree_loops
from fieldwise.nn.shallow_scores import scores
from fieldwise.optim import Adam
from fieldwise.parts.attention.compiled import Scores
from fieldwise.parts.convolution.compiled import WindowMax
from fieldwise.parts.inner.compiled import InnerProducts
from fieldwise.parts.interactions import pairs
from fieldwise.parts.kernel.compiled import KernelProducts
from fieldwise.parts.kernel.sums import KernelSums
from fieldwise.parts.micro.compiled import two_layers
from fieldwise.parts.norm.compiled import LayerNormRelu
from fieldwise.parts.norm.norms import EPSILON
from fieldwise.parts.ways import formulas_alone
from fieldwise.train.steps import ShallowStep, Step
from tests.train.steps.test_shallow import drawn_ids

Found = list[tuple[Any, ...]]
Formula = Callable[..., tuple[Tensor, Tensor | None]]
# What a float32 may be away from zero (a ReLU's) or another number (a maximum's) that it is not told from.
NEAR = 1e-5


def drawn(*shape: int, scale: float = 1.0, near: float = 0.0) -> Tensor:
    return near + scale * torch.randn(shape)


def same(formula: Formula, fast: Callable[..., Tensor], batch: Tensor, *weights: Tensor, rows: int = 0) -> Found:
    """Results and gradients of `fast` in float32 and of `formula` in float64, by batch and weights.

    Rows where rounding could open a ReLU, or choose another maximum, have the place of others: `formula` gives its
    result and, for each row (dimension `rows`), how near to that it comes.
    """
    with torch.no_grad():
        near = formula(batch.double(), *(weight.double() for weight in weights))[1]
    if near is not None:
        clear = torch.nonzero(near > NEAR)[:, 0]
        clear = clear if len(clear) else near.argmax()[None]
        batch = batch.index_select(rows, clear[torch.arange(batch.shape[rows]) % len(clear)])
    ours = [part.clone().requires_grad_() for part in (batch, *weights)]
    theirs = [part.double().requires_grad_() for part in (batch, *weights)]
    found, (expected, _) = fast(*ours), formula(*theirs)
    pull = torch.randn(expected.shape)
    by_ours = torch.autograd.grad(found, ours, pull.to(found.dtype))
    by_theirs = torch.autograd.grad(expected, theirs, pull.to(found.dtype).double())
    # A gradient that is the small difference of larger ones, as a norm over two units has it, has their rounding.
    least = max(float(part.abs().max()) for part in by_theirs)
    gradients = zip(by_ours, by_theirs, [least] * len(ours), strict=True)
    return [(found.detach(), expected.detach()), *gradients]


def micro_numbers(fields: int, dim: int, units: int, outs: int, rows: int, product: bool, own: bool) -> list[Tensor]:
    """Vectors and layers of micro networks; `own`: each pair has its gain and shift."""
    count, wide = fields * (fields - 1) // 2, dim * (3 if product else 2)
    gains = count if own else 1
    layers = [drawn(count, wide, units, scale=wide**-0.5), drawn(count, 1, units)]
    layers += [drawn(gains, 1, units, scale=0.3, near=1), drawn(gains, 1, units, scale=0.3)]
    layers += [drawn(count, units, outs, scale=units**-0.5), drawn(count, 1, outs)]
    return [drawn(rows, fields, dim), *layers]


def micro_formula(first: Tensor, second: Tensor, product: bool, narrow: bool = False) -> Formula:
    """MicroNetwork.forward; `narrow`: the third input is rounded to bfloat16."""

    def formula(v: Tensor, *layers: Tensor) -> tuple[Tensor, Tensor]:
        weight, bias, gain, shift, last, last_bias = layers
        p, q = v[:, first].transpose(0, 1), v[:, second].transpose(0, 1)
        both = p * q
        if narrow:
            both = both + (both.detach().bfloat16().to(v.dtype) - both.detach())
        x = torch.baddbmm(bias, torch.cat([p, q, both] if product else [p, q], dim=2), weight)
        y, near = normed(x, gain, shift, (0, 2))
        return torch.baddbmm(last_bias, y, last).transpose(0, 1), near.amin((0, 2))

    return formula


def normed(
    x: Tensor, gain: Tensor, shift: Tensor, over: tuple[int, ...], eps: float = EPSILON
) -> tuple[Tensor, Tensor]:
    """relu(norm(x)), and how far each unit is from zero."""
    mean, variance = x.mean(over, keepdim=True), x.var(over, correction=0, keepdim=True)
    normal = (x - mean) / (variance + eps).sqrt() * gain + shift
    return torch.relu(normal), normal.abs()


def micro(**shape: Any) -> Found:
    numbers, (first, second) = micro_numbers(**shape), pairs(shape["fields"])

    def fast(v: Tensor, *layers: Tensor) -> Tensor:
        return two_layers(v, first, second, layers)

    formula = micro_formula(first, second, shape["product"])
    with torch.no_grad():
        scored = fast(*numbers), formula(*(part.double() for part in numbers))[0]
    return [scored, *same(formula, fast, *numbers)]


def micro_bf16(**shape: Any) -> Found:
    """What goes into the products of bfloat16 is rounded before, but for the gradients of units."""
    (v, weight, *others), (first, second) = micro_numbers(**shape), pairs(shape["fields"])

    def fast(v: Tensor, *layers: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return two_layers(v, first, second, layers)

    formula = micro_formula(first, second, shape["product"], narrow=True)
    return same(formula, fast, v.bfloat16().float(), weight.bfloat16().float(), *others)


def attention(fields: int, dim: int, units: int, rows: int) -> Found:
    first, second = pairs(fields)

    def formula(v: Tensor, weight: Tensor, bias: Tensor, last: Tensor) -> tuple[Tensor, Tensor]:
        x = (v[:, first] * v[:, second]) @ weight.T + bias
        return torch.relu(x) @ last, x.abs().amin((1, 2))

    numbers = drawn(rows, fields, dim), drawn(units, dim, scale=dim**-0.5), drawn(units), drawn(units)
    return same(formula, Scores.apply, *numbers)


def inner(fields: int, dim: int, rows: int) -> Found:
    first, second = pairs(fields)
    return same(lambda v: ((v[:, first] * v[:, second]).sum(2), None), InnerProducts.apply, drawn(rows, fields, dim))


def kernel_products(fields: int, dim: int, rows: int) -> Found:
    first, second = pairs(fields)

    def formula(v: Tensor, kernel: Tensor) -> tuple[Tensor, None]:
        return torch.einsum("bpd,pde,bpe->bp", v[:, first], kernel, v[:, second]), None

    numbers = drawn(rows, fields, dim), drawn(len(first), dim, dim, scale=1 / dim)
    sums = same(lambda *parts: (formula(*parts)[0].sum(1, keepdim=True), None), KernelSums.apply, *numbers)
    return same(formula, KernelProducts.apply, *numbers) + sums


def windows(fields: int, dim: int, width: int, channels: int, rows: int) -> Found:
    width = min(width, fields)

    def formula(v: Tensor, weight: Tensor) -> tuple[Tensor, Tensor | None]:
        each = torch.stack([v[:, t : t + width].flatten(1) @ weight.T for t in range(fields - width + 1)])
        best = each.topk(min(2, len(each)), dim=0).values
        return best[0], (best[0] - best[1]).amin(1) if len(best) > 1 else None

    return same(formula, WindowMax.apply, drawn(rows, fields, dim), drawn(channels, width * dim, scale=dim**-0.5))


def layer_norm(units: int, rows: int, bf16: bool) -> Found:
    def formula(x: Tensor, gain: Tensor, shift: Tensor) -> tuple[Tensor, Tensor]:
        y, near = normed(x, gain, shift, (1,), 1e-5)
        return y, near.amin(1)

    x = drawn(rows, units, near=2)
    numbers = x.bfloat16() if bf16 else x, drawn(units, scale=0.3, near=1), drawn(units, scale=0.3)
    return same(formula, lambda *parts: LayerNormRelu.apply(*parts, 1e-5), *numbers)


def adam_rows(dim: int, rows: int, ids: int, lazy: bool) -> Found:
    """Four steps; the twin decays all rows' moments in each of them, or with `lazy` the moved ones' alone."""
    betas, lr, eps = (0.9, 0.999), 0.01, 1e-2
    weight = drawn(rows, dim).requires_grad_()
    optimizer = Adam([weight], lr, betas, eps, sparse_mode="lazy" if lazy else "paper")
    start, (m, s) = weight.detach().double(), torch.zeros(2, rows, dim, dtype=torch.float64)
    w = start.clone()
    for step in range(1, 5):
        which, values = (torch.rand(ids) ** 2 * rows).long(), drawn(ids, dim)
        which[-1] = rows - 1
        weight.grad = torch.sparse_coo_tensor(which[None], values, weight.shape, check_invariants=False)
        optimizer.step()
        g = torch.zeros_like(w).index_add(0, which, values.double())
        moves = torch.zeros(rows, 1, dtype=torch.float64)
        moves[which] = 1
        fades = moves if lazy else torch.ones_like(moves)
        m += fades * (betas[0] - 1) * m + moves * (1 - betas[0]) * g
        s += fades * (betas[1] - 1) * s + moves * (1 - betas[1]) * g * g
        hat = (s / (1 - betas[1] ** step)).sqrt() + eps
        w -= moves * lr * m / (1 - betas[0] ** step) / hat
    return [(weight.detach().double() - start, w - start)]


def shallow(model: str, fields: int, dim: int, rows: int, linear: bool, optimizer: str, wide: bool = False) -> Found:
    """Three steps of LR, FM and FFM, and their scores then; `wide` ones have sets and interpolated numbers."""
    layout = Layout.of([2 + 7 * f % 40 for f in range(fields)])
    if wide and model != "ffm":
        layout = Layout(layout.sizes, tuple(1 + f % 4 for f in range(fields)), tuple(range(1, fields, 3)))
    options = {"lr": {}, "fm": {"dim": dim}, "ffm": {"dim": dim, "linear": linear}}[model]
    # With a small eps a gradient that is little more than rounding moves a weight as far as any other does.
    settings = TrainSettings(optimizer=optimizer, lr=0.02, l2=0.2, eps=1e-2)
    fast, plain = (build(model, layout, options) for _ in range(2))
    with torch.no_grad():
        for weight in fast.parameters():
            weight.copy_(drawn(*weight.shape, scale=0.3))
    plain.load_state_dict(fast.state_dict())
    before = [weight.detach().double().clone() for weight in plain.parameters()]
    config = Config(model, options, settings)
    steps: Any = ShallowStep(fast.train(), config, 9), Step(plain.double().train(), config, 9)
    losses: list[list[float]] = [[], []]
    for number in range(3):
        ids = drawn_ids(np.random.default_rng(int(torch.randint(99, ()))), layout, rows)
        # Behind the last row of the table is nothing.
        ids[-1] = np.repeat(np.array(layout.sizes), layout.widths) - 1
        labels, weights = (torch.rand(rows) < 0.3).numpy(), torch.rand(rows).numpy() if number else None
        for step, kind, found in zip(steps, (np.float32, np.float64), losses, strict=True):
            given = None if weights is None else weights.astype(kind)
            with formulas_alone():
                found.append(step(Batch(ids, labels.astype(kind), given), number))
    moves = [
        (ours.detach().double() - start, theirs.detach() - start, settings.lr)
        for ours, theirs, start in zip(fast.parameters(), plain.parameters(), before, strict=True)
    ]
    scored = scores(fast.eval(), ids)
    assert scored is not None
    with torch.no_grad():
        exact = fast.double()(torch.from_numpy(ids))
    return [(np.array(losses[0]), np.array(losses[1]), 1.0), *moves, (scored, exact, 1.0)]


def text(draw: random.Random, longest: int) -> str:
    kinds = "ab", "0123456789", "-.0123456789", "TrueFals", "é\x00 ", ".0"
    return "".join(draw.choice(draw.choice(kinds)) for _ in range(draw.randint(0, longest)))


def cells(rows: int, words: int, numbers: int, longest: int, known: int, seed: int) -> Found:
    """Ids of cells in a block of text, fields in another order than columns, beside those of each text alone."""
    draw = random.Random(seed)
    codes: list[Code] = []
    for f in range(words):
        texts = {text_of(text(draw, longest)) for _ in range(known)} - {None, ""}
        codes.append(CategoryField(f"w{f}").words(sorted(texts)))
    for f in range(numbers):
        bounds = np.sort(np.array([draw.uniform(-9, 2000) for _ in range(draw.randint(0, 40))]))
        codes.append(BucketCode(NumberField(f"n{f}"), bounds))
    names = [code.field.name for code in codes]
    columns = draw.sample(names, len(names))
    asked = {name: [text(draw, longest) for _ in range(rows)] for name in names}
    lines = [",".join(asked[name][row] for name in columns) for row in range(rows)]
    block = "\n".join(lines).encode()
    found = cells_of(block, columns, names, ",")
    assert found is not None
    ids = Encoder(Schema("click", tuple(code.field for code in codes)), codes).transform(found)
    expected = [code.ids([text_of(one or None) for one in asked[code.field.name]]) for code in codes]
    own = found.column(names[0], np.arange(rows)[::-1]).to_pylist()
    assert own == [one or None for one in asked[names[0]][::-1]]
    return [(ids, np.stack(expected, axis=1))]


def words(known: int, asked: int, longest: int, seed: int) -> Found:
    """Places of words in a vocabulary, and their hashes."""
    draw = random.Random(seed)
    vocabulary = {word: 2 + n for n, word in enumerate(sorted({text(draw, longest) for _ in range(known)}))}
    texts = [draw.choice([*vocabulary, text(draw, longest)]) for _ in range(asked)]
    ids, places = lookup.Lookup(vocabulary, 1).find(pa.array(texts, pa.string()))
    certain = places > -2
    expected = np.array([vocabulary.get(word, 1) for word in texts])
    hashes, odd = lookup.word_hashes(pa.array(texts, pa.string()))
    digests = [hashlib.blake2b(word.encode(), digest_size=8).digest() for word in texts]
    exact = np.array([int.from_bytes(digest, "little") for digest in digests], dtype=np.uint64)
    return [(ids[certain], expected[certain]), (hashes[~odd] == exact[~odd], np.ones((~odd).sum()))]


def counts(rows: int, keys: int, kinds: int, delay: float, window: float, seed: int) -> Found:
    """Counts of keys as a dictionary has them; and what rows see of those before them."""
    random = np.random.default_rng(seed)
    asked = random.integers(1, kinds + 1, (rows, keys)).astype(np.uint64) * np.uint64(2654435761)
    labels, times = random.integers(0, 2, rows), np.sort(random.integers(0, rows + 1, rows)).astype(float)
    table, twin = Counts(half_life=5.0), defaultdict(lambda: np.zeros(2))
    table.add(asked, labels, times)
    for row, label, time in zip(asked, labels, times, strict=True):
        for key in row:
            twin[key] += np.array([1, label]) * 2 ** ((time - times[-1]) / 5)
    looked = table.lookup(asked, np.full(rows, times[-1]))
    stream, seen = Counts(), np.zeros((rows, keys, 2))
    stream.stream(Events(asked, labels, times), 0, 0, 0, np.array([delay, window]), seen)
    expected = np.zeros_like(seen)
    for row, now in enumerate(times):
        known = (times < now) & (times <= now - delay) & ((times >= now - window) | (window == 0))
        for column, key in enumerate(asked[row]):
            hits = (asked == key).sum(1)
            expected[row, column] = (hits * known).sum(), (hits * known * labels).sum()
    return [(looked, np.array([[twin[key] for key in row] for row in asked])), (seen, expected)]


def trails(rows: int, columns: int, kinds: int, last: int, delay: float, window: float, seed: int) -> Found:
    """What rows see of those before them, and later ones of all, as lists have it; with room for few events."""
    random = np.random.default_rng(seed)
    keys = random.integers(1, kinds + 1, rows).astype(np.uint64)
    ids, counts = random.integers(0, 9, (rows, columns)).astype(np.int32), random.random(rows) < 0.8
    times = np.sort(random.integers(0, rows + 1, rows)).astype(float)
    trail = Trail(columns, last, delay, window, most=3 * rows + 2048)
    trail._allocate_events(1)

    def seen(key: Any, now: float) -> Any:
        known = (times < now) & (times <= now - delay) & ((times >= now - window) | (window == 0))
        newest = ids[known & counts & (keys == key)][::-1][:last]
        padded = np.full((last, columns), -1)
        padded[0], padded[: len(newest)] = 0, newest
        return padded.T

    found = trail.replay(keys, ids, counts, times).ids
    other = Trail(columns, last, delay, window)
    other.load(trail.state(), trail.end, [9] * columns)
    looked = other.lookup(keys, np.full(rows, trail.end + 2)).ids
    return [
        (found, np.stack([seen(key, now) for key, now in zip(keys, times, strict=True)])),
        (looked, np.stack([seen(key, trail.end + 2) for key in keys])),
    ]


def world_rows(rows: int, fields: int, values: int, seed: int) -> Found:
    """A world's logits by its effects one by one; counts and ids of codes as numpy has them."""
    random = np.random.default_rng(seed)
    vectors = {f"f{i}": random.standard_normal((values + 2, 5)).astype(np.float32) for i in range(fields)}
    codes = {name: random.integers(values + 2, size=rows) for name in vectors}
    shapes = {"bilinear": [(4, 4)], "net": [(4, 4), (4, 4), (4, 1), (4,)], "rule": [], "linear": []}
    effects = []
    for part, sizes in shapes.items():
        weights = tuple(random.standard_normal(size).astype(np.float32) for size in sizes)
        order = {"linear": 1, "rule": 3}.get(part, 2)
        effects.append(Effect(part, tuple(random.choice(list(vectors), order).tolist()), weights, 0.7))
    owners: Any = {name: SimpleNamespace(vectors=table) for name, table in vectors.items()}
    found = Packed(owners, effects, 0.5).logits(codes)
    looked_up = {name: vectors[name][code].T for name, code in codes.items()}
    expected = 0.5 + sum(effect(looked_up) for effect in effects)
    every, firsts = np.stack(list(codes.values())), (values + 2) * np.arange(fields)
    kept, labels = random.random(rows) < 0.5, random.integers(0, 2, rows).astype(np.uint8)
    counts, twin = (np.zeros((fields * (values + 2), 2), dtype=np.int64) for _ in range(2))
    world_loops.count(every, kept, labels, firsts, counts)
    np.add.at(
        twin, (every + firsts[:, None])[:, kept], np.stack([np.ones(rows), labels], axis=1)[kept].astype(np.int64)
    )
    widths = random.integers(1, 4, fields)
    tables = [random.integers(0, 99, (values + 2, width)).astype(np.int32) for width in widths]
    chosen, ids = np.flatnonzero(kept), np.empty((kept.sum(), widths.sum()), dtype=np.int32)
    starts = np.cumsum([0, *(table.size for table in tables)])
    world_loops.encode(every, chosen, starts, widths, np.concatenate([table.reshape(-1) for table in tables]), ids)
    known = np.hstack([table[code[chosen]] for table, code in zip(tables, every, strict=True)])
    slot, day, shift = random.integers(values, size=rows), random.integers(7, size=rows), random.integers(9, size=7)
    change, after, drifts = random.integers(7, size=values), random.integers(99, size=values), random.random(rows) < 0.5
    moved = world_loops.drift(slot, drifts, day, shift, values)
    now = world_loops.alive(slot, day, change, after)
    lives = [
        (moved, np.where(drifts, (slot + shift[day]) % values, slot)),
        (now, np.where(day >= change[slot], after[slot], slot)),
    ]
    return [(found, expected), (counts, twin), (ids, known), *lives]


def symmetric_trees(rows: int, columns: int, values: int, depth: int, seed: int) -> Found:
    """Sums, splits, leaves and scores of a symmetric tree; by numpy's masks."""
    random, size = np.random.default_rng(seed), 2 ** (depth - 1)
    counts = random.integers(1, values + 1, columns)
    starts, single = np.concatenate([[0], np.cumsum(counts)]), random.random(columns) < 0.5
    bins = np.stack([random.integers(0, count, rows) for count in counts]).astype(np.uint8)
    leaves, pulls = random.integers(0, size, rows).astype(np.uint16), random.random((rows, 2))
    some, found = np.flatnonzero(random.random(rows) < 0.7).astype(np.int32), np.zeros((2 * size, starts[-1], 2))
    tree_loops.add_rows(bins, some, leaves[some], size, starts, pulls[some], 0, columns, found)
    whole, twin = random.random((size, starts[-1], 2)), np.zeros_like(found)
    for column in range(columns):
        np.add.at(twin, (size + leaves[some].astype(int), starts[column] + bins[column, some]), pulls[some])
    found[:size] = whole
    halves, right = found.copy(), bool(seed % 2)
    tree_loops.part_leaves(halves, size, right, 0, starts[-1])
    both = np.concatenate([whole - twin[size:], twin[size:]] if right else [twin[size:], whole - twin[size:]])
    noise = random.random(starts[-1])
    score, column, at = tree_loops.best_split(found, size, starts, single, 1.0, noise, 0, columns)
    scores = _split_scores(found[:size], starts, single, noise)
    if not scores:
        assert column == -1
        score, column, at, scores = 0.0, 0, 0, {(0, 0): 0.0}
    to, bit = leaves.copy(), size
    tree_loops.go_right(bins[column], at, bool(single[column]), bit, to)
    goes = bins[column] == at if single[column] else bins[column] > at
    labels, weights, logits = random.integers(0, 2, rows).astype(float), pulls[:, 0] + 0.1, random.normal(size=rows)
    values_ = np.zeros(size)
    tree_loops.leaf_values(leaves, labels, weights, logits, 1.0, 1, 0.0, values_)
    p = 1 / (1 + np.exp(-logits))
    ups, downs = (np.bincount(leaves, w, size) for w in (weights * (labels - p), weights * p * (1 - p)))
    features, shape = random.integers(0, 3, (rows, columns)).astype(np.float32), (3, depth)
    asked, bounds = random.integers(0, columns, shape).astype(np.int32), random.integers(0, 3, shape).astype(np.float32)
    equal, added = random.random(shape) < 0.5, random.random((3, 2**depth)).astype(np.float32)
    scored = np.zeros(rows)
    tree_loops.scores(features, asked, bounds, equal, added, scored)
    picked = features[:, asked]
    places = np.where(equal, picked == bounds, picked > bounds) @ (1 << np.arange(depth))
    expected = added[np.arange(3), places].astype(float).sum(1)
    best = max(scores.values())
    first = np.concatenate([whole, twin[size:]])
    return [
        *((found, first), (halves, both), (np.array([score, scores[column, at]]), np.array([best, best]))),
        *((to, np.where(goes, leaves | bit, leaves)), (values_, ups / (downs + 1.0)), (scored, expected)),
    ]


def _split_scores(
    sums: NDArray[np.float64], starts: NDArray[np.int64], single: NDArray[np.bool_], noise: NDArray[np.float64]
) -> dict[tuple[int, int], float]:
    """The score of each split of leaves with these sums (L, bins, 2), with l2 of 1."""
    found = {}
    for column in range(len(single)):
        own = sums[:, starts[column] : starts[column + 1]]
        for at in range(own.shape[1] if single[column] else own.shape[1] - 1):
            one = own[:, at] if single[column] else own[:, : at + 1].sum(1)
            sides = np.concatenate([one, own.sum(1) - one])
            steps = sides[:, 0] / (sides[:, 1] + 1.0)
            cosine = (steps * sides[:, 0]).sum() / math.sqrt((steps**2 * sides[:, 1]).sum() + 1e-100)
            found[column, at] = float(cosine + noise[starts[column] + at])
    return found


CASES: dict[str, Callable[..., Found]] = {
    case.__name__: case
    for case in (
        micro, micro_bf16, attention, inner, kernel_products, windows, layer_norm, adam_rows, shallow,
        cells, words, counts, trails, world_rows, symmetric_trees,
    )
}  # fmt: skip


def apart(found: Any, expected: Any, least: float = 0.0) -> float:
    """The largest difference, by the largest number that is expected; infinite where either is no number."""
    one, two = (
        part.double().numpy() if isinstance(part, Tensor) else np.asarray(part, dtype=np.float64)
        for part in (found, expected)
    )
    assert one.shape == two.shape, f"shape {one.shape} for {two.shape}"
    largest = max(least, float(np.abs(two).max(initial=0)))
    far = float(np.abs(one - two).max(initial=0))
    return far / (largest or 1.0) if math.isfinite(far) else math.inf


def answer(case: str, shape: dict[str, Any]) -> list[float]:
    """How far the results of a case are apart."""
    torch.manual_seed(sum(value for value in shape.values() if isinstance(value, int)))
    return [
        apart(found.float() if isinstance(found, Tensor) else found, *rest) for found, *rest in CASES[case](**shape)
    ]


if __name__ == "__main__":
    from tests.loops.guard import serve

    torch.set_num_threads(1)
    serve(answer)
