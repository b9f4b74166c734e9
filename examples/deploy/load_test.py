"""Load for a running server, with rows of its own vocabulary: latency, throughput, refusals. Standard library only.

    fieldwise serve runs/pin --workers 2 --log none
    python examples/deploy/load_test.py http://127.0.0.1:8400 --clients 8 --seconds 10 --rows 50

It asks /model for the fields and /values for some of their values, then sends /rank (a context and --rows candidates)
or /predict from --clients threads, one kept connection each, and writes nothing into the event log. It ends with 1 if
a request failed; 429 and 503 are refusals under load, counted apart.
"""

from __future__ import annotations

import argparse
import http.client
import json
import random
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from urllib.parse import quote, urlsplit

REFUSED = (429, 503)


class Client:
    """One kept connection."""

    def __init__(self, address: str, token: str) -> None:
        self.host = urlsplit(address).netloc
        self.headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {token}"} if token else {})
        self.connection = http.client.HTTPConnection(self.host, timeout=30)

    def ask(self, method: str, path: str, body: bytes | None = None) -> tuple[int, bytes]:
        try:
            self.connection.request(method, path, body, self.headers)
            answer = self.connection.getresponse()
            return answer.status, answer.read()
        except (OSError, http.client.HTTPException):
            self.connection.close()
            return 0, b""

    def read(self, path: str) -> dict:
        status, text = self.ask("GET", path)
        if status != 200:
            sys.exit(f"{self.host}{path} answered {status or 'nothing'}: {text[:200].decode(errors='replace')}")
        return json.loads(text)


def values_of(client: Client) -> dict[str, list[object]]:
    """Some values of each field, as the server knows them."""
    found: dict[str, list[object]] = {}
    for field in client.read("/model")["arms"][0]["fields"]:
        known = client.read(f"/values?field={quote(field['name'])}&limit=50")["values"]
        found[field["name"]] = known or [float(text) for text in field["examples"] if field["number"]]
    return {name: values for name, values in found.items() if values}


def body_of(values: dict[str, list[object]], path: str, rows: int) -> bytes:
    drawn = [{name: random.choice(known) for name, known in values.items()} for _ in range(rows)]
    if path == "/predict":
        return json.dumps({"rows": drawn, "log": False}).encode()
    own = set(random.sample(sorted(values), max(1, len(values) // 3)))
    candidates = [{name: row[name] for name in own} for row in drawn]
    context = {name: value for name, value in drawn[0].items() if name not in own}
    return json.dumps({"context": context, "candidates": candidates, "log": False}).encode()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("address")
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--rows", type=int, default=50)
    parser.add_argument("--path", choices=["/rank", "/predict"], default="/rank")
    parser.add_argument("--token-file", type=Path)
    asked = parser.parse_args()
    token = asked.token_file.read_text(encoding="utf-8").strip() if asked.token_file else ""
    values = values_of(Client(asked.address, token))
    bodies = [body_of(values, asked.path, asked.rows) for _ in range(20)]
    seconds: list[float] = []
    statuses: Counter[int] = Counter()
    until = time.monotonic() + asked.seconds

    def work(number: int) -> None:
        client = Client(asked.address, token)
        while (began := time.monotonic()) < until:
            status, _ = client.ask("POST", asked.path, bodies[number % len(bodies)])
            statuses[status] += 1
            if status == 200:
                seconds.append(time.monotonic() - began)
            elif status in REFUSED:
                time.sleep(0.1)
            number += 1

    threads = [threading.Thread(target=work, args=(number,)) for number in range(asked.clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    failed = sum(count for status, count in statuses.items() if status not in (200, *REFUSED))
    ordered = sorted(seconds) or [float("nan")]
    places = {
        f"p{share}_ms": 1000 * ordered[min(len(ordered) - 1, len(ordered) * share // 100)] for share in (50, 95, 99)
    }
    found = {
        "requests": statuses[200],
        "refused": sum(statuses[status] for status in REFUSED),
        "failed": failed,
        "requests_per_s": round(statuses[200] / asked.seconds, 1),
        "rows_per_s": round(statuses[200] * asked.rows / asked.seconds),
        **{name: round(value, 2) for name, value in places.items()},
    }
    print(json.dumps(found))
    return int(failed > 0 or not seconds)


if __name__ == "__main__":
    sys.exit(main())
