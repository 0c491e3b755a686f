"""A node refuses what its operator did not allow, whatever its server sends."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from flwr.app import Message
from messaging import changed, content_of
from workers import handshake, node_context, state_folder, task_vector

from clients.folder import NodeFolder, NodeSettings
from deployment.node import relay
from deployment.node.channel import listen
from fedpeft.backbones.loading import cached_backbone
from fedpeft.experiment.config import Experiment
from fedpeft.runtime import runtime_of
from fedpeft.version import __version__
from fedpeft.wire.messages import HandshakeReply
from server.flower import new_run

Quick = Callable[..., Experiment]
CUSTOM = ["task.name=custom", "task.train_limit=0", "task.eval_limit=0"]
LABELS = "task.labels=bad,good"


@pytest.fixture(autouse=True)
def run() -> None:
    """Start a run, so that messages can be made."""
    new_run()


def rows(path: Path, count: int) -> Path:
    """Write a table of ``count`` examples for each of two labels; return its folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [f"film {number}\t{label}" for number in range(count) for label in ("bad", "good")]
    path.write_text("\n".join(["text\tlabel", *lines]) + "\n")
    return path.parent


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """The state folder of a node with ten examples of its own."""
    data = rows(tmp_path / "data" / "train.tsv", 5)
    rows(data / "dev.tsv", 1)
    return state_folder(tmp_path / "state", data=str(data), partition=None, labels=("bad", "good"))


def reason(state: Path, asked: Message) -> str:
    """Return the reason of the error reply to a message."""
    reply = relay.app(asked, node_context(state))
    assert reply.has_error()
    return str(reply.error.reason)


@pytest.mark.parametrize("name", ["/etc", "../..", ".", "somebody/model", "roberta-large", "Tiny"])
def test_a_node_loads_only_backbones_that_its_operator_named(
    tmp_path: Path, quick: Quick, name: str
) -> None:
    """Backbones on its disk and on the hub."""
    loaded = cached_backbone.cache_info().misses
    refused = "Refusal: this node does not load backbone "
    refusal = reason(state_folder(tmp_path / "any"), handshake(quick(f"backbone={name}")))
    assert refusal.startswith(refused) and "only minilm, tiny" in refusal
    named = state_folder(tmp_path / "named", allow=("minilm",))
    refusal = reason(named, handshake(quick("backbone=tiny")))
    assert refusal.startswith(f"{refused}'tiny', only minilm;")
    assert cached_backbone.cache_info().misses == loaded


@pytest.mark.parametrize("at", ["task.path={}", "task.train={}/train.tsv", "task.dev={}/train.tsv"])
def test_a_node_ignores_the_experiments_paths_of_data(
    tmp_path: Path, state: Path, quick: Quick, at: str
) -> None:
    other = rows(tmp_path / "other" / "train.tsv", 30)
    experiment = quick(*CUSTOM, LABELS, at.format(other))
    reply = relay.app(handshake(experiment), node_context(state))
    assert content_of(reply, HandshakeReply).examples == 10


def test_an_experiment_without_labels_is_refused(state: Path, quick: Quick) -> None:
    refusal = reason(state, handshake(quick(*CUSTOM)))
    assert refusal.startswith("Refusal: task.labels differs from this node's data; expected")


def test_a_nodes_ledger_is_in_its_state_folder(tmp_path: Path, state: Path, quick: Quick) -> None:
    elsewhere = tmp_path / "elsewhere"
    experiment = quick(
        *(*CUSTOM, LABELS, "privacy.unit=example", "privacy.noise_multiplier=1"),
        *(f"privacy.ledger={elsewhere}", "local.batch_size=4"),
    )
    context = node_context(state)
    assert relay.app(handshake(experiment), context).has_content()
    start = runtime_of(experiment).parameters.initial(0)
    assert relay.app(task_vector("train", experiment, start), context).has_content()
    assert (state / "privacy.sqlite").is_file() and not elsewhere.exists()


def test_reproducible_noise_is_refused_where_epsilon_is_limited(state: Path, quick: Quick) -> None:
    """The server knows the seed, and could subtract reproducible noise."""
    replace(NodeSettings.read(state), max_epsilon=50).write(state)
    private = [*CUSTOM, LABELS, "privacy.unit=example", "privacy.noise_multiplier=2"]
    for reproducible in ("true", "false"):
        experiment = quick(*private, "local.batch_size=4", f"privacy.reproducible={reproducible}")
        context = node_context(state)
        reply = relay.app(handshake(experiment), context)
        assert reply.has_error() == (reproducible == "true")
        if reply.has_error():
            assert reply.error.reason.startswith("Refusal: privacy.reproducible = true: ")
            continue
        start = runtime_of(experiment).parameters.initial(0)
        assert relay.app(task_vector("train", experiment, start), context).has_content()
        assert (state / "privacy.sqlite").exists()


def test_paths_of_a_node_are_logged_but_not_sent(
    state: Path, quick: Quick, caplog: pytest.LogCaptureFixture
) -> None:
    """The error of a missing file has no text at all; that of a ledger has no path."""
    private = [*CUSTOM, LABELS, "privacy.unit=example", "privacy.noise_multiplier=1"]
    experiment, context = quick(*private, "local.batch_size=4"), node_context(state)
    assert relay.app(handshake(experiment), context).has_content()
    asked = task_vector("train", experiment, runtime_of(experiment).parameters.initial(0))
    assert relay.app(asked, context).has_content()
    rows(state.parent / "data" / "train.tsv", 6)
    again = task_vector("train", experiment, runtime_of(experiment).parameters.initial(0), 2)
    refusal = relay.app(again, context).error.reason
    assert refusal.startswith("OtherLedger: privacy ledger <path> is about other training data")
    assert str(state / "privacy.sqlite") in caplog.text
    (state.parent / "data" / "train.tsv").unlink()
    assert reason(state, handshake(quick(*CUSTOM, LABELS))).startswith("UserError at files.py:")
    assert str(state.parent / "data") in caplog.text


def test_an_experiment_that_cannot_be_read_is_an_error_reply(state: Path) -> None:
    for toml in ("x = " + "[" * 100_000, "x = \x00", "[task]\nname = '" + "é" * 5000):
        refusal = reason(state, handshake(toml))
        assert len(refusal) <= 200


def test_a_server_of_another_version_gets_the_version_only(state: Path) -> None:
    """Its experiment may have settings that this version does not know."""
    asked = changed(handshake("new = 1"), s="99.0", c=3)
    reply = relay.app(asked, node_context(state))
    assert content_of(reply, HandshakeReply) == HandshakeReply(version=__version__, client=3)


def test_every_exception_in_the_relay_becomes_an_error_reply(state: Path, quick: Quick) -> None:
    asked = handshake(quick())
    asked.metadata.ttl = 1e300  # no socket waits so long
    assert reason(state, asked).startswith("OverflowError at channel.py:")
    context = node_context(state)
    del context.node_config["state"]
    assert relay.app(handshake(quick()), context).error.reason.startswith("KeyError at relay.py:")


def test_only_flowers_exit_at_sigterm_ends_the_relay(state: Path, quick: Quick) -> None:
    """The relay is waiting for a worker that does not answer."""
    earlier = {
        signal.SIGTERM: signal.signal(signal.SIGTERM, lambda *_: sys.exit(0)),  # as Flower's does
        # A shell starts what runs in its background with this one ignored.
        signal.SIGINT: signal.signal(signal.SIGINT, signal.default_int_handler),
    }
    try:
        with listen(NodeFolder(state).socket):
            with sent(signal.SIGINT):
                refusal = reason(state, handshake(quick()))
            assert refusal.startswith("KeyboardInterrupt at channel.py:")
            with sent(signal.SIGTERM), pytest.raises(SystemExit):
                relay.app(handshake(quick()), node_context(state))
    finally:
        for number, handler in earlier.items():
            signal.signal(number, handler)


class sent:
    """Send this process a signal after a short time."""

    def __init__(self, number: int):
        self.timer = threading.Timer(0.5, os.kill, (os.getpid(), number))

    def __enter__(self) -> None:
        self.timer.start()

    def __exit__(self, *error: object) -> None:
        self.timer.join()
