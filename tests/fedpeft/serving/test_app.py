"""The endpoint over real HTTP: predictions, vectors that come and go, and every refusal."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import httpx
import numpy as np
import pytest
from endpoints import (
    OPERATOR,
    RUNS,
    TEXT,
    Endpoint,
    as_prediction,
    assert_equal_predictions,
    bearer,
    catalog_of,
    endpoint,
    run_folder,
    until,
)
from exports import examples_for
from finished import made_up, method, small
from models import SMALL

from fedpeft.predicting import predict
from fedpeft.serving import hosting
from fedpeft.serving.app import Serving
from fedpeft.serving.limits import Limits
from fedpeft.trained import Trained
from fedpeft.vectorfile import read_vector, vector_bytes

VECTOR = "vector.safetensors"
TOKEN = "token-of-the-tests-clients"


@pytest.fixture(scope="module")
def served() -> Iterator[Endpoint]:
    """An endpoint with all ``RUNS``."""
    with endpoint(catalog_of(*RUNS)) as running:
        yield running


def single(name: str = "sentiment", text: Any = TEXT) -> dict[str, Any]:
    return {"vector": name, "text": text}


def test_predictions_are_those_of_predict(served: Endpoint) -> None:
    """One request with texts of all runs: classes, a score, tags, single and paired."""
    inputs, expected = [], []
    for name in RUNS:
        trained = Trained.read(run_folder(name))
        examples = examples_for(trained)
        expected += predict(trained, examples)
        for row, text in enumerate(examples.text):
            pair = {"text_pair": examples.text_pair[row]} if examples.text_pair else {}
            inputs.append({"vector": name, "text": text, **pair})
    response = served.predict(*inputs)
    assert response.status_code == 200, response.text
    rows = response.json()["predictions"]
    assert [row["vector"] for row in rows] == [given["vector"] for given in inputs]
    for row, prediction in zip(rows, expected, strict=True):
        assert_equal_predictions(as_prediction(row), prediction)


def test_words_may_be_one_text(served: Endpoint) -> None:
    rows = served.predict(single("entities", TEXT), single("entities", TEXT.split()))
    one, other = rows.json()["predictions"]
    assert one == other and len(one["prediction"]) == len(TEXT.split())


def test_concurrent_requests_share_batches(served: Endpoint) -> None:
    answers: dict[int, list[str]] = {}

    def ask(number: int) -> None:
        inputs = [single(name, f"{TEXT} {number}") for name in ("sentiment", "lora")]
        rows = served.predict(*inputs).json()["predictions"]
        answers[number] = [row["vector"] for row in rows]

    before = batches(served)
    threads = [threading.Thread(target=ask, args=(number,)) for number in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == {number: ["sentiment", "lora"] for number in range(20)}
    assert batches(served) - before < 20


def batches(served: Endpoint) -> float:
    return metric(served, "fedpeft_serve_batch_texts_count")


def metric(served: Endpoint, name: str) -> float:
    """Return the value of a metric."""
    lines = served.http.get("/metrics").text.splitlines()
    (value,) = [line.rpartition(" ")[2] for line in lines if line.rpartition(" ")[0] == name]
    return float(value)


def test_vectors_come_and_go(served: Endpoint) -> None:
    content = (run_folder("lora") / VECTOR).read_bytes()
    added = served.add("guest", content)
    assert added.status_code == 201
    digest = json.loads((run_folder("lora") / "result.json").read_text())["digests"]["vector"]
    assert added.json() == {
        "name": "guest",
        "task": "synthetic/sentiment",
        "method": "lora",
        "kind": "classes",
        "labels": ["negative", "positive"],
        "pair": False,
        "digest": digest,
    }
    assert served.http.get("/vectors/guest").json() == added.json()
    assert served.http.get("/vectors").json()["vectors"] == sorted([*RUNS, "guest"])
    guest, lora = served.predict(single("guest"), single("lora")).json()["predictions"]
    assert guest["probabilities"] == pytest.approx(lora["probabilities"], abs=1e-6)
    replaced = served.add("guest", (run_folder("sentiment") / VECTOR).read_bytes())
    assert (replaced.status_code, replaced.json()["method"]) == (200, "slash")
    guest, slash = served.predict(single("guest"), single()).json()["predictions"]
    assert guest["probabilities"] == pytest.approx(slash["probabilities"], abs=1e-6)
    assert served.remove("guest").json() == {"removed": "guest"}
    assert served.remove("guest").status_code == 404
    assert served.http.get("/vectors/guest").status_code == 404
    assert served.predict(single("guest")).status_code == 404


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        (b"", 400, "the body is not JSON"),
        (b"[" * 100_000, 400, "the body is not JSON"),
        (b'"x"', 400, 'expected {"inputs": [{"vector": NAME, "text": TEXT}, ...]}'),
        (b'{"inputs": []}', 400, "expected"),
        (b'{"inputs": [1]}', 400, "inputs[0]: expected"),
        (b'{"inputs": [], "more": 1}', 400, "expected"),
        ([{"vector": 3, "text": "a"}], 400, "inputs[0]: the vector's name is not text"),
        ([single(), {**single(), "texts": 1}], 400, "inputs[1]: unknown key 'texts'"),
        ([single(), single("sentimen")], 404, "'sentimen' is served; did you mean 'sentiment'?"),
        ([single("x\n" * 500)], 404, "inputs[0]: no vector 'x?x?"),
        ([{**single(), "text_pair": "b"}], 422, "has only one text; omit text_pair"),
        ([single("inference")], 422, "task 'synthetic/inference' of 'inference' needs text_pair"),
        ([{**single("inference"), "text_pair": 3}], 422, "'text_pair' is a number; expected text"),
        ([single(text=" ")], 422, "inputs[0]: 'text' is empty; expected text"),
        ([single(text=["a"])], 422, "inputs[0]: 'text' is a list; expected text"),
        ([single(text=None)], 422, "inputs[0]: 'text' is null; expected text"),
        ([single("entities", [])], 422, "expected text or a list of words, not empty"),
        ([single("entities", ["a", 1])], 422, "expected text or a list of words"),
        ([single(text="a" * 20_001)], 413, "20,001 characters; expected at most 20,000"),
        ([single(text="\ud800")], 422, "not valid Unicode"),
        ([single()] * 65, 413, "65 inputs; expected at most 64"),
        ([single(text="a" * (1 << 20))], 413, "more than 1,048,576 bytes"),
    ],
)
def test_bad_requests_are_refused(served: Endpoint, body: Any, status: int, words: str) -> None:
    content = body if isinstance(body, bytes) else json.dumps({"inputs": body}).encode()
    response = served.http.post("/predict", content=content)
    assert (response.status_code, words in response.json()["error"]) == (status, True), (
        response.text
    )
    assert response.text.count("\n") == 1
    assert served.predict(single()).status_code == 200


def test_a_long_text_is_truncated_as_in_predict(served: Endpoint) -> None:
    text = "the film was not good " * 100
    trained = Trained.read(run_folder("sentiment"))
    examples = examples_for(trained)
    (expected,) = predict(trained, type(examples)([text], None, np.zeros(1)))
    (row,) = served.predict(single(text=text)).json()["predictions"]
    assert_equal_predictions(as_prediction(row), expected)


def test_a_chunked_body_is_limited(served: Endpoint) -> None:
    response = served.http.post("/predict", content=iter([b"x" * 65536] * 20))
    assert response.status_code == 413


def test_paths_and_methods_that_do_not_exist(served: Endpoint) -> None:
    assert served.http.get("/nothing").status_code == 404
    assert served.http.get("/predict").status_code == 405
    assert served.http.get("/vectors/").status_code == 404
    assert served.http.get("/vectors/../health").status_code in (200, 404)  # httpx normalizes


def test_a_path_names_all_of_its_methods(served: Endpoint) -> None:
    for path, methods in (("/vectors/lora", "DELETE GET HEAD PUT"), ("/predict", "POST")):
        refused = served.http.request("PATCH", path)
        assert refused.status_code == 405
        assert sorted(refused.headers["Allow"].split(", ")) == methods.split()


def test_one_address_cannot_take_all_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hosting, "_PER_ADDRESS", 2)
    with endpoint(catalog_of("sentiment")) as served:
        served.http.close()
        host, port = served.url.removeprefix("http://").split(":")
        until(lambda: not hosting._Patient._held)

        def answered(source: str) -> bool:
            with socket.create_connection((host, int(port)), 10, (source, 0)) as line:
                try:
                    line.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
                    return line.recv(100).startswith(b"HTTP/1.1 200")
                except ConnectionError:
                    return False

        silent = [socket.create_connection((host, int(port)), 10) for _ in range(2)]
        until(lambda: hosting._Patient._held["127.0.0.1"] == 2)
        assert not answered("127.0.0.1")
        assert answered("127.0.0.2")
        for line in silent:
            line.close()
        until(lambda: not hosting._Patient._held)
        assert answered("127.0.0.1")


@pytest.mark.parametrize("token", ["x", "wrong", OPERATOR + "x", "ä"])
def test_vectors_need_the_operators_token(served: Endpoint, token: str) -> None:
    headers = {"Authorization": f"Bearer {token}".encode()}
    content = (run_folder("lora") / VECTOR).read_bytes()
    added = served.http.put("/vectors/guest", content=content, headers=headers)
    removed = served.http.delete("/vectors/sentiment", headers=headers)
    assert (added.status_code, removed.status_code) == (401, 401)
    assert added.headers["WWW-Authenticate"] == "Bearer"
    assert served.catalog.names() == sorted(RUNS)


def test_without_an_operators_token_vectors_are_fixed() -> None:
    with endpoint(catalog_of("sentiment"), Serving()) as served:
        response = served.remove("sentiment")
        assert response.status_code == 403
        assert "--operator-token FILE" in response.json()["error"]


def test_a_token_for_clients() -> None:
    settings = Serving(token=TOKEN, operator_token=OPERATOR)
    with endpoint(catalog_of("sentiment"), settings) as served:
        for path in ("/vectors", "/vectors/sentiment", "/metrics"):
            without = served.http.get(path)
            wrong = served.http.get(path, headers=bearer("wrong"))
            assert (without.status_code, wrong.status_code) == (401, 401)
            assert without.json()["error"].startswith("no token was given; this needs a token")
            assert wrong.json()["error"].startswith("the token is wrong; this needs a token")
            for token in (TOKEN, OPERATOR):
                assert served.http.get(path, headers=bearer(token)).status_code == 200
        assert served.predict(single()).status_code == 401
        assert served.predict(single(), headers=bearer(TOKEN)).status_code == 200
        for scheme, status in (("bearer", 200), ("BEARER", 200), ("Basic", 401), ("", 401)):
            given = {"Authorization": f"{scheme} {TOKEN}".strip()}
            assert served.predict(single(), headers=given).status_code == status
        assert served.remove("sentiment", TOKEN).status_code == 401
        assert served.http.get("/health").status_code == 200


def test_vectors_that_do_not_fit_are_refused(served: Endpoint, tmp_path: Any) -> None:
    other = made_up(tmp_path / "v", small("backbone=minilm", *method("slash", SMALL["slash"])))
    refused = served.add("guest", other.read_bytes())
    assert refused.status_code == 422
    assert "'guest' was trained on another backbone ('minilm')" in refused.json()["error"]
    assert served.add("guest", b"junk").status_code == 422
    invalid = served.add("a%20b", other.read_bytes())
    assert invalid.status_code == 422 and "not a valid name" in invalid.json()["error"]
    assert served.catalog.names() == sorted(RUNS)


def test_an_output_that_is_not_finite_is_an_error(served: Endpoint) -> None:
    vector, about = read_vector(run_folder("sentiment") / VECTOR)
    served.add("huge", vector_bytes(np.full_like(vector, 1e38), about))
    try:
        response = served.predict(single(), single("huge"))
        assert response.status_code == 500
        assert response.json() == {"error": "vector 'huge': an output is not finite"}
        assert served.predict(single()).status_code == 200
    finally:
        served.remove("huge")


@pytest.mark.parametrize("header", [{"Host": "evil.example"}, {"Origin": "https://evil.example"}])
def test_web_pages_of_others_are_refused(served: Endpoint, header: dict[str, str]) -> None:
    assert served.predict(single(), headers=header).status_code == 403
    assert served.predict(single(), headers={"Origin": served.url}).status_code == 200


def test_rates_are_limited() -> None:
    settings = Serving(limits=Limits(rate=2))
    with endpoint(catalog_of("sentiment"), settings) as served:
        statuses = [served.predict(single()).status_code for _ in range(6)]
        assert statuses[:4] == [200] * 4 and 429 in statuses
        refused = served.predict(*[single()] * 30)
        assert refused.status_code == 429 and int(refused.headers["Retry-After"]) >= 1
        assert served.http.get("/health").status_code == 200


def test_a_full_queue_is_busy() -> None:
    with endpoint(catalog_of("sentiment"), Serving(queue=3)) as served:
        response = served.predict(*[single()] * 4)
        assert (response.status_code, response.headers["Retry-After"]) == (503, "1")
        assert served.predict(*[single()] * 3).status_code == 200


def test_a_slow_body_is_refused() -> None:
    settings = Serving(limits=Limits(patience=0.2))
    with endpoint(catalog_of("sentiment"), settings) as served:
        host, port = served.url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port)), timeout=10) as line:
            line.sendall(b"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n{")
            assert line.recv(100).startswith(b"HTTP/1.1 408 ")


@pytest.mark.parametrize("start", [b"", b"GET /health HTTP/1.1\r\nHost: lo"])
def test_silent_connections_are_closed(start: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hosting, "_PATIENCE", 0.2)
    whole = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with endpoint(catalog_of("sentiment")) as served:
        host, port = served.url.removeprefix("http://").split(":")
        for before in (b"", whole):
            with socket.create_connection((host, int(port)), timeout=10) as line:
                if before:
                    line.sendall(before)
                    assert line.recv(1000).startswith(b"HTTP/1.1 200")
                line.sendall(start)
                began = time.monotonic()
                try:
                    while line.recv(1000):
                        pass
                except ConnectionResetError:
                    pass
                assert time.monotonic() - began < 8


def test_stopping_answers_accepted_requests() -> None:
    with endpoint(catalog_of("sentiment"), Serving(delay=0.5)) as served:
        answers: list[httpx.Response] = []
        url, body = f"{served.url}/predict", {"inputs": [single()]}
        ask = threading.Thread(
            target=lambda: answers.append(httpx.post(url, json=body, trust_env=False))
        )
        ask.start()
        until(lambda: served.http.get("/health").json()["waiting"] == 1)
    ask.join()
    assert answers[0].status_code == 200


def test_metrics_count_requests_and_batches(served: Endpoint) -> None:
    label = 'fedpeft_serve_requests_total{endpoint="predict",status="404"}'
    served.predict(single("nobody"))
    before, texts = metric(served, label), metric(served, "fedpeft_serve_batch_texts_sum")
    served.predict(single("nobody"))
    served.predict(single(), single("lora"))
    assert metric(served, label) == before + 1
    assert metric(served, "fedpeft_serve_batch_texts_sum") == texts + 2
    assert metric(served, "fedpeft_serve_vectors") == len(RUNS)
    assert "nobody" not in served.http.get("/metrics").text


def test_openapi_describes_every_route(served: Endpoint) -> None:
    described = served.http.get("/openapi.json").json()
    assert described["openapi"].startswith("3.")
    operations = {
        (method, path)
        for path, item in described["paths"].items()
        for method in item
        if method != "parameters"
    }
    assert operations == {
        ("post", "/predict"),
        ("get", "/vectors"),
        ("get", "/vectors/{name}"),
        ("put", "/vectors/{name}"),
        ("delete", "/vectors/{name}"),
        ("get", "/health"),
        ("get", "/metrics"),
    }
    bodies = [
        operation["requestBody"]
        for item in described["paths"].values()
        for method, operation in item.items()
        if "requestBody" in operation
    ]
    assert len(bodies) == 2 and all(body["required"] for body in bodies)
    page = served.http.get("/docs")
    assert page.headers["content-type"].startswith("text/html")
    assert all(path in page.text for _, path in operations)
