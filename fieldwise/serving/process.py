"""The processes of a server: one, or a parent that holds the socket and watches its workers.

Workers share the socket, and each loads its own models. SIGHUP, or a POST to /reload at any worker, makes all of them
reload; on SIGTERM each finishes its open requests and exits. The parent replaces a worker that dies.
"""

from __future__ import annotations

import asyncio
import fcntl
import gc
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from fieldwise.abtest.event_log import EventLog
from fieldwise.abtest.router import Router
from fieldwise.config.errors import ConfigError, FieldwiseError
from fieldwise.config.files import write_whole
from fieldwise.serving.application import Application, Hooks, Limits
from fieldwise.serving.history_follower import Closer
from fieldwise.serving.meters import SHARED
from fieldwise.serving.service import Service, fingerprint
from fieldwise.serving.trial import tried

# How long a reload waits for the other workers, and how soon a worker that died is replaced.
RELOAD_SECONDS = 60.0
RESTART_SECONDS = 0.5
NO_LOG = "none"


@dataclass(frozen=True)
class Settings:
    """The options of `fieldwise serve`."""

    sources: tuple[str, ...]
    arms: tuple[str, ...]
    shares: tuple[float, ...]
    split_field: str = ""
    salt: str = ""
    host: str = "127.0.0.1"
    port: int = 8400
    token: str = field(default="", repr=False)
    workers: int = 1
    log: str = "events.sqlite"
    negatives_after: float = 3600.0
    limits: Limits = field(default_factory=Limits)

    def __post_init__(self) -> None:
        if self.workers < 1 or not 0 <= self.port < 65536:
            raise ConfigError(f"workers are 1 or more and ports below 65536, found {self.workers} and {self.port}")
        for name, value in asdict(self.limits).items():
            if not value > 0:
                raise ConfigError(f"--{name.replace('_', '-')} must be above 0, found {value}")
        if self.split_field == "" and len(self.arms) > 1:
            raise ConfigError("several arms need --split-field, the field whose values keep to their arm, such as user")

    @property
    def router(self) -> Router:
        return Router(self.arms, self.shares, self.split_field, self.salt)


def serve(settings: Settings, say: Any) -> None:
    """Serves until SIGTERM or SIGINT."""
    router = settings.router
    with _listen(settings.host, settings.port) as listening:
        banner = f"serving {', '.join(router.arms)} at {_url(listening)}"
        # SIGHUP would end the process before the event loop can handle it.
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        if settings.workers == 1:
            worker = Worker(settings, None, 0)
            worker.run(listening, lambda: say(f"{banner}  (docs: {_url(listening)}/docs, stop: Ctrl-C)"))
        else:
            _Parent(settings, listening).run(lambda: say(f"{banner} with {settings.workers} workers"))


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
    except OSError as error:
        listening.close()
        raise FieldwiseError(f"cannot listen on {host} port {port}: {error.strerror}; choose another --port") from None
    listening.listen(2048)
    listening.set_inheritable(True)
    return listening


def _url(listening: socket.socket) -> str:
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


class Worker:
    """One process that answers requests; with several workers they share the folder `room`, each under its number."""

    def __init__(self, settings: Settings, room: Path | None, number: int) -> None:
        self.settings, self.room, self.number = settings, room, number
        open_log = None if settings.log == NO_LOG else partial(EventLog, settings.log)
        with self._loading_lock():
            paths = [Path(source) for source in settings.sources]
            self.service = Service(paths, settings.router, open_log, trial=self._try_once)
        if self.service.log and number == 0:
            self.service.log.declare(settings.router)
        self.application = Application(self.service, settings.token, settings.limits, Hooks(self._reload_others))
        self._publish_models()

    def run(self, listening: socket.socket, ready: Callable[[], None] = lambda: None) -> None:
        """Answers until SIGTERM or SIGINT, then finishes the open requests."""
        import uvicorn

        from fieldwise.serving.door import door

        config = uvicorn.Config(
            self.application.api,
            log_level="warning",
            access_log=False,
            loop="uvloop",
            http=door(self.settings.limits),
            ws="none",
            server_header=False,
            timeout_graceful_shutdown=int(self.settings.limits.timeout) + 5,
            backlog=2048,
        )
        server = uvicorn.Server(config)
        # uvicorn handles these signals while it serves, and raises them again when it has finished.
        for kind in (signal.SIGTERM, signal.SIGINT):
            signal.signal(kind, lambda *_: sys.exit(0))
        threading.Thread(target=self._housekeeping, daemon=True).start()
        # The garbage collector skips what lives as long as the process.
        gc.collect()
        gc.freeze()
        with asyncio.Runner(loop_factory=config.get_loop_factory()) as runner:
            runner.run(self._serve(server, listening, ready))

    async def _serve(self, server: Any, listening: socket.socket, ready: Callable[[], None]) -> None:
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGHUP, lambda: loop.run_in_executor(None, self._reload_on_signal))
        serving = asyncio.create_task(server.serve(sockets=[listening]))
        while not server.started and not serving.done():
            await asyncio.sleep(0.01)
        if server.started:
            ready()
        await serving

    def _reload_on_signal(self) -> None:
        try:
            with self._loading_lock():
                self.application.reload_here()
        except Exception as error:
            print(f"not reloaded, the old bundles stay: {error}", file=sys.stderr, flush=True)
        self._publish_models()

    @contextmanager
    def _loading_lock(self) -> Iterator[None]:
        """Workers load one after the other: the first may have to export the bundle, and loading needs memory."""
        if self.room is None:
            yield
            return
        with (self.room / "loading.lock").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def _try_once(self, path: Path) -> str:
        """`tried`, whose result all workers share."""
        note = self.room / f"tried-{fingerprint(path)}" if self.room else None
        if note and note.is_file():
            return note.name.removeprefix("tried-")
        version = tried(path)
        if self.room:
            (self.room / f"tried-{version}").touch()
        return version

    def _publish_models(self) -> None:
        """Writes down which models this worker serves; a worker that waits for a reload reads it."""
        if self.room:
            models = {arm.name: arm.model for arm in self.service.arms}
            write_whole(self.room / f"worker-{self.number}.json", json.dumps(models))

    def _reload_others(self, models: Mapping[str, str]) -> int:
        """Makes the other workers reload; returns how many workers serve these models now."""
        if self.room is None:
            return 1
        self._publish_models()
        os.kill(os.getppid(), signal.SIGHUP)
        until = time.monotonic() + RELOAD_SECONDS
        while (serving := self._workers_serving(models)) < self.settings.workers and time.monotonic() < until:
            time.sleep(0.02)
        return serving

    def _workers_serving(self, models: Mapping[str, str]) -> int:
        assert self.room is not None
        notes = (note.read_text(encoding="utf-8") for note in self.room.glob("worker-*.json"))
        return sum(json.loads(text) == models for text in notes)

    def _housekeeping(self) -> None:
        """Worker 0 closes impressions that got no response; every worker exits when its parent is gone."""
        log, parent = self.service.log, os.getppid()
        closer = Closer(log, self.settings.negatives_after) if log and self.settings.negatives_after else None
        while True:
            time.sleep(1.0)
            if self.room and os.getppid() != parent:
                os.kill(os.getpid(), signal.SIGTERM)
                return
            if closer and self.number == 0 and self.service.has_history:
                try:
                    closer.close()
                except Exception as error:
                    reason = str(error).splitlines()[0]
                    print(
                        f"impressions without a response could not be closed: {reason}",
                        file=sys.stderr,
                        flush=True,
                    )


class _Parent:
    """Starts workers, replaces those that die, and forwards signals."""

    def __init__(self, settings: Settings, listening: socket.socket) -> None:
        self.settings, self.listening = settings, listening
        self.room = Path(tempfile.mkdtemp(prefix="fieldwise-"))
        self.workers: dict[int, subprocess.Popen[bytes]] = {}
        self.stopping = False

    def run(self, ready: Any) -> None:
        for kind in (signal.SIGTERM, signal.SIGINT):
            signal.signal(kind, self._stop)
        signal.signal(signal.SIGHUP, self._forward)
        try:
            for number in range(self.settings.workers):
                self._start(number)
            self._wait_ready()
            ready()
            self._watch()
        finally:
            self._end()
            shutil.rmtree(self.room, ignore_errors=True)

    def _start(self, number: int) -> None:
        (self.room / f"worker-{number}.json").unlink(missing_ok=True)
        task = {"settings": asdict(self.settings), "room": str(self.room), "number": number}
        environment = os.environ | {SHARED: str(self.room)}
        command = [sys.executable, "-m", "fieldwise.serving.process", str(self.listening.fileno())]
        worker = subprocess.Popen(
            command, stdin=subprocess.PIPE, env=environment, pass_fds=[self.listening.fileno()], start_new_session=True
        )
        assert worker.stdin
        # The token goes through standard input: a list of processes would show it in the arguments.
        worker.stdin.write(json.dumps(task).encode())
        worker.stdin.close()
        self.workers[number] = worker

    def _wait_ready(self) -> None:
        while not self.stopping and len(list(self.room.glob("worker-*.json"))) < self.settings.workers:
            for worker in self.workers.values():
                if worker.poll() is not None:
                    raise FieldwiseError("a worker could not start; the reason is printed above")
            time.sleep(0.02)

    def _watch(self) -> None:
        while not self.stopping:
            time.sleep(RESTART_SECONDS)
            for number, worker in list(self.workers.items()):
                if worker.poll() is not None and not self.stopping:
                    print(
                        f"worker {number} ended with {worker.returncode}; a new one starts", file=sys.stderr, flush=True
                    )
                    from prometheus_client.multiprocess import mark_process_dead

                    mark_process_dead(worker.pid, str(self.room))  # type: ignore[no-untyped-call]
                    self._start(number)

    def _stop(self, _number: int, _frame: object) -> None:
        self.stopping = True

    def _forward(self, number: int, _frame: object) -> None:
        for worker in self.workers.values():
            if worker.poll() is None:
                worker.send_signal(number)

    def _end(self) -> None:
        self.listening.close()
        for worker in self.workers.values():
            if worker.poll() is None:
                worker.terminate()
        for worker in self.workers.values():
            worker.wait()


def main() -> None:
    """The process of a worker, which reads its task from its parent."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    task = json.loads(sys.stdin.read())
    given = task["settings"]
    given["limits"] = Limits(**given["limits"])
    for name in ("sources", "arms", "shares"):
        given[name] = tuple(given[name])
    try:
        worker = Worker(Settings(**given), Path(task["room"]), task["number"])
    except FieldwiseError as error:
        print(f"error: {error}", file=sys.stderr, flush=True)
        sys.exit(2)
    worker.run(socket.socket(fileno=int(sys.argv[1])))


if __name__ == "__main__":
    main()
