"""Several workers in one run: the process group that torchrun or `launch` sets up, and messages between workers.

Nothing here depends on models. A process that was not started as a worker is rank 0 of one worker, at no cost.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, TypeVar

import numpy as np
import torch
import torch.distributed as group
from numpy.typing import NDArray
from torch import Tensor
from torch._C._distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous

from fieldwise.bundle.scoring import Scorer, score
from fieldwise.config.errors import ConfigError, FieldwiseError, TrainingError, WorkerLost
from fieldwise.train.worker import count as count
from fieldwise.train.worker import first as first
from fieldwise.train.worker import from_first as from_first
from fieldwise.train.worker import rank as rank
from fieldwise.train.worker import restarted as restarted

T = TypeVar("T")

# A worker that does not answer for this many seconds counts as dead.
STALLED_AFTER = 300.0
# How long gloo may take for each message while it connects the workers.
CONNECT_SECONDS = 20.0


class Link:
    """How long a worker waits for the others."""

    patience = timedelta(seconds=STALLED_AFTER)


@contextmanager
def joined(stalled_after: float = STALLED_AFTER) -> Iterator[None]:
    """Within, this process is one of the workers that the environment describes, or alone where it describes none."""
    if "WORLD_SIZE" not in os.environ or group.is_initialized():
        yield
        return
    local, beside = int(os.environ.get("LOCAL_RANK", 0)), int(os.environ.get("LOCAL_WORLD_SIZE", 1))
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(max(1, (os.cpu_count() or 1) // beside))
    backend = "gloo"
    if torch.cuda.is_available():
        torch.cuda.set_device(local % torch.cuda.device_count())
        backend = "cpu:gloo,cuda:nccl"
    with _others_alive(stalled_after):
        _connect(backend, timedelta(seconds=stalled_after))
    try:
        with _others_alive(stalled_after):
            yield
    finally:
        group.destroy_process_group()


def _connect(backend: str, patience: timedelta) -> None:
    """Starts the process group."""
    store, own, workers = next(iter(rendezvous("env://", timeout=patience)))
    clean = PrefixStore(_agreed_name(store, own, workers, patience), store)
    # All workers are there now. A connection that fails is noticed after five times gloo's timeout, so it is short.
    short = min(patience, timedelta(seconds=CONNECT_SECONDS))
    group.init_process_group(backend, store=clean, rank=own, world_size=workers, timeout=short)
    group.distributed_c10d._set_pg_timeout(patience)
    Link.patience = patience


def _agreed_name(store: Any, own: int, workers: int, patience: timedelta) -> str:
    """A name that the living workers agree on and that no dead worker knew.

    Torch's store outlives a restart and keeps the addresses of dead workers: a process that reads one waits for ever.
    So each worker asks with a new random word, and rank 0 answers every word it finds until all workers have heard it.
    """
    word, end = uuid.uuid4().hex, time.monotonic() + patience.total_seconds()
    others = range(1, workers)
    if own:
        store.set(f"ask/{own}", word)
    while time.monotonic() < end:
        if own:
            answer = store.get(f"answer/{own}").decode() if store.check([f"answer/{own}"]) else ""
            asked, _, name = answer.partition(" ")
            if asked == word:
                store.set(f"{name}/{own}", "heard")
                return name
        elif all(store.check([f"{word}/{other}"]) for other in others):
            return word
        else:
            for other in others:
                if store.check([f"ask/{other}"]):
                    store.set(f"answer/{other}", f"{store.get(f'ask/{other}').decode()} {word}")
        time.sleep(0.02)
    raise WorkerLost(f"not all of {workers} workers came within {patience.total_seconds():g} s (--stalled-after)")


@contextmanager
def _others_alive(stalled_after: float) -> Iterator[None]:
    """Turns torch's errors about a worker that does not answer into one line."""
    try:
        yield
    except group.DistError as error:
        raise _lost(error, stalled_after) from error
    except RuntimeError as error:
        # gloo's own errors have no class.
        if "gloo" not in str(error):
            raise
        raise _lost(error, stalled_after) from error


def _lost(error: Exception, stalled_after: float) -> WorkerLost:
    found = str(error).strip().splitlines()[0]
    return WorkerLost(f"another worker died, or did not answer for {stalled_after:g} s (--stalled-after): {found}")


def launch(
    work: Callable[..., T], arguments: tuple[Any, ...], workers: int, restarts: int, preload: tuple[str, ...] = ()
) -> T:
    """Calls work(*arguments) in `workers` processes of torch's elastic launcher; returns what rank 0 returns.

    A user's mistake in a worker is raised here, once. When a worker dies, all are restarted, up to `restarts` times.
    Workers are forked from a process that has imported only `preload`, so that a restart takes no time.
    """
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    if workers < 1 or restarts < 0:
        raise ConfigError(f"--workers must be 1 or more and --restarts 0 or more, found {workers} and {restarts}")
    settings = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=workers,
        run_id=str(os.getpid()),
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        local_addr="localhost",
        max_restarts=restarts,
        start_method="forkserver",
    )
    multiprocessing.get_context("forkserver").set_forkserver_preload([work.__module__, *preload])
    try:
        with _signals_kept():
            found: dict[int, T | FieldwiseError] = elastic_launch(settings, _mistakes_returned)(work, arguments)
    except ChildFailedError as error:
        raise TrainingError(_dead(error, restarts)) from error
    except SignalException:
        raise KeyboardInterrupt from None
    for result in found.values():
        if isinstance(result, FieldwiseError):
            raise result
    result = found[0]
    assert not isinstance(result, FieldwiseError)
    return result


@contextmanager
def _signals_kept() -> Iterator[None]:
    """Restores the signal handlers, which the launcher replaces and does not restore."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    kinds = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
    before = {kind: signal.getsignal(kind) for kind in kinds}
    try:
        yield
    finally:
        for kind, action in before.items():
            signal.signal(kind, action)


def _dead(error: Any, restarts: int) -> str:
    number, failure = error.get_first_failure()
    cause = failure.message
    line = str(cause["message"]).splitlines()[0] if isinstance(cause, dict) else str(cause).strip().splitlines()[-1]
    why = f"worker {number} ended with {failure.exitcode}: {line}"
    return f"a worker died more often than --restarts {restarts}; go on with --resume ({why})"


def _mistakes_returned(work: Callable[..., T], arguments: tuple[Any, ...]) -> T | FieldwiseError:
    """Returns a user's mistake instead of raising it: a restart would not help, and so the user sees it at once."""
    try:
        return work(*arguments)
    except FieldwiseError as error:
        return error


def beside() -> Any:
    """A second group of the same workers, for a thread whose messages must not mix with those of training."""
    return group.new_group(backend="gloo", timeout=Link.patience)


def wait() -> None:
    """Waits until every worker has come here."""
    if count() > 1:
        group.barrier()


def anyone(says: bool) -> bool:
    """Whether any worker says so: the same answer on all workers."""
    return bool(summed(torch.tensor(int(says)))) if count() > 1 else says


def summed(values: Tensor) -> Tensor:
    """The sum of the workers' tensors, in place; the same bits on every worker."""
    group.all_reduce(values)
    return values


def gathered(values: Tensor, sizes: list[int]) -> Tensor:
    """The workers' tensors (n_r, ...) concatenated in the order of ranks; `sizes` are all n_r."""
    most = max(sizes)
    padded = values.new_zeros(most, *values.shape[1:])
    padded[: len(values)] = values
    found = [torch.empty_like(padded) for _ in sizes]
    group.all_gather(found, padded)
    return torch.cat([each[:size] for each, size in zip(found, sizes, strict=True)])


def swapped(values: Tensor) -> Tensor:
    """The workers' tensors (W,), of which this one gets the numbers in its place: (W,), one of each worker."""
    return exchanged(values, [1] * count(), [1] * count())


def exchanged(values: Tensor, given: list[int], taken: list[int]) -> Tensor:
    """Gives `values` (n, ...) to all workers, `given[w]` of them to worker w, and takes `taken[w]` of it: (m, ...)."""
    found = values.new_empty(sum(taken), *values.shape[1:])
    group.all_to_all_single(found, values.contiguous(), taken, given)
    return found


def counts(values: Tensor) -> list[list[int]]:
    """The workers' integers (n,): a list of n for each worker."""
    found = [torch.empty_like(values) for _ in range(count())]
    group.all_gather(found, values)
    return [each.tolist() for each in found]


def score_together(
    model: Scorer, ids: NDArray[np.int32] | Tensor, precision: str = "float32"
) -> NDArray[np.floating[Any]]:
    """Logits of all rows on every worker, each of which scores its share: metrics are exactly those of all rows.

    Scoring may take all workers, so all score equally many rows: a worker that has one fewer scores the last row again.
    """
    workers = count()
    if workers == 1 or not len(ids):
        return score(model, ids, precision=precision)
    assert isinstance(ids, np.ndarray)
    each = -(-len(ids) // workers)
    own = ids[rank() :: workers]
    if len(own) < each:
        own = np.concatenate([own, ids[-1:]])
    scored = torch.from_numpy(np.ascontiguousarray(score(model, own, precision=precision)))
    together: NDArray[np.floating[Any]] = gathered(scored, [each] * workers).numpy()
    return together.reshape(workers, each).T.reshape(-1)[: len(ids)]
