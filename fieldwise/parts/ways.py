"""Chooses how a part is computed: by its formula, or by a faster way that gives the same result.

A formula is a module's `forward`, or a function, in plain torch. `@chosen(way, ...)` in front of it lists the faster
ways, best first. The first way that does not refuse the inputs computes them; if all refuse, the formula does.

A way refuses with a reason in a few words, so that `taken` can say which way a model takes, and why not another.
Conditions that several ways share are below; a part keeps its own conditions in its folder.
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

# FIELDWISE_TRITON=0 switches the kernels off. With TRITON_INTERPRET=1 tests run them on the CPU, step by step.
HAS_TRITON = os.environ.get("FIELDWISE_TRITON") != "0" and importlib.util.find_spec("triton") is not None
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
FORMULA, ALONE = "formula", "only formulas are allowed here"
Formula = TypeVar("Formula", bound=Callable[..., Any])


@dataclass(frozen=True)
class Way:
    """A faster way. `against(*inputs)` gives the reason why it cannot take them, or ""; `compute(*inputs)` computes."""

    name: str
    against: Callable[..., str]
    compute: Callable[..., Any]


class Choice(NamedTuple):
    """A call of a formula: its inputs, the way that was taken, and why each way before it was not."""

    formula: Callable[..., Any]
    inputs: tuple[Any, ...]
    way: str
    against: dict[str, str]


# For reports and tests: a function that is called with every choice, and whether only formulas are allowed.
_listener: Callable[[Choice], None] | None = None
_formulas_alone = False


def chosen(*ways: Way) -> Callable[[Formula], Formula]:
    """Computes the decorated formula by the first of these ways that takes its inputs."""

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
    """Inside it formulas compute every part, and optimisers use no loops: the results that faster ways must match."""
    global _formulas_alone
    before, _formulas_alone = _formulas_alone, True
    try:
        yield
    finally:
        _formulas_alone = before


@contextmanager
def listening(listener: Callable[[Choice], None]) -> Iterator[None]:
    """Inside it `listener` is called with every choice."""
    global _listener
    before, _listener = _listener, listener
    try:
        yield
    finally:
        _listener = before


class Taken(NamedTuple):
    """The way that a part of a model takes. `part` is its path and `kind` its class; `against` is as in Choice."""

    part: str
    kind: str
    way: str
    against: dict[str, str]


def taken(model: nn.Module, run: Callable[[], object]) -> list[Taken]:
    """The ways that the model's parts take while `run` runs, in the order of their calls, each part once."""
    paths = {id(module): path for path, module in model.named_modules()}
    found: dict[tuple[str, str], Taken] = {}

    def listener(choice: Choice) -> None:
        owner = next((each for each in choice.inputs if id(each) in paths), model)
        kind, path = choice.formula.__qualname__.removesuffix(".forward"), paths[id(owner)]
        found.setdefault((path, kind), Taken(path, kind, choice.way, choice.against))

    with listening(listener):
        run()
    plain = [(path, module) for path, module in model.named_modules() if type(module) is nn.Linear]
    slower = [Taken(path, "Linear", FORMULA, {"oneDNN": "a plain nn.Linear; affine() is faster"}) for path, _ in plain]
    return [*found.values(), *slower]


# Each function below returns the reason why a way cannot take the inputs, or "".


def no_loops(*tensors: Tensor) -> str:
    """Whether compiled loops can run on these tensors."""
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


def no_loops_of_rows(v: Tensor, narrow: bool = False) -> str:
    """Whether compiled loops can run over this batch, which they make contiguous; `narrow`: they take bfloat16 too."""
    # First, because reading the number of rows would fix it in an exported model.
    if torch.compiler.is_compiling():
        return "the model is traced"
    if len(v) < ROWS_PER_THREAD:
        return f"fewer than {ROWS_PER_THREAD} rows"
    if v.device.type != "cpu":
        return "not on a CPU"
    if v.dtype not in (torch.float32, torch.float64) and not (narrow and v.dtype == torch.bfloat16):
        return f"{_name(v.dtype)} numbers"
    return "" if compiles() else "numba is missing or switched off"


@cache
def compiles() -> bool:
    """Whether numba is installed and not switched off by FIELDWISE_NUMBA=0."""
    return os.environ.get("FIELDWISE_NUMBA") != "0" and importlib.util.find_spec("numba") is not None


def no_triton(*tensors: Tensor) -> str:
    """Whether Triton's kernels can run on these tensors: they take contiguous float32 on a GPU."""
    if not all(tensor.is_cuda or INTERPRETED for tensor in tensors):
        return "not on a GPU"
    if not HAS_TRITON:
        return "Triton is missing or switched off"
    if not all(tensor.dtype == torch.float32 for tensor in tensors):
        return "not float32"
    return "" if all(tensor.is_contiguous() for tensor in tensors) else "not contiguous"


def no_pair_kernels(v: Tensor, tile: int) -> str:
    """Whether the kernels over pairs apply: under autocast to bfloat16, or without gradients.

    They also compute gradients in float32 correctly, but torch's own kernels are faster there. `tile` is how many
    numbers a pair's matrices and a tile of rows have; they must fit into a multiprocessor's shared memory twice.
    """
    refused = no_triton(v)
    if refused:
        return refused
    if v.numel() >= 2**31:
        return "vectors beyond 32-bit addresses"
    if INTERPRETED:
        return ""
    rounded = torch.is_autocast_enabled(v.device.type)
    if not rounded and torch.is_grad_enabled():
        return "gradients in float32"
    fits = 2 * tile * (2 if rounded else 4) <= shared_memory_bytes()
    return "" if fits else "a pair's matrices do not fit into shared memory"


def shared_memory_bytes() -> int:
    """Bytes of shared memory that a program on this GPU may have."""
    properties: Any = torch.cuda.get_device_properties()
    return int(properties.shared_memory_per_block_optin)


def no_score_kernels(part: nn.Module, values: Tensor) -> str:
    """Whether the scoring kernels apply: on a GPU, outside training, without gradients."""
    if not (values.is_cuda or INTERPRETED):
        return "not on a GPU"
    if not HAS_TRITON:
        return "Triton is missing or switched off"
    if torch.compiler.is_compiling():
        return "the model is traced"
    if part.training or torch.is_grad_enabled():
        return "only for scoring"
    if values.dtype not in (torch.float32, torch.bfloat16):
        return f"{_name(values.dtype)} numbers"
    return "" if values.is_contiguous() else "not contiguous"


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
