"""The server under load, driven from this process over loopback: latency, throughput, memory, hot swap, kill -9.

    python benchmarks/serve.py [--work DIR] [--pieces latency,load] [--requests 2000] [--soak 100000]

PIN over the 39 fields of a simulated Criteo log, with vectors of 20 and drawn weights; 30 fields are the context's and
9 the candidates'. A request is bytes made beforehand, sent over one kept connection without Nagle's delay, and timed
from the first byte sent to the last one received, so that the client's own reading counts as HTTP's. "bare" is the same
engine called in this process. Both take turns: a core that has slept, and caches that another process has used since,
cost either of them the same. One row has turns of its own, and is asked once more on each side right after the hundred
rows of the other side. "echo" is an answer that needs no work, under the same HTTP server. --log none is what HTTP
alone adds; with a log each request is an impression in SQLite.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import socket
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from served import Client, Server, request, served

from fieldwise.bundle import bundle
from fieldwise.bundle.calibration import Calibration
from fieldwise.config.settings import load_config
from fieldwise.data.dataset import Dataset
from fieldwise.data.encode.prepare import prepare
from fieldwise.data.read import formats
from fieldwise.data.world import World, write_log
from fieldwise.serving.engine import Engine

ROWS = 20_000
CONTEXT, CANDIDATES = 30, 100
PIECES = ("latency", "load", "memory", "fuzz", "reload", "kill")


def made(folder: Path, seed: int) -> Path:
    """PIN over simulated Criteo rows, with drawn weights: what it says does not matter here."""
    out = folder / f"pin{seed}"
    if not out.exists():
        if not (folder / "data").exists():
            write_log(World("criteo"), ROWS, folder / "log.csv")
            prepare({"train": lambda: formats.read([folder / "log.csv"])}, folder / "data", "click")
        torch.manual_seed(seed)
        config = load_config(overrides=["model.name=pin", "model.dim=20"])
        model = bundle.build_model(config, Dataset.open(folder / "data").layout)
        sources = {name: folder / "data" / name for name in ("schema.toml", "encoder")}
        bundle.write(out, config, sources, model, Calibration(), {})
    return out


def raw_rows(folder: Path, count: int) -> list[dict[str, Any]]:
    chunk = next(iter(formats.read([folder / "log.csv"]))).slice(0, count).drop_columns(["click"])
    return [{name: value for name, value in row.items() if value is not None} for row in chunk.to_pylist()]


def latency(server: Server, engine: Engine, rows: list[dict[str, Any]], count: int) -> dict[str, Any]:
    """Milliseconds of one row, of a ranking, and of the whole rows of that ranking: over HTTP and bare, in turns."""
    names = list(engine.columns)
    context = {name: rows[0].get(name) for name in names[:CONTEXT]}
    candidates = [{name: row.get(name) for name in names[CONTEXT:]} for row in rows[:CANDIDATES]]
    whole = [{**context, **candidate} for candidate in candidates]
    client = Client(server.port)
    one, ranking, all_rows = (
        request("/predict", {"rows": rows[:1]}),
        request("/rank", {"context": context, "candidates": candidates, "top": 10}),
        request("/predict", {"rows": whole}),
    )
    with echoing() as port:
        echo = Client(port)
        found = in_turns(
            {
                "1 row, HTTP": lambda: client.ask(one),
                "1 row, bare": lambda: engine.predict(rows[:1]),
                "1 row, echo": lambda: echo.ask(one),
            },
            count,
        )
    return found | in_turns(
        {
            f"rank {CANDIDATES}, HTTP": lambda: client.ask(ranking),
            f"rank {CANDIDATES}, bare": lambda: engine.rank(context, candidates, 10),
            f"{CANDIDATES} whole rows, HTTP": lambda: client.ask(all_rows),
            "1 row behind them, bare": lambda: engine.predict(rows[:1]),
            f"{CANDIDATES} whole rows, bare": lambda: engine.predict(whole),
            "1 row behind them, HTTP": lambda: client.ask(one),
        },
        count // 4,
    )


def in_turns(tasks: dict[str, Callable[[], Any]], count: int) -> dict[str, dict[str, float]]:
    """Percentiles of each task in milliseconds; the first twenty of each are not counted."""
    times: dict[str, list[float]] = {name: [] for name in tasks}
    for turn in range(count + 20):
        for name, task in tasks.items():
            began = time.perf_counter()
            task()
            if turn >= 20:
                times[name].append(1e3 * (time.perf_counter() - began))
    return {
        name: dict(zip(("p5", "p50", "p99"), np.percentile(found, [5, 50, 99]), strict=True))
        for name, found in times.items()
    }


@contextmanager
def echoing() -> Iterator[int]:
    """The port of a server that answers without work."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = int(free.getsockname()[1])
    process = subprocess.Popen([sys.executable, str(Path(__file__).with_name("echo.py")), str(port)])
    try:
        while True:
            with suppress(OSError):
                Client(port).socket.close()
                break
            time.sleep(0.05)
        yield port
    finally:
        process.terminate()
        process.wait()


def load(server: Server, asked: bytes, connections: int, count: int) -> dict[str, float]:
    """Requests per second over so many connections, each asking again once it is answered."""
    statuses: list[int] = []

    def work() -> None:
        client = Client(server.port)
        for _ in range(count // connections):
            statuses.append(client.ask(asked)[0])

    threads = [threading.Thread(target=work) for _ in range(connections)]
    began = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return {
        "requests": len(statuses),
        "per_second": len(statuses) / (time.perf_counter() - began),
        "refused": sum(status in (429, 503) for status in statuses),
        "errors": sum(status not in (200, 429, 503) for status in statuses),
    }


def reload_under_load(folder: Path, runs: list[Path], asked: bytes) -> dict[str, int]:
    """Ten swaps between two bundles while eight connections ask."""
    link = folder / "current"
    link.unlink(missing_ok=True)
    link.symlink_to(runs[0])
    statuses: list[int] = []
    stop = threading.Event()
    with served(link, "--log", "none") as server:

        def work() -> None:
            client = Client(server.port)
            while not stop.is_set():
                try:
                    statuses.append(client.ask(asked)[0])
                except OSError:
                    statuses.append(0)
                    return

        threads = [threading.Thread(target=work) for _ in range(8)]
        for thread in threads:
            thread.start()
        admin, swapped = Client(server.port), 0
        for turn in range(10):
            (folder / "new").symlink_to(runs[(turn + 1) % 2])
            (folder / "new").replace(link)
            status, body = admin.ask(request("/reload", {}))
            swapped += status == 200 and any(json.loads(body)["changed"].values())
        stop.set()
        for thread in threads:
            thread.join()
    return {"swaps": swapped, "requests": len(statuses), "lost": sum(status != 200 for status in statuses)}


def kill_during_events(folder: Path, run: Path, rows: list[dict[str, Any]], count: int) -> dict[str, Any]:
    """kill -9 in the middle of events, three times; then how many of those acknowledged the log does not have."""
    log = folder / "killed.sqlite"
    for file in folder.glob("killed.sqlite*"):
        file.unlink()
    acknowledged: set[str] = set()
    began, seconds = 0, 0.0
    for kills in range(3):
        server = Server(run, "--log", log)
        until = count * (kills + 1) // 3
        started = time.perf_counter()

        def work(number: int, port: int = server.port, turn: int = kills) -> None:
            with suppress(OSError):
                client = Client(port)
                status, body = 0, b""
                while status != 200:  # on a busy machine many rows of many threads at once may be refused at first
                    status, body = client.ask(request("/predict", {"rows": rows[:1] * 500}))
                shown = json.loads(body)["request_id"]
                for place in range(100_000):
                    name = f"{turn}-{number}-{place}"
                    event = {"request_id": shown, "candidate": place % 500, "event_id": name}
                    if client.ask(request("/event", event))[0] == 200:
                        acknowledged.add(name)

        threads = [threading.Thread(target=work, args=[number]) for number in range(32)]
        for thread in threads:
            thread.start()
        while len(acknowledged) < until:
            time.sleep(0.001)
        seconds += time.perf_counter() - started
        server.stop(signal.SIGKILL)
        for thread in threads:
            thread.join()
        began = len(acknowledged)
    with sqlite3.connect(log) as connection:
        found = {row[0] for row in connection.execute("select event_id from events")}
    return {"kills": 3, "acknowledged": began, "lost": len(acknowledged - found), "per_second": began / seconds}


def fuzzed(server: Server, examples: int, folder: Path) -> dict[str, int]:
    """Schemathesis against the server's own description; how many operations had an answer of 500 or more."""
    command = [
        *(sys.executable, "-m", "schemathesis.cli", "run", f"http://127.0.0.1:{server.port}/openapi.json"),
        *(
            "--checks",
            "not_a_server_error",
            "--max-examples",
            str(examples),
            "--phases",
            "fuzzing,coverage",
            "--no-color",
        ),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder)
    if not re.search(r"generated|Test cases", done.stdout):
        sys.exit(f"schemathesis did not run: {done.stdout[-2000:]} {done.stderr[-2000:]}")
    failures = re.findall(r"(\d+) (?:unique )?failure", done.stdout)
    return {"examples": examples, "exit": done.returncode, "failures": int(failures[-1]) if failures else 0}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, help="Keep models and logs here.")
    parser.add_argument("--requests", type=int, default=2000, help="Of each kind.")
    parser.add_argument("--soak", type=int, default=100_000, help="Requests between two looks at the memory.")
    parser.add_argument("--events", type=int, default=10_000)
    parser.add_argument("--fuzz", type=int, default=200, help="Examples of each operation.")
    parser.add_argument("--pieces", default=",".join(PIECES), help="Some of these, with commas between.")
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    asked.pieces = set(asked.pieces.split(","))
    if not asked.pieces <= set(PIECES):
        parser.error(f"--pieces takes {', '.join(PIECES)}; found {', '.join(sorted(asked.pieces))}")
    with tempfile.TemporaryDirectory() as temporary:
        folder = (asked.work or Path(temporary)).absolute()
        folder.mkdir(parents=True, exist_ok=True)
        found = measured(asked, folder)
    print_all(found)
    if asked.json:
        asked.json.write_text(json.dumps(found, indent=1), encoding="utf-8")


def measured(asked: argparse.Namespace, folder: Path) -> dict[str, Any]:
    runs = [made(folder, seed) for seed in (0, 1)]
    engine, rows = Engine.load(runs[0]), raw_rows(folder, CANDIDATES)
    Engine.load(runs[1])
    one = request("/predict", {"rows": rows[:1]})
    found: dict[str, Any] = {"cores": os.cpu_count(), "latency_ms": {}, "load": {}}
    for log in ("none", str(folder / "events.sqlite")):
        kind = "no log" if log == "none" else "SQLite log"
        if not asked.pieces & {"latency", "load"}:
            break
        with served(runs[0], "--log", log) as server:
            if "latency" in asked.pieces:
                found["latency_ms"][kind] = latency(server, engine, rows, asked.requests)
            for connections in (1, 8, 64) if "load" in asked.pieces else ():
                count = max(asked.requests, 64)
                found["load"][f"{connections} connections, {kind}"] = load(server, one, connections, count)
    if "memory" in asked.pieces:
        found["memory"] = memory(runs[0], one, asked.soak)
    if "fuzz" in asked.pieces:
        with served(runs[0], "--log", "none") as server:
            found["schemathesis"] = fuzzed(server, asked.fuzz, folder)
    if "reload" in asked.pieces:
        found["reload"] = reload_under_load(folder, runs, one)
    if "kill" in asked.pieces:
        found["kill"] = kill_during_events(folder, runs[0], rows, asked.events)
    return found


def memory(run: Path, asked: bytes, count: int) -> dict[str, float]:
    """Resident memory in MB before so many requests over eight connections, and after each quarter of them."""
    with served(run, "--log", "none") as server:
        load(server, asked, 8, 2000)
        found = {"MB before": server.memory}
        parts = [load(server, asked, 8, count // 4) | {"MB": server.memory} for _ in range(4)]
    found |= {f"MB after {number + 1} of 4": part["MB"] for number, part in enumerate(parts)}
    return found | {name: sum(part[name] for part in parts) for name in ("requests", "refused", "errors")}


def print_all(found: dict[str, Any]) -> None:
    for kind, rows in found["latency_ms"].items():
        for name, row in rows.items():
            print(f"{kind:12} {name:24} " + "".join(f"  {key} {value:8.3f} ms" for key, value in row.items()))
        one, ranked = (rows[f"{n}, HTTP"]["p50"] - rows[f"{n}, bare"]["p50"] for n in ("1 row", f"rank {CANDIDATES}"))
        whole, ranking = (rows[f"{name}, HTTP"]["p50"] for name in (f"{CANDIDATES} whole rows", f"rank {CANDIDATES}"))
        print(f"{kind:12} HTTP adds {one:.3f} ms to one row and {ranked:.3f} ms to a ranking")
        print(f"{kind:12} a ranking is {whole / ranking:.2f} times as fast as whole rows")
    for name, row in found["load"].items():
        print(f"{name:28} {row['per_second']:8.0f} requests/s   {row['refused']} refused, {row['errors']} errors")
    for name in ("memory", "reload", "kill", "schemathesis"):
        for key, value in found.get(name, {}).items():
            print(f"{name:12} {key:16} {value:,.1f}")


if __name__ == "__main__":
    main()
