"""The rows of a table that a batch touches, and the optimiser that moves only these."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from itertools import chain
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import embedding_bag
from torch.optim import Optimizer

from fieldwise.config.errors import ConfigError
from fieldwise.optim.rounding import narrow, rounded, wide

Group = dict[str, Any]
Order = tuple[Tensor, Tensor, Tensor]
# Ids by their address, and their order.
Orders = dict[tuple[int, ...], tuple[Tensor, Order]]

# On a CPU a step walks over the touched rows in blocks of this many numbers, so that a row that was just
# read is still in the cache when it is written back.
BLOCK = 2**18


def check(right: bool, rule: str, found: object) -> None:
    """Refuses a setting that is out of range.

    >>> check(0 > 0, "lr must be positive", 0)
    Traceback (most recent call last):
    fieldwise.config.errors.ConfigError: lr must be positive, found 0
    """
    if not right:
        raise ConfigError(f"{rule}, found {found!r}")


def touched(grad: Tensor, orders: Orders | None = None) -> tuple[Tensor, Tensor]:
    """A sparse gradient (N, D) -> its distinct row ids (U,), ascending, and their summed gradients (U, D).

    Rows that occur more than once are added in the order of the batch, so that the sum is the same on every
    run. `orders` remembers how ids were sorted: tables that are looked up by the same ids sort them once. It
    must not outlive the gradients.

    >>> table = torch.zeros(6, 1, requires_grad=True)
    >>> vectors = torch.nn.functional.embedding(torch.tensor([4, 1, 4]), table, sparse=True)
    >>> vectors.backward(torch.tensor([[1.0], [2.0], [3.0]]))
    >>> touched(table.grad)
    (tensor([1, 4]), tensor([[2.],
            [4.]]))
    """
    if grad.is_coalesced():
        return grad._indices()[0], grad._values()
    unique, order, starts = order_of(grad, {} if orders is None else orders)
    return unique, embedding_bag(order, grad._values(), starts, mode="sum")


def order_of(grad: Tensor, orders: Orders) -> Order:
    """Distinct ids (U,) of a sparse gradient, the positions of its ids in ascending order, and where each starts."""
    ids = grad._indices()[0]
    key = (ids.data_ptr(), len(ids), ids.stride(0))
    if key not in orders:
        orders[key] = ids, _known(ids, orders) or _order(ids, len(grad))
    return orders[key][1]


def _known(ids: Tensor, orders: Orders) -> Order | None:
    """The order of equal ids, if known: a linear part and vectors look up the same ones. Not on a GPU."""
    if ids.device.type != "cpu":
        return None
    return next((order for found, order in orders.values() if torch.equal(found, ids)), None)


def _order(ids: Tensor, size: int) -> Order:
    """Distinct ids, the positions of all ids in ascending order, and where each distinct id starts there."""
    # Half as many bytes make the sort, most of the work, nearly twice as fast.
    keys, order = torch.sort(ids.int() if size < 2**31 else ids, stable=True)
    unique, counts = torch.unique_consecutive(keys, return_counts=True)
    return unique.long(), order, counts.cumsum(0) - counts


def power(base: float, gap: Tensor, like: Tensor) -> Tensor:
    """base ** gap, computed in float64: float32 would lose three digits over a gap of 1000 steps."""
    return torch.pow(base, gap).to(like.dtype)


def plain(method: Callable[..., Any]) -> Callable[..., Any]:
    """A method of torch's optimiser without the wrapper that keeps it out of compiled graphs: the wrapper loads torch's
    compiler, a second of processor time or two, and these optimisers are in no graph."""
    return getattr(method, "__wrapped__", method)


class RowOptimizer(Optimizer, ABC):
    """An optimiser whose step costs in proportion to the rows it touches, whatever the size of the table.

    A subclass writes its formula once, in `update`; it is applied to whole dense parameters, and to the
    touched rows of tables (N, D) with sparse gradients. Parameters without a gradient stay as they are; the
    clock group["step"] counts every call of `step`.

    State tensors have the shape of their parameter, or (N,) for `last`, and are zero for a row that was never
    touched. So a row that is new in a grown table has zeros (`adopt`), and a shard takes its rows of them.
    """

    names: tuple[str, ...] = ()  # the state tensors
    decays = False  # whether rows out of the batch decay too; `last` then holds the last step of each row
    by_rows = True  # False: a sparse gradient is made dense first
    settings: tuple[str, ...] = ()  # attributes that are not in the param_groups
    bound: tuple[str, ...] = ()  # keys of the param_groups that the state depends on

    def __init__(self, params: Iterable[Any], **defaults: Any) -> None:
        plain(Optimizer.__init__)(self, params, {**defaults, "step": 0})

    add_param_group, zero_grad = plain(Optimizer.add_param_group), plain(Optimizer.zero_grad)
    state_dict = plain(Optimizer.state_dict)

    @abstractmethod
    def update(self, group: Group, weights: Tensor, grad: Tensor, state: list[Tensor], gap: Tensor | None) -> None:
        """Moves weights and state, of grad's shape, in place. gap (U, 1): steps since the last one; None means 1."""

    def update_compiled(self, group: Group, weight: Tensor, orders: Orders) -> bool:
        """Does `update` on the touched rows by a compiled loop; returns False where there is none for this table."""
        return False

    def update_together(self, group: Group, weights: list[Any]) -> list[Any]:
        """Does `update` on the touched rows of several tables at once where possible; returns the other tables."""
        return weights

    def update_all(self, group: Group, weights: list[Tensor], grads: list[Tensor], states: list[list[Tensor]]) -> None:
        """`update` for many dense parameters."""
        for weight, grad, state in zip(weights, grads, states, strict=True):
            self.update(group, weight, grad, state, None)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Makes one step by the gradients that are there."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        orders: Orders = {}
        self.count()
        for group in self.param_groups:
            given = [weight for weight in group["params"] if weight.grad is not None]
            by_rows = [weight for weight in given if weight.grad.is_sparse and self.by_rows]
            with self.beside():
                self._update_dense(group, [weight for weight in given if not (weight.grad.is_sparse and self.by_rows)])
            for weight in self.update_together(group, by_rows):
                if not self.update_compiled(group, weight, orders):
                    self._update_rows(group, weight, *touched(weight.grad, orders))
            self.join()
        return loss

    def count(self) -> None:
        """Counts a step; called alone where the updates are made elsewhere."""
        for group in self.param_groups:
            group["step"] += 1

    def state_of(self, weight: Tensor) -> list[Tensor]:
        """The state tensors of a dense parameter, for code that updates it elsewhere."""
        state = self.whole_state(weight)
        return [state[name] for name in self.names]

    def beside(self) -> AbstractContextManager[None]:
        """A context for updates of dense parameters: what follows until `join` may run at the same time."""
        return nullcontext()

    def join(self) -> None:
        """Waits for the updates `beside`."""

    def _update_rows(self, group: Group, weight: Tensor, ids: Tensor, rows: Tensor) -> None:
        state = self._state(group, weight, last=self.decays)
        tensors = [weight] + [state[name] for name in self.names]
        for block, grad in _blocks(ids, rows):
            gathered = [tensor.index_select(0, block) for tensor in tensors]
            gathered[0] = gathered[0].to(wide(weight))
            gap = None
            if self.decays:
                gap = (group["step"] - state["last"].index_select(0, block)).double().unsqueeze_(1)
                state["last"].index_fill_(0, block, group["step"])
            self.update(group, gathered[0], grad, gathered[1:], gap)
            if narrow(weight):
                gathered[0] = rounded(gathered[0])
            for tensor, part in zip(tensors, gathered, strict=True):
                tensor.index_copy_(0, block, part)

    def _update_dense(self, group: Group, weights: list[Tensor]) -> None:
        plain: list[tuple[Tensor, Tensor, list[Tensor]]] = []
        for weight in weights:
            assert weight.grad is not None
            grad = weight.grad.to_dense() if weight.grad.is_sparse else weight.grad
            if narrow(weight):
                self._update_rows(group, weight, torch.arange(len(weight), device=weight.device), grad)
                continue
            state = self._state(group, weight, last=False)
            tensors = [state[name] for name in self.names]
            if "last" in state:  # a table whose gradient is dense this time: all its rows are touched
                gap = (group["step"] - state["last"]).double().unsqueeze_(1)
                state["last"].fill_(group["step"])
                self.update(group, weight, grad, tensors, gap)
            else:
                plain.append((weight, grad, tensors))
        if plain:
            self.update_all(group, *(list(part) for part in zip(*plain, strict=True)))

    def _state(self, group: Group, weight: Tensor, last: bool) -> dict[str, Tensor]:
        state: dict[str, Tensor] = self.state[weight]
        known = bool(state)
        for name in self.names:
            if name not in state:
                state[name] = torch.zeros_like(weight, dtype=wide(weight))
        if last and "last" not in state:
            when = group["step"] - 1 if known else 0
            state["last"] = torch.full((len(weight),), when, dtype=torch.int32, device=weight.device)
        return state

    def whole_state(self, weight: Tensor, by_rows: bool = False) -> dict[str, Tensor]:
        """All state tensors of a parameter, to be saved or filled, whether a step has touched it or not.

        With `by_rows` it is a table that moves by rows, so it has the last step of each row where these decay.
        """
        group = next(group for group in self.param_groups if any(weight is one for one in group["params"]))
        state = self._state(group, weight, last=False)
        if by_rows and self.decays and "last" not in state:
            # Between two steps: all rows are as the newest step left them.
            state["last"] = torch.full((len(weight),), group["step"], dtype=torch.int32, device=weight.device)
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """As torch's, which would make `last` a float."""
        plain(Optimizer.load_state_dict)(self, state_dict)
        keys = chain.from_iterable(group["params"] for group in state_dict["param_groups"])
        weights = chain.from_iterable(group["params"] for group in self.param_groups)
        for key, weight in zip(keys, weights, strict=True):
            last = state_dict["state"].get(key, {}).get("last")
            if last is not None:
                self.state[weight]["last"] = last.to(weight.device, torch.int32)

    def understands(self, other: RowOptimizer) -> bool:
        """Whether the state of `other` means the same here."""
        ours, theirs = (
            [type(one), one.names, one.decays, one.by_rows, len(one.param_groups)]
            + [group[key] for group in one.param_groups for key in self.bound if key in group]
            for one in (self, other)
        )
        return ours == theirs

    @torch.no_grad()
    def adopt(self, other: RowOptimizer, rows: Mapping[Tensor, Tensor]) -> None:
        """Takes the clock and the state of `other`, which has our parameters in the same order, before tables grew.

        rows[table] (N,) is the old row of each row, -1 for a new one, whose state is zero.
        """
        for group, before in zip(self.param_groups, other.param_groups, strict=True):
            group["step"] = before["step"]
            for weight, old in zip(group["params"], before["params"], strict=True):
                self.state[weight] = {
                    name: _placed(value, rows.get(weight)).to(weight.device)
                    for name, value in other.state.get(old, {}).items()
                }

    def __getstate__(self) -> dict[str, Any]:
        """As torch's, with the settings, which a copy would lose."""
        return {**super().__getstate__(), **{name: getattr(self, name) for name in self.settings}}


def _placed(state: Tensor, rows: Tensor | None) -> Tensor:
    """These rows of a state tensor, zero where the row is -1; without `rows` a copy of all."""
    if rows is None:
        return state.clone()
    placed = state.index_select(0, rows.clamp(min=0))
    placed[rows < 0] = 0
    return placed


def _blocks(ids: Tensor, rows: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    if len(ids) == 0:
        return
    size = max(1, BLOCK // rows[0].numel()) if ids.device.type == "cpu" else len(ids)
    yield from zip(torch.split(ids, size), torch.split(rows, size), strict=True)
