"""Shards on Ray: tasks of one core each, on the nodes of a cluster or on the cores of this machine.

A task that lost its worker or its node is started again elsewhere. All nodes see the same files under the same paths.
"""

from __future__ import annotations

import os
import pickle
import socket
import sys
import uuid
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import fieldwise
from fieldwise.config.errors import ConfigError, FieldwiseError, WorkerLost, first_line
from fieldwise.data.encode.engine import Item, Result

# How often a shard is tried again after its worker or its node was lost.
RETRIES = 3
# Seconds that a node has to answer before any work begins.
PATIENCE = 120
# And the address of a cluster, before anything is asked of it.
CONNECT = 10


@contextmanager
def on_ray(address: str = "", workers: int = 0) -> Iterator[RayEngine]:
    """An engine on the cluster at an address, or at RAY_ADDRESS; without either, on this number of cores here."""
    ray = _imported()
    address = address or os.environ.get("RAY_ADDRESS", "")
    begun_here = not ray.is_initialized()
    with _quiet():
        try:
            if begun_here:
                _connect(ray, address, workers)
            yield RayEngine(ray)
        finally:
            if begun_here:
                ray.shutdown()


def _imported() -> Any:
    # Before Ray is imported: it reads these then, and would send statistics and print a warning.
    for name, value in (("RAY_USAGE_STATS_ENABLED", "0"), ("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")):
        os.environ.setdefault(name, value)
    try:
        import ray
    except ImportError:
        raise ConfigError("--engine ray needs Ray, which is not installed: pip install fieldwise[cluster]") from None
    return ray


def _connect(ray: Any, address: str, workers: int) -> None:
    if address:
        _check_address(address)
    where = {"address": address} if address else {"address": "local", "num_cpus": workers, "include_dashboard": False}
    try:
        ray.init(**where, log_to_driver=False, logging_level="ERROR")
    except (ConnectionError, RuntimeError, ValueError, OSError) as error:
        place = f"at {address}" if address else "on this machine"
        raise FieldwiseError(f"Ray does not start {place}: {first_line(error)}") from None


def _check_address(address: str) -> None:
    """Refuses an address that does not answer: Ray itself would ask for ever."""
    if address == "auto":
        return
    host, _, port = address.rpartition(":")
    if not (host and port.isdigit()) or "/" in host:
        raise FieldwiseError(f"--ray-address takes HOST:PORT of a cluster that this machine is in, found '{address}'")
    try:
        socket.create_connection((host, int(port)), timeout=CONNECT).close()
    except OSError as error:
        way_out = "start one with `ray start --head`, or leave --ray-address and RAY_ADDRESS out"
        raise FieldwiseError(f"no Ray cluster at {address}: {error.strerror or error}; {way_out}") from None


@contextmanager
def _quiet() -> Iterator[None]:
    """Keeps Ray from saying on standard output, in hundreds of lines, which worker was lost: its shard comes again."""
    worker: Any = sys.modules.get("ray._private.worker")
    before = getattr(worker, "print_to_stdstream", None)
    if before is None:
        yield
        return
    worker.print_to_stdstream = lambda *data, **more: None
    try:
        yield
    finally:
        worker.print_to_stdstream = before


class RayEngine:
    """Works on shards in tasks."""

    def __init__(self, ray: Any) -> None:
        self.ray = ray
        self.task = ray.remote(num_cpus=1, max_retries=RETRIES)(_work)

    def map(self, function: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
        """The results in order. Two items a core are under way: no core waits, and memory stays bounded."""
        from ray import cloudpickle

        # Sent once, and unpacked once in each process: encoders are large.
        box, name = [self.ray.put(cloudpickle.dumps((os.getcwd(), function)))], uuid.uuid4().hex
        window = 2 + 2 * int(self.ray.cluster_resources().get("CPU", 1))
        waiting: deque[Any] = deque()
        try:
            for item in items:
                waiting.append(self.task.remote(name, box, cloudpickle.dumps(item)))
                if len(waiting) >= window:
                    yield self._result(waiting.popleft())
            while waiting:
                yield self._result(waiting.popleft())
        finally:
            for left in waiting:
                self.ray.cancel(left, force=True)

    def _result(self, task: Any) -> Any:
        try:
            good, found = self.ray.get(task)
        except self.ray.exceptions.RayError as error:
            raise WorkerLost(
                f"{RETRIES + 1} workers in a row were lost with the same shard: {first_line(error)}; "
                "the same command goes on where it was"
            ) from None
        if not good:
            raise pickle.loads(found)
        return found

    def check(self, paths: Sequence[Path]) -> None:
        """Refuses a cluster with a node that has another fieldwise, or does not see the files."""
        strategy = self.ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy
        asked = [str(path.absolute()) for path in paths]
        nodes = [node for node in self.ray.nodes() if node["Alive"] and node["Resources"].get("CPU")]
        if not nodes:
            raise FieldwiseError("the Ray cluster has no node with a core to work on")
        probe = self.ray.remote(num_cpus=0, max_retries=0)(_probe())
        tasks = [
            probe.options(scheduling_strategy=strategy(node["NodeID"], soft=False)).remote(asked) for node in nodes
        ]
        for node, task in zip(nodes, tasks, strict=True):
            where = f"the node {node['NodeManagerAddress']}"
            try:
                version, unseen = self.ray.get(task, timeout=PATIENCE)
            except self.ray.exceptions.TaskUnschedulableError:
                continue  # it has left the cluster meanwhile
            except self.ray.exceptions.RayError as error:
                raise FieldwiseError(f"{where} of the Ray cluster does not answer: {first_line(error)}") from None
            if version != fieldwise.__version__:
                found = f"found {version or 'none'}"
                raise FieldwiseError(f"all nodes need fieldwise {fieldwise.__version__}, {found} ({where})")
            if unseen:
                raise FieldwiseError(f"all nodes must see the same files, {unseen} is not there ({where}); share it")


def _work(name: str, box: list[Any], packed: bytes) -> tuple[bool, Any]:
    """What the function makes of an item; or its error, packed, which Ray would print."""
    try:
        return True, _known(name, box)(pickle.loads(packed))
    except Exception as error:
        return False, _packed(error)


_FUNCTIONS: dict[str, Callable[[Any], Any]] = {}


def _known(name: str, box: list[Any]) -> Callable[[Any], Any]:
    """The function of the map under way, which a process keeps until the next one."""
    if name not in _FUNCTIONS:
        import ray

        folder, function = pickle.loads(ray.get(box[0]))
        _FUNCTIONS.clear()
        _FUNCTIONS[name] = function
        # What the user names, and what errors name, may begin in the folder that the command was given in.
        with suppress(OSError):
            os.chdir(folder)
    return _FUNCTIONS[name]


def _packed(error: Exception) -> bytes:
    """An error as it can be sent."""
    from ray import cloudpickle

    try:
        packed: bytes = cloudpickle.dumps(error)
        pickle.loads(packed)
    except Exception:
        packed = cloudpickle.dumps(RuntimeError(first_line(error)))
    return packed


def _probe() -> Callable[[list[str]], tuple[str, str]]:
    """A function that is sent as it is, because a node may have no fieldwise: its version there, and a missing file."""

    def probe(paths: list[str]) -> tuple[str, str]:
        import os

        try:
            from fieldwise import __version__ as version
        except ImportError:
            version = ""
        return version, next((path for path in paths if not os.path.exists(path)), "")

    return probe
