import socket
import threading
import time
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from huggingface_hub import constants

from fedpeft.backbones.hub import hub_model, hub_reachable
from fedpeft.errors import UserError


class Answer(BaseHTTPRequestHandler):
    def do_HEAD(self):
        self.send_response(404)
        self.end_headers()

    def log_message(self, *_):
        pass


@contextmanager
def running_server():
    server = HTTPServer(("127.0.0.1", 0), Answer)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture(autouse=True)
def online(monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)


def test_answering_hub_is_reachable_unless_offline_is_set(monkeypatch):
    with running_server() as address:
        monkeypatch.setattr(constants, "ENDPOINT", address)
        assert hub_reachable()
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
        assert not hub_reachable()


def test_silent_hub_is_unreachable_after_the_timeout(monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{silent.getsockname()[1]}")
        start = time.monotonic()
        assert not hub_reachable(timeout=0.2)
        assert time.monotonic() - start < 2


@pytest.mark.parametrize("address", ["http://127.0.0.1:1", "http://no.such.host.invalid", "x:y"])
def test_missing_hub_is_unreachable(monkeypatch, address):
    monkeypatch.setattr(constants, "ENDPOINT", address)
    assert not hub_reachable(timeout=1.0)


def cache_checkpoint(cache, files):
    """Make a hub cache with one checkpoint that holds ``files``, as a download leaves it."""
    folder = cache / "models--someone--bert"
    (folder / "refs").mkdir(parents=True)
    (folder / "refs" / "main").write_text("abc")
    snapshot = folder / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    for name in files:
        (snapshot / name).write_text("{}")
    return snapshot


@pytest.mark.parametrize("weights", ["model.safetensors", "pytorch_model.bin"])
def test_cached_checkpoint_needs_no_network(monkeypatch, tmp_path, weights):
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:1")
    snapshot = cache_checkpoint(tmp_path, ["config.json", "tokenizer.json", weights])
    start = time.monotonic()
    assert hub_model("someone/bert") == snapshot
    assert time.monotonic() - start < 2


def test_incomplete_download_is_not_used(monkeypatch, tmp_path):
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:1")
    cache_checkpoint(tmp_path, ["config.json"])
    assert hub_model("someone/bert") is None


def test_invalid_hub_name_is_named():
    with pytest.raises(UserError, match="'a b/c d': neither"):
        hub_model("a b/c d")
