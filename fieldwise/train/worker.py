"""Which of several workers this process is. Alone it is rank 0 of one worker, and loads no torch to know it."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any, TypeVar

from fieldwise.config.errors import FieldwiseError

T = TypeVar("T")


def _group() -> Any:
    """The module of the process group, if this process is in one."""
    group = sys.modules.get("torch.distributed")
    return group if group is not None and group.is_initialized() else None


def rank() -> int:
    """The number of this worker, from 0."""
    group = _group()
    return int(group.get_rank()) if group else 0


def count() -> int:
    """How many workers there are."""
    group = _group()
    return int(group.get_world_size()) if group else 1


def first() -> bool:
    """Whether this is rank 0, which writes files and prints."""
    return rank() == 0


def restarted() -> bool:
    """Whether the launcher restarted the workers after one was lost: the run resumes from its checkpoint."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", 0)) > 0


def from_first(action: Callable[[], T]) -> T:
    """Runs the action on rank 0; every worker returns its result, or raises the user's mistake that it raised."""
    group = _group()
    if group is None or count() == 1:
        return action()
    shared: list[Any] = [None]
    if first():
        try:
            shared[0] = action()
        except FieldwiseError as error:
            shared[0] = error
    group.broadcast_object_list(shared, src=0)
    if isinstance(shared[0], FieldwiseError):
        raise shared[0]
    result: T = shared[0]
    return result
