"""A server in a process of its own, and a light client of it: what benchmarks/serve.py measures with."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


class Server:
    """`fieldwise serve` in a process of its own."""

    def __init__(self, *arguments: object) -> None:
        command = [sys.executable, "-m", "fieldwise", "serve", *map(str, arguments), "--port", "0"]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout
        found = re.search(r":(\d+)", self.process.stdout.readline())
        if not found:
            sys.exit("the server did not start")
        self.port = int(found[1])

    @property
    def memory(self) -> float:
        """Resident memory in MB, of its workers too."""
        pids = [
            self.process.pid,
            *map(int, _read(f"/proc/{self.process.pid}/task/{self.process.pid}/children").split()),
        ]
        return sum(int(re.findall(r"VmRSS:\s+(\d+)", _read(f"/proc/{pid}/status"))[0]) for pid in pids) / 1e3

    def stop(self, kind: int = signal.SIGTERM) -> None:
        if self.process.poll() is None:
            self.process.send_signal(kind)
        self.process.wait()


def _read(path: str) -> str:
    return Path(path).read_text(encoding="utf-8")


@contextmanager
def served(*arguments: object) -> Iterator[Server]:
    server = Server(*arguments)
    try:
        yield server
    finally:
        server.stop()


class Client:
    """One connection that is kept; requests are made once and sent as they are."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def ask(self, request: bytes) -> tuple[int, bytes]:
        """Status and body of the answer."""
        self.socket.sendall(request)
        held = b""
        while (end := held.find(b"\r\n\r\n")) < 0:
            held += self._more()
        length = int(re.findall(rb"(?i)content-length: (\d+)", held[:end])[0])
        while len(held) < end + 4 + length:
            held += self._more()
        return int(held[9:12]), held[end + 4 :]

    def _more(self) -> bytes:
        piece = self.socket.recv(1 << 16)
        if not piece:
            raise ConnectionResetError
        return piece


def request(path: str, body: dict[str, Any]) -> bytes:
    text = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: {len(text)}"
    return head.encode() + b"\r\n\r\n" + text
