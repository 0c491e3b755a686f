"""Prometheus metrics of a serving process; no name of a vector or text is in them."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from deployment.serving.catalog import Catalog
from deployment.serving.realised import RealisedRows

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
_TEXTS = (1, 2, 4, 8, 16, 32, 64, 128, 256)


class ServingMetrics:
    """The metrics, in a registry of their own.

    Args:
        catalog: the served vectors.
        rows: the cache of realised vectors.
        waiting: returns the number of texts that wait.
    """

    def __init__(self, catalog: Catalog, rows: RealisedRows, waiting: Callable[[], int]):
        self._registry = registry = CollectorRegistry()
        self._requests = Counter(
            "fedpeft_serve_requests",
            "Requests by endpoint and status.",
            ["endpoint", "status"],
            registry=registry,
        )
        self._seconds = Histogram(
            "fedpeft_serve_request_seconds",
            "Duration of successful requests for predictions.",
            buckets=_SECONDS,
            registry=registry,
        )
        self._batches = Histogram(
            "fedpeft_serve_batch_texts", "Texts of a batch.", buckets=_TEXTS, registry=registry
        )
        self._busy = Counter(
            "fedpeft_serve_batch_seconds", "Seconds spent on batches.", registry=registry
        )
        gauges: dict[str, tuple[str, Callable[[], float]]] = {
            "vectors": ("Vectors served.", lambda: len(catalog)),
            "waiting_texts": ("Texts that wait for a batch.", waiting),
            "cache_bytes": ("Bytes of realised vectors kept.", lambda: rows.size),
            "cache_hits": ("Realised vectors that were kept.", lambda: rows.hits),
            "cache_misses": ("Vectors that were realised for a batch.", lambda: rows.misses),
        }
        for name, (text, value) in gauges.items():
            Gauge(f"fedpeft_serve_{name}", text, registry=registry).set_function(value)

    def batch(self, texts: int, seconds: float) -> None:
        """Count a batch."""
        self._batches.observe(texts)
        self._busy.inc(seconds)

    def request(self, endpoint: str, status: int, seconds: float) -> None:
        """Count a request; ``endpoint`` is a route, never a path from outside."""
        self._requests.labels(endpoint, str(status)).inc()
        if endpoint == "predict" and status == 200:
            self._seconds.observe(seconds)

    def text(self) -> bytes:
        """Return all metrics in Prometheus's text format."""
        return generate_latest(self._registry)
