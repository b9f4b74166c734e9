"""A real server in its own process, and a client that keeps its connection."""

from __future__ import annotations

import http.client
import json
import os
import re
import subprocess
import sys
from contextlib import contextmanager


@contextmanager
def running(*arguments, python_path=""):
    """Starts `fieldwise serve`; gives the process and its port. It is killed at the end if it still runs."""
    command = [sys.executable, "-m", "fieldwise", "serve", *map(str, arguments), "--port", "0"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    if python_path:
        environment["PYTHONPATH"] = os.pathsep.join(
            [str(python_path), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
        )
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment)
    try:
        lines = []
        while not (found := re.search(r"http://127\.0\.0\.1:(\d+)", lines[-1] if lines else "")):
            line = process.stdout.readline()
            assert line, "".join(lines)
            lines.append(line)
        yield process, int(found[1])
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
        process.stdout.close()


class Client:
    """One connection."""

    def __init__(self, port, timeout=30):
        self.connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.connection.close()

    def post(self, path, **body):
        self.connection.request("POST", path, json.dumps(body), {"content-type": "application/json"})
        response = self.connection.getresponse()
        return response.status, json.loads(response.read())

    def get(self, path):
        self.connection.request("GET", path)
        response = self.connection.getresponse()
        return response.status, response.read().decode()
