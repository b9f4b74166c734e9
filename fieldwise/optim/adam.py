"""Adam, with three answers to what happens to the rows of a table that are not in the batch."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from fieldwise.config.errors import ConfigError, unknown
from fieldwise.optim.adam_rows import adam_rows
from fieldwise.optim.gpu_rows import GpuRows
from fieldwise.optim.rows import Group, Orders, RowOptimizer, check, order_of, power
from fieldwise.parts.ways import no_loops, no_triton

EPS_MODES = ("textbook", "hat")
SPARSE_MODES = ("paper", "lazy", "dense")


class Adam(RowOptimizer):
    """Adam (section 4.3). With m, v the moments, t the step, m^ = m / (1 - beta1^t), v^ = v / (1 - beta2^t):

    eps_mode     textbook  w -= lr m^ / (sqrt(v^) + eps), the paper and torch.optim.Adam
                 hat       w -= lr sqrt(1 - beta2^t) / (1 - beta1^t) m / (sqrt(v) + eps), as TensorFlow 1 and
                           torch.optim.SparseAdam: an eps larger by 1 / sqrt(1 - beta2^t)
    sparse_mode  paper     the moments of every row decay in every step, only rows in the batch move (section
                           4.3.2); done when a row is touched again, by beta^(steps since it was touched)
                 lazy      moments and weights change only where touched
                 dense     the textbook: all rows move in every step, at a cost proportional to N

    Dense gradients are the same in all three. t counts all steps of the optimiser, for every parameter.
    State: mean and square, and in `paper` last (N,), the last step of each row.
    """

    names = ("mean", "square")
    settings = ("eps_mode", "sparse_mode")
    # `numbers` of each group (G, 4) on the device, for a CUDA graph: its host code runs only once.
    captured: Tensor | None = None
    _gpu_rows: GpuRows | None = None
    _beside: torch.cuda.Stream | None = None

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        eps_mode: str = "textbook",
        sparse_mode: str = "paper",
    ) -> None:
        check(0 < lr < math.inf, "lr must be positive", lr)
        check(len(betas) == 2 and all(0 <= beta < 1 for beta in betas), "betas must be two in [0, 1)", betas)
        check(0 < eps < math.inf, "eps must be positive", eps)
        if eps_mode not in EPS_MODES:
            raise ConfigError(unknown("eps_mode", eps_mode, EPS_MODES))
        if sparse_mode not in SPARSE_MODES:
            raise ConfigError(unknown("sparse_mode", sparse_mode, SPARSE_MODES))
        self.eps_mode, self.sparse_mode = eps_mode, sparse_mode
        super().__init__(params, lr=lr, betas=tuple(betas), eps=eps)

    @property
    def decays(self) -> bool:  # type: ignore[override]
        return self.sparse_mode == "paper"

    @property
    def by_rows(self) -> bool:  # type: ignore[override]
        return self.sparse_mode != "dense"

    def update(self, group: Group, weights: Tensor, grad: Tensor, state: list[Tensor], gap: Tensor | None) -> None:
        assert self.captured is None, "a captured step would repeat the numbers of this one"
        (beta1, beta2), (mean, square) = group["betas"], state
        mean.mul_(beta1 if gap is None else power(beta1, gap, mean)).add_(grad, alpha=1 - beta1)
        square.mul_(beta2 if gap is None else power(beta2, gap, square)).addcmul_(grad, grad, value=1 - beta2)
        rate, eps = self.rate_and_eps(group)
        weights.addcdiv_(mean, square.sqrt().add_(eps), value=-rate)

    def update_compiled(self, group: Group, weight: Tensor, orders: Orders) -> bool:
        assert weight.grad is not None
        values = weight.grad._values()
        state = self._state(group, weight, last=self.decays)
        tables = weight, state["mean"], state["square"]
        if weight.dim() != 2 or not len(values):
            return False
        if no_loops(*tables, values):
            return False
        rate, eps = self.rate_and_eps(group)
        adam_rows(
            *tables,
            state["last"] if self.decays else None,
            order_of(weight.grad, orders),
            values,
            step=group["step"],
            betas=group["betas"],
            rate=rate,
            eps=eps,
        )
        return True

    def update_together(self, group: Group, weights: list[Any]) -> list[Any]:
        on_gpu = [weight for weight in weights if _for_gpu(weight)]
        if on_gpu:
            self._gpu_rows = self._gpu_rows or GpuRows()
            self._gpu_rows.move(self, group, on_gpu)
        return [weight for weight in weights if all(weight is not other for other in on_gpu)]

    @contextmanager
    def beside(self) -> Iterator[None]:
        """Another stream in a captured step: neither the kernels of rows nor torch's fused kernel fill a GPU."""
        if self.captured is None or not self.captured.is_cuda:
            yield
            return
        self._beside = self._beside or torch.cuda.Stream(self.captured.device)
        self._beside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._beside):
            yield

    def join(self) -> None:
        if self.captured is not None and self._beside is not None:
            torch.cuda.current_stream().wait_stream(self._beside)

    def update_all(self, group: Group, weights: list[Tensor], grads: list[Tensor], states: list[list[Tensor]]) -> None:
        # torch's fused kernel makes one pass over memory instead of eight, but checks neither strides nor dtypes.
        kinds = {(tensor.dtype, tensor.device, tensor.is_contiguous()) for tensor in chain(weights, grads, *states)}
        if len(kinds) > 1 or not weights[0].is_contiguous():
            super().update_all(group, weights, grads, states)
            return
        (beta1, beta2), (means, squares) = group["betas"], zip(*states, strict=True)
        step, lr = torch.full((), group["step"], dtype=torch.float32, device=weights[0].device), group["lr"]
        if (numbers := self.captured_of(group)) is not None:
            step, lr = numbers[0], numbers[1]
        options: dict[str, Any] = {"lr": lr, "beta1": beta1, "beta2": beta2, "weight_decay": 0.0}
        options |= {"eps": self._root_and_eps(group, group["step"])[1], "amsgrad": False, "maximize": False}
        torch._fused_adam_(weights, grads, means, squares, [], [step] * len(weights), **options)

    def captured_of(self, group: Group) -> Tensor | None:
        """The group's numbers (4,) on the device, in a captured step."""
        number = next(number for number, one in enumerate(self.param_groups) if one is group)
        return None if self.captured is None else self.captured[number]

    def can_be_captured(self, group: Group) -> bool:
        """Whether every number that changes between steps can come from `captured`, and no shape depends on the ids."""
        plain = not any(no_triton(weight) for weight in group["params"])
        return plain and self.eps_mode == "textbook"

    def rate_and_eps(self, group: Group) -> tuple[float, float]:
        """rate and eps such that w -= rate m / (sqrt(v) + eps) in either eps_mode."""
        return self.numbers(group, group["step"], group["lr"])[2:]

    def numbers(self, group: Group, step: int, lr: float) -> tuple[float, float, float, float]:
        """The numbers of that step (from 1): step, lr, and rate and eps in w -= rate m / (sqrt(v) + eps)."""
        root, eps = self._root_and_eps(group, step)
        return float(step), lr, lr * root / (1 - group["betas"][0] ** step), root * eps

    def _root_and_eps(self, group: Group, step: int) -> tuple[float, float]:
        """sqrt(1 - beta2^t), and the eps to add to sqrt(v^) in either eps_mode."""
        root = math.sqrt(1 - group["betas"][1] ** step)
        return root, group["eps"] / (root if self.eps_mode == "hat" else 1)


def _for_gpu(weight: Tensor) -> bool:
    """Whether the GPU kernels can take this table and its sparse gradient."""
    assert weight.grad is not None
    values = weight.grad._values()
    return weight.dim() == 2 and len(values) > 0 and not no_triton(weight, values)
