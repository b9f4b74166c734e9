"""The processes of a server: one, or a parent that holds the socket and watches its workers.

Workers share the socket and load their own models. SIGHUP, or /reload at any worker, makes all of them load anew;
SIGTERM lets each end what is under way. A worker that dies is replaced.
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
from fieldwise.config.files import whole_file
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
    """All that `fieldwise serve` was told."""

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
    """Serves until it is told to stop."""
    router = settings.router
    with _listen(settings.host, settings.port) as listening:
        what = f"serving {', '.join(router.arms)} at {_shown(listening)}"
        # Until the loop can reload, a SIGHUP must not end the process.
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        if settings.workers == 1:
            worker = Worker(settings, None, 0)
            worker.run(listening, lambda: say(f"{what}  (docs: {_shown(listening)}/docs, stop: Ctrl-C)"))
        else:
            _Parent(settings, listening).run(lambda: say(f"{what} with {settings.workers} workers"))


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


def _shown(listening: socket.socket) -> str:
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


class Worker:
    """One process that answers."""

    def __init__(self, settings: Settings, room: Path | None, number: int) -> None:
        self.settings, self.room, self.number = settings, room, number
        opened = None if settings.log == NO_LOG else partial(EventLog, settings.log)
        with self._alone():
            paths = [Path(source) for source in settings.sources]
            self.service = Service(paths, settings.router, opened, trial=self._tried)
        if self.service.log and number == 0:
            self.service.log.declare(settings.router)
        self.application = Application(self.service, settings.token, settings.limits, Hooks(self._reload_others))
        self._note()

    def run(self, listening: socket.socket, ready: Callable[[], None] = lambda: None) -> None:
        """Answers until SIGTERM or SIGINT, and then ends what is under way."""
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
        # uvicorn takes these signals while it serves, and raises them again once all is done.
        for kind in (signal.SIGTERM, signal.SIGINT):
            signal.signal(kind, lambda *_: sys.exit(0))
        threading.Thread(target=self._house_keeping, daemon=True).start()
        # What lives as long as the process need not be walked over again and again while requests wait.
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
            with self._alone():
                self.application.reload_here()
        except Exception as error:
            print(f"not reloaded, the old bundles stay: {error}", file=sys.stderr, flush=True)
        self._note()

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """One worker after the other: the first may have to export the bundle, and memory is spared."""
        if self.room is None:
            yield
            return
        with (self.room / "loading.lock").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def _tried(self, path: Path) -> str:
        """As `tried`, once for all workers."""
        note = self.room / f"tried-{fingerprint(path)}" if self.room else None
        if note and note.is_file():
            return note.name.removeprefix("tried-")
        version = tried(path)
        if self.room:
            (self.room / f"tried-{version}").touch()
        return version

    def _note(self) -> None:
        """Leaves a note of what this worker serves, for those who wait for a reload."""
        if self.room:
            models = {arm.name: arm.model for arm in self.service.arms}
            with whole_file(self.room / f"worker-{self.number}.json") as file:
                file.write_text(json.dumps(models), encoding="utf-8")

    def _reload_others(self, models: Mapping[str, str]) -> int:
        """Makes the other workers load anew; returns how many serve these models now."""
        if self.room is None:
            return 1
        self._note()
        os.kill(os.getppid(), signal.SIGHUP)
        until = time.monotonic() + RELOAD_SECONDS
        while (alike := self._alike(models)) < self.settings.workers and time.monotonic() < until:
            time.sleep(0.02)
        return alike

    def _alike(self, models: Mapping[str, str]) -> int:
        assert self.room is not None
        notes = (note.read_text(encoding="utf-8") for note in self.room.glob("worker-*.json"))
        return sum(json.loads(text) == models for text in notes)

    def _house_keeping(self) -> None:
        """Closes impressions without a response, in one worker, and ends with the parent."""
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
                    print(f"the log could not be tended: {str(error).splitlines()[0]}", file=sys.stderr, flush=True)


class _Parent:
    """Starts workers, replaces those that die, and passes signals on."""

    def __init__(self, settings: Settings, listening: socket.socket) -> None:
        self.settings, self.listening = settings, listening
        self.room = Path(tempfile.mkdtemp(prefix="fieldwise-"))
        self.workers: dict[int, subprocess.Popen[bytes]] = {}
        self.stopping = False

    def run(self, ready: Any) -> None:
        for kind in (signal.SIGTERM, signal.SIGINT):
            signal.signal(kind, self._stop)
        signal.signal(signal.SIGHUP, self._pass_on)
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
        told = {"settings": asdict(self.settings), "room": str(self.room), "number": number}
        environment = os.environ | {SHARED: str(self.room)}
        command = [sys.executable, "-m", "fieldwise.serving.process", str(self.listening.fileno())]
        worker = subprocess.Popen(
            command, stdin=subprocess.PIPE, env=environment, pass_fds=[self.listening.fileno()], start_new_session=True
        )
        assert worker.stdin
        # On its standard input, where no list of processes shows the token.
        worker.stdin.write(json.dumps(told).encode())
        worker.stdin.close()
        self.workers[number] = worker

    def _wait_ready(self) -> None:
        while not self.stopping and len(list(self.room.glob("worker-*.json"))) < self.settings.workers:
            for worker in self.workers.values():
                if worker.poll() is not None:
                    raise FieldwiseError("a worker could not start; its reason stands above")
            time.sleep(0.02)

    def _watch(self) -> None:
        while not self.stopping:
            time.sleep(RESTART_SECONDS)
            for number, worker in list(self.workers.items()):
                if worker.poll() is not None and not self.stopping:
                    print(
                        f"worker {number} ended with {worker.returncode}; another starts", file=sys.stderr, flush=True
                    )
                    from prometheus_client.multiprocess import mark_process_dead

                    mark_process_dead(worker.pid, str(self.room))  # type: ignore[no-untyped-call]
                    self._start(number)

    def _stop(self, _number: int, _frame: object) -> None:
        self.stopping = True

    def _pass_on(self, number: int, _frame: object) -> None:
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
    """A worker's own process; told what to do by its parent."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    told = json.loads(sys.stdin.read())
    given = told["settings"]
    given["limits"] = Limits(**given["limits"])
    for name in ("sources", "arms", "shares"):
        given[name] = tuple(given[name])
    try:
        worker = Worker(Settings(**given), Path(told["room"]), told["number"])
    except FieldwiseError as error:
        print(f"error: {error}", file=sys.stderr, flush=True)
        sys.exit(2)
    worker.run(socket.socket(fileno=int(sys.argv[1])))


if __name__ == "__main__":
    main()
