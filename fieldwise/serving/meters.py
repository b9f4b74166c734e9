"""Prometheus metrics of a server: requests and their durations, rows, arms, events, reloads."""

from __future__ import annotations

import os

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector

SECONDS = (0.0005, 0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.015, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
PATHS = frozenset(
    (
        *("/", "/predict", "/rank", "/explain", "/event", "/reload", "/model", "/values", "/abtest"),
        *("/health", "/ready", "/metrics", "/docs", "/openapi.json"),
    )
)
# Set by the parent of several workers before this module is imported.
SHARED = "PROMETHEUS_MULTIPROC_DIR"


class Meters:
    """The meters of one application."""

    def __init__(self) -> None:
        registry = self.registry = CollectorRegistry()
        self.requests = Counter("fieldwise_requests", "Requests answered.", ["path", "status"], registry=registry)
        self.seconds = Histogram(
            "fieldwise_request_seconds", "Time to answer.", ["path"], registry=registry, buckets=SECONDS
        )
        self.errors = Counter("fieldwise_errors", "Requests answered with a status of 500 or more.", registry=registry)
        self.rows = Counter("fieldwise_rows", "Rows scored.", ["path", "arm"], registry=registry)
        self.arms = Counter("fieldwise_arm_requests", "Requests by arm.", ["arm"], registry=registry)
        self.events = Counter("fieldwise_events", "Events acknowledged.", ["label", "new"], registry=registry)
        self.reloads = Counter("fieldwise_reloads", "Attempts to reload bundles.", ["result"], registry=registry)
        self.waiting = Gauge(
            "fieldwise_in_progress", "Requests being scored or waiting.", registry=registry, multiprocess_mode="livesum"
        )

    def request(self, path: str, status: int, seconds: float) -> None:
        shown = path if path in PATHS else "other"
        self.requests.labels(shown, str(status)).inc()
        self.seconds.labels(shown).observe(seconds)
        if status >= 500:
            self.errors.inc()

    def scored(self, path: str, rows: dict[str, int]) -> None:
        """Counts the rows of one request, by arm."""
        for arm, count in rows.items():
            self.rows.labels(path, arm).inc(count)
            self.arms.labels(arm).inc()

    def text(self) -> bytes:
        """The metrics of all workers in Prometheus' text format."""
        if SHARED not in os.environ:
            return generate_latest(self.registry)
        combined = CollectorRegistry()
        MultiProcessCollector(combined)  # type: ignore[no-untyped-call]
        return generate_latest(combined)
