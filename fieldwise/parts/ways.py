"""Which way a part is computed: by its formula, or by a faster one that equals it. All that decides is here.

A formula is a module's `forward`, or a function, in plain torch; `@chosen(way, ...)` in front of it lists its faster
ways, best first. The first that has nothing against the inputs computes them; if all have, the formula does.

What is against a way is told in a few words, so that `taken` can say which way a model takes, and why not another.
The conditions that ways share are below, each once; a part adds those of its own in its folder.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, wraps
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from fieldwise.loops.running import ROWS_PER_THREAD

# FIELDWISE_TRITON=0 switches the kernels off. With TRITON_INTERPRET=1 they run on the CPU, step by step, for tests.
HAS_TRITON = os.environ.get("FIELDWISE_TRITON") != "0" and importlib.util.find_spec("triton") is not None
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
FORMULA, ALONE = "formula", "formulas alone are asked for"
Formula = TypeVar("Formula", bound=Callable[..., Any])


@dataclass(frozen=True)
class Way:
    """A faster way: `against(*inputs)` says why it is not for them, or nothing; `compute(*inputs)` is the result."""

    name: str
    against: Callable[..., str]
    compute: Callable[..., Any]


class Choice(NamedTuple):
    """A call of a formula: what it was called on, the way taken, and what was against each way before it."""

    formula: Callable[..., Any]
    inputs: tuple[Any, ...]
    way: str
    against: dict[str, str]


# Who wants to hear of every choice, and whether formulas alone are allowed: for reports and tests.
_listener: Callable[[Choice], None] | None = None
_formulas_alone = False


def chosen(*ways: Way) -> Callable[[Formula], Formula]:
    """The formula below, by the first of these ways that is for its inputs."""

    def decorated(formula: Formula) -> Formula:
        @wraps(formula)
        def fastest(*inputs: Any) -> Any:
            if not torch.compiler.is_compiling() and _listener is not None:
                _listener(_choice(formula, ways, inputs))
            if not _formulas_alone:
                for way in ways:
                    if not way.against(*inputs):
                        return way.compute(*inputs)
            return formula(*inputs)

        return fastest  # type: ignore[return-value]

    return decorated


def _choice(formula: Callable[..., Any], ways: tuple[Way, ...], inputs: tuple[Any, ...]) -> Choice:
    against: dict[str, str] = {}
    for way in ways:
        found = ALONE if _formulas_alone else way.against(*inputs)
        if not found:
            return Choice(formula, inputs, way.name, against)
        against[way.name] = found
    return Choice(formula, inputs, FORMULA, against)


@contextmanager
def formulas_alone() -> Iterator[None]:
    """Within it every part is computed by its formula, and optimisers take no loops: what faster ways must equal."""
    global _formulas_alone
    before, _formulas_alone = _formulas_alone, True
    try:
        yield
    finally:
        _formulas_alone = before


@contextmanager
def told(listener: Callable[[Choice], None]) -> Iterator[None]:
    """Within it the listener hears of every choice."""
    global _listener
    before, _listener = _listener, listener
    try:
        yield
    finally:
        _listener = before


class Taken(NamedTuple):
    """The way that a part of a model takes: `part` is its path and `kind` its class; `against` as in Choice."""

    part: str
    kind: str
    way: str
    against: dict[str, str]


def taken(model: nn.Module, run: Callable[[], object]) -> list[Taken]:
    """The ways that parts of the model take in `run`, in the order of their calls, each once."""
    paths = {id(module): path for path, module in model.named_modules()}
    found: dict[tuple[str, str], Taken] = {}

    def listener(choice: Choice) -> None:
        owner = next((each for each in choice.inputs if id(each) in paths), model)
        kind, path = choice.formula.__qualname__.removesuffix(".forward"), paths[id(owner)]
        found.setdefault((path, kind), Taken(path, kind, choice.way, choice.against))

    with told(listener):
        run()
    plain = [(path, module) for path, module in model.named_modules() if type(module) is nn.Linear]
    slower = [Taken(path, "Linear", FORMULA, {"oneDNN": "a plain nn.Linear; affine() is faster"}) for path, _ in plain]
    return [*found.values(), *slower]


# What is against a way, or nothing.


def no_loops(*tensors: Tensor) -> str:
    """Against compiled loops over these tensors."""
    if _formulas_alone:
        return ALONE
    kinds = {tensor.dtype for tensor in tensors}
    if any(tensor.device.type != "cpu" for tensor in tensors):
        return "not on a CPU"
    if len(kinds) > 1 or not kinds <= {torch.float32, torch.float64}:
        return "not all float32 or all float64"
    if not all(tensor.is_contiguous() for tensor in tensors):
        return "not contiguous"
    return "" if compiles() else "numba is missing or switched off"


def no_loops_of_rows(v: Tensor, along: int = 0, narrow: bool = False) -> str:
    """Against compiled loops over a batch, whose rows are `along` that dimension, and which they make contiguous;
    `narrow`: they know bfloat16 too."""
    # Asked first: a look at the number of rows would bind an exported model to it.
    if torch.compiler.is_compiling():
        return "the model is traced"
    if v.shape[along] < ROWS_PER_THREAD:
        return f"fewer than {ROWS_PER_THREAD} rows"
    if v.device.type != "cpu":
        return "not on a CPU"
    if v.dtype not in (torch.float32, torch.float64) and not (narrow and v.dtype == torch.bfloat16):
        return f"{_name(v.dtype)} numbers"
    return "" if compiles() else "numba is missing or switched off"


@cache
def compiles() -> bool:
    """Whether numba is there and not switched off (FIELDWISE_NUMBA=0)."""
    return os.environ.get("FIELDWISE_NUMBA") != "0" and importlib.util.find_spec("numba") is not None


def no_triton(*tensors: Tensor) -> str:
    """Against Triton's kernels for these tensors: they are for float32 on a GPU, without gaps."""
    if not all(tensor.is_cuda or INTERPRETED for tensor in tensors):
        return "not on a GPU"
    if not HAS_TRITON:
        return "Triton is missing or switched off"
    if not all(tensor.dtype == torch.float32 for tensor in tensors):
        return "not float32"
    return "" if all(tensor.is_contiguous() for tensor in tensors) else "not contiguous"


def no_pair_kernels(v: Tensor, tile: int) -> str:
    """Against the kernels over pairs, which are for products of bfloat16, by autocast, or for scores.

    With gradients in float32 they are right too, but torch's own are faster. `tile`: the numbers of a pair's matrices
    and of the rows before them, which must lie in a processor's own memory, twice.
    """
    refused = no_triton(v)
    if refused:
        return refused
    if v.numel() >= 2**31:
        return "vectors beyond addresses of 32 bits"
    if INTERPRETED:
        return ""
    rounded = torch.is_autocast_enabled(v.device.type)
    if not rounded and torch.is_grad_enabled():
        return "gradients in float32"
    return (
        "" if 2 * tile * (2 if rounded else 4) <= room() else "a pair's matrices do not fit into a processor's memory"
    )


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def room() -> int:
    """Bytes of memory that a program on this GPU may have for itself."""
    properties: Any = torch.cuda.get_device_properties()
    return int(properties.shared_memory_per_block_optin)


def no_score_kernels(part: nn.Module, values: Tensor) -> str:
    """Against the kernels for scores alone: they are for a GPU, not in training, where no gradient is asked for."""
    if not (values.is_cuda or INTERPRETED):
        return "not on a GPU"
    if not HAS_TRITON:
        return "Triton is missing or switched off"
    if torch.compiler.is_compiling():
        return "the model is traced"
    if part.training or torch.is_grad_enabled():
        return "for scores alone"
    if values.dtype not in (torch.float32, torch.bfloat16):
        return f"{_name(values.dtype)} numbers"
    return "" if values.is_contiguous() else "not contiguous"


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
