"""The formulas since the paper once more, number by number on the vectors of one row, as slow.py has the paper's."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tests.parts.slow import Row, activate, add, dot, flat, norm, pairs


def sigmoid(x: Tensor) -> Tensor:
    return torch.stack([1 / (1 + (-unit).exp()) for unit in x])


def softmax(x: Tensor) -> Tensor:
    powers = x.exp()
    return powers / powers.sum()


def layer(part: Any, x: Tensor) -> Tensor:
    """W x + b, unit by unit."""
    units = torch.stack([dot(w, x) for w in part.weight])
    return units if part.bias is None else units + part.bias


def normed(part: Any, x: Tensor) -> Tensor:
    return norm(x, x, part.weight, part.bias)


def gate(part: Any, x: Tensor, end: str, scale: float = 1.0) -> Tensor:
    for each in part.layers[:-1]:
        x = activate(layer(each, x), "relu")
    last = layer(part.layers[-1], x)
    return scale * {"sigmoid": sigmoid, "none": lambda y: y, "relu": lambda y: activate(y, "relu")}[end](last)


def cross(part: Any, v: Row) -> Tensor:
    x0 = x = flat(v)
    for number, each in enumerate(part.layers):
        crossed = x0 * layer(each, x)
        x = (crossed * gate(part.gates[number], x, "sigmoid") if len(part.gates) else crossed) + x
    return x


def cross_mixture(part: Any, v: Row) -> Tensor:
    x0 = x = flat(v)
    for down, inside, up, bias in zip(part.down, part.inside, part.up, part.biases, strict=True):
        shares = softmax(layer(part.scores, x))
        found = torch.zeros_like(x)
        for expert, share in enumerate(shares):
            low = activate(torch.stack([dot(column, x) for column in down[expert].T]), "tanh")
            low = activate(torch.stack([dot(column, low) for column in inside[expert].T]), "tanh")
            high = torch.stack([dot(column, low) for column in up[expert].T])
            found = found + share * (x0 * (high + bias))
        x = found + x
    return x


def compressed(part: Any, v: Row) -> Tensor:
    x, features = v, []
    for each in part.layers:
        shape = (-1, len(v), len(x))
        x = [
            sum(w[i, j] * v[i] * x[j] for i in range(len(v)) for j in range(len(x))) + b
            for w, b in zip(each.weight.view(shape), each.bias, strict=True)
        ]
        features += [vector.sum() for vector in x]
    return torch.stack(features)


def self_attention(part: Any, v: Row) -> Tensor:
    for each in part.layers:
        q, k, values = ([layer(one, vector) for vector in v] for one in (each.query, each.key, each.value))
        size = len(q[0]) // each.heads
        found = []
        for i, vector in enumerate(v):
            heads = []
            for head in range(each.heads):
                own = slice(head * size, (head + 1) * size)
                scores = torch.stack([dot(q[i][own], key[own]) * each.factor for key in k])
                heads.append(sum(a * value[own] for a, value in zip(softmax(scores), values, strict=True)))
            residual = vector if each.residual is None else layer(each.residual, vector)
            found.append(activate(torch.cat(heads) + residual, "relu"))
        v = found
    return torch.cat(v)


def bilinear(part: Any, v: Row) -> Tensor:
    found = []
    for number, (i, j) in enumerate(pairs(len(v))):
        matrix = part.weight.entries[{"all": 0, "each": i, "pair": number}[part.kind]]
        found.append(torch.stack([dot(v[i], column) for column in matrix.T]) * v[j])
    return torch.cat(found)


def fibinet(part: Any, v: Row) -> Tensor:
    plain, squeezed = part.parts
    factors = gate(squeezed.gate, torch.stack([vector.sum() / len(vector) for vector in v]), squeezed.gate.kind)
    scaled = [a * vector for a, vector in zip(factors, v, strict=True)]
    return torch.cat([bilinear(plain, v), bilinear(squeezed.part, scaled)])


def mask(part: Any, v: Row) -> Tensor:
    row = flat(v)
    start = torch.cat([norm(one, one, *own) for one, *own in zip(v, part.norm.gain, part.norm.shift, strict=True)])
    x, found = start, []
    for masked, each, after in zip(part.masks, part.layers, part.norms, strict=True):
        found.append(activate(normed(after, layer(each, gate(masked, row, "none") * x)), "relu"))
        x = found[-1] if part.serial else start
    return x if part.serial else torch.cat(found)


def bridged(part: Any, v: Row) -> Tensor:
    m, x0, fields = flat(v), None, [f for f, vector in enumerate(v) for _ in vector]
    for number, factors in enumerate(part.factors):
        into_c, into_d = (softmax(own / part.temperature)[fields] for own in factors)
        c, d = m * into_c, m * into_d
        if part.norms[0].__class__.__name__ == "LayerNorm":
            c, d = normed(part.norms[2 * number], c), normed(part.norms[2 * number + 1], d)
        x0 = c if x0 is None else x0
        c = x0 * dot(part.crosses[number].weight[0], c) + part.biases[number] + c
        d = activate(layer(part.layers[number], d), "relu")
        m = c * d if part.bridge == "product" else c + d
    return torch.cat([c, d, m])


def gated(part: Any, v: Row) -> Tensor:
    x = flat(v)
    return x * gate(part.gate, x if part.context is None else part.context[0], "sigmoid", 2)


def factorised(part: Any, v: Row) -> Tensor:
    if part.gate is not None:
        factors = [sum(w * vector for w, vector in zip(own, v, strict=True)) for own in part.gate.weight]
        v = [*v, *(vector * (f + b) for vector, f, b in zip(v, factors, part.gate.bias, strict=True))]
    x = flat(v)
    for each, after in zip(part.layers, part.norms, strict=True):
        units = layer(each, x)
        a, b = units[: len(units) // 2], units[len(units) // 2 :]
        x = torch.cat([a, a * b]) if part.residual == "concat" else a + a * b
        x = normed(after, x) if hasattr(after, "weight") else x
    return x


def masked_cross(part: Any, v: Row) -> Tensor:
    size = len(v[0]) // part.heads
    features = []
    for head in range(part.heads):
        own = [vector[head * size : (head + 1) * size] for vector in v]
        x0 = x = torch.cat([*(vector[: size // 2] for vector in own), *(vector[size // 2 :] for vector in own)])
        for each, after, bias in zip(part.layers, part.norms, part.biases, strict=True):
            h = layer(each, x)
            both = torch.cat([h, h * activate(normed(after, h), "relu")]) + bias
            x = (x if part.exponential else x0) * both + x
        features.append(x)
    return sum(features, torch.zeros_like(features[0])) / part.heads


def wukong(part: Any, v: Row) -> Tensor:
    for each in part.layers:
        products = [torch.stack([dot(v[i], v[j]) for j in range(len(v))]) for i in range(len(v))]
        fm = torch.cat([torch.stack([dot(row, column) for column in each.project.T]) for row in products])
        fm = normed(each.before, fm)
        for one in each.layers[:-1]:
            fm = activate(layer(one, fm), "relu")
        made = layer(each.layers[-1], fm).view(each.made, -1)
        kept = [sum(w * vector for w, vector in zip(own, v, strict=True)) for own in each.keep.weight]
        back = v
        if each.residual is not None:
            back = [sum(w * vector for w, vector in zip(own, v, strict=True)) for own in each.residual.weight]
        v = [normed(each.after, new + old) for new, old in zip([*made, *kept], back, strict=True)]
    return torch.cat(v)


def through(layers: Any, x: Tensor) -> Tensor:
    """Hidden layers of a network in the order of its modules; members have theirs in `members`."""
    for each in layers:
        kind = type(each).__name__
        x = {"LayerNorm": normed, "ReLU": lambda _, units: activate(units, "relu")}.get(kind, layer)(each, x)
    return x


def two_streams(part: Any, features: Tensor) -> Tensor:
    x, y = through(part.first, features[: part.width]), through(part.second, features[part.width :])
    size = len(x) // part.heads
    found = [layer(part.last, torch.cat([x, y]))[0]]
    for head, matrix in enumerate(part.products):
        own = slice(head * size, (head + 1) * size)
        found += [x[own][i] * matrix[i, j] * y[own][j] for i in range(size) for j in range(size)]
    return add(found)


def member(part: Any, features: Tensor, m: int) -> Tensor:
    """The logit of member m of a DNN of several."""
    scales, *layers, heads = part.layers
    x = features * scales.factors[m]
    for each in layers:
        if type(each).__name__ == "SharedLayer":
            x = x * each.before.factors[m] if hasattr(each.before, "factors") else x
            x = layer(each.inner, x) * each.after.factors[m] + each.shift.bias[m]
        else:
            x = through([each], x)
    return dot(heads.weight[m], x) + heads.bias[m]
