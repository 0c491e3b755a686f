"""A serving endpoint at a real port, and a client for it."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from finished import finished_run, method
from models import SMALL

from deployment.serving.app import Serving, serving_app
from deployment.serving.catalog import Catalog, open_catalog
from deployment.serving.hosting import server_of
from fedpeft.page.http import listener
from fedpeft.page.ports import free_port
from fedpeft.runs.predicting import Prediction

OPERATOR = "operator-token-of-tests"
SLASH = method("slash", SMALL["slash"])
TEXT = "the film last night was truly wonderful"
#: Name -> settings of a finished run.
RUNS = {
    "sentiment": SLASH,
    "inference": ["task.name=synthetic/inference", *SLASH],
    "similarity": ["task.name=synthetic/similarity", *SLASH],
    "entities": ["task.name=synthetic/entities", *SLASH],
    "lora": method("lora", SMALL["lora"]),
}


@dataclass
class Endpoint:
    """A running endpoint."""

    url: str
    catalog: Catalog
    http: httpx.Client = field(repr=False)

    def predict(self, *inputs: dict[str, Any], **options: Any) -> httpx.Response:
        """Send a request for predictions."""
        return self.http.post("/predict", json={"inputs": [*inputs]}, **options)

    def add(self, name: str, content: bytes, token: str = OPERATOR) -> httpx.Response:
        """Add a vector."""
        return self.http.put(f"/vectors/{name}", content=content, headers=bearer(token))

    def remove(self, name: str, token: str = OPERATOR) -> httpx.Response:
        """Remove a vector."""
        return self.http.delete(f"/vectors/{name}", headers=bearer(token))


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


@lru_cache
def run_folder(name: str) -> Path:
    """Return the folder of one of ``RUNS``."""
    return finished_run(*RUNS[name])


def catalog_of(*names: str) -> Catalog:
    """Return a catalog with some of ``RUNS``."""
    catalog = open_catalog(run_folder(names[0]), most=50)
    for name in names:
        catalog.add(name, run_folder(name))
    return catalog


@contextmanager
def endpoint(catalog: Catalog, settings: Serving | None = None) -> Iterator[Endpoint]:
    """Serve a catalog from a thread while the context is open."""
    app = serving_app(catalog, settings or Serving(operator_token=OPERATOR))
    server, port = server_of(app, None, None), free_port()
    with listener("127.0.0.1", port) as sock:
        thread = threading.Thread(target=server.run, args=([sock],))
        thread.start()
        url = f"http://127.0.0.1:{port}"
        try:
            with httpx.Client(base_url=url, timeout=240, trust_env=False) as http:
                yield Endpoint(url, catalog, http)
        finally:
            server.should_exit = True
            thread.join()


def until(condition: Any, seconds: float = 240.0) -> None:
    """Wait until a condition holds."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "the condition did not become true"
        time.sleep(0.01)


def numbers_of(prediction: Prediction) -> np.ndarray:
    """Return the score, the probabilities, or those of each word, NaN for a missing one."""
    if isinstance(prediction.value, float):
        return np.array([prediction.value])
    chances = prediction.probabilities
    values = [*chances.values()] if isinstance(chances, dict) else chances or []
    return np.array([np.nan if value is None else value for value in values])


def as_prediction(row: dict[str, Any]) -> Prediction:
    """Return the prediction in a row of a response."""
    return Prediction(json.loads(json.dumps(row["prediction"])), row.get("probabilities"))


def assert_equal_predictions(actual: Prediction, expected: Prediction) -> None:
    """Compare predictions: equal labels, and numbers within 1e-5."""
    if not isinstance(expected.value, float):
        assert actual.value == expected.value
    np.testing.assert_allclose(numbers_of(actual), numbers_of(expected), rtol=0, atol=1e-5)
