"""What a node does not do, whatever its server sends: the node is in the hands of its operator."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from flwr.app import ConfigRecord, Message, RecordDict
from workers import handshake, message, node_context, state_folder, task_vector

from clients import relay
from clients.channel import listen
from clients.state import NodeSettings, socket_path
from fedpeft.backbones import load_backbone
from fedpeft.config import Experiment
from fedpeft.runtime import runtime_of
from fedpeft.version import __version__
from server.flower import new_run

Quick = Callable[..., Experiment]
CUSTOM = ["task.name=custom", "task.train_limit=0", "task.eval_limit=0"]
LABELS = "task.labels=bad,good"


@pytest.fixture(autouse=True)
def run() -> None:
    """Let messages be made."""
    new_run()


def rows(path: Path, count: int) -> Path:
    """Write a table of ``count`` examples for each of two labels; return its folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [f"film {number}\t{label}" for number in range(count) for label in ("bad", "good")]
    path.write_text("\n".join(["text\tlabel", *lines]) + "\n")
    return path.parent


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """The state folder of a node with ten examples of its own."""
    data = rows(tmp_path / "data" / "train.tsv", 5)
    rows(data / "dev.tsv", 1)
    return state_folder(tmp_path / "state", data=str(data), partition=None)


def reason(state: Path, asked: Message) -> str:
    """Return the reason of the error reply to a message."""
    reply = relay.app(asked, node_context(state))
    assert reply.has_error()
    return str(reply.error.reason)


@pytest.mark.parametrize("name", ["/etc", "../..", ".", "somebody/model", "roberta-large", "Tiny"])
def test_it_loads_no_backbone_that_its_operator_did_not_name(
    tmp_path: Path, quick: Quick, name: str
) -> None:
    """Neither from its disk nor from the hub."""
    loaded = load_backbone.cache_info().misses
    refused = "Refusal: this node does not load backbone "
    said = reason(state_folder(tmp_path / "any"), handshake(quick(f"backbone={name}")))
    assert said.startswith(refused) and "only minilm, tiny" in said
    named = state_folder(tmp_path / "named", allow=("minilm",))
    said = reason(named, handshake(quick("backbone=tiny")))
    assert said.startswith(f"{refused}'tiny', only minilm;")
    assert load_backbone.cache_info().misses == loaded


@pytest.mark.parametrize("at", ["task.path={}", "task.train={}/train.tsv", "task.dev={}/train.tsv"])
def test_it_reads_its_own_data_wherever_the_experiment_points(
    tmp_path: Path, own: Path, quick: Quick, at: str
) -> None:
    other = rows(tmp_path / "other" / "train.tsv", 30)
    experiment = quick(*CUSTOM, LABELS, at.format(other))
    reply = relay.app(handshake(experiment), node_context(own))
    assert reply.content["node"]["examples"] == 10


def test_it_never_tells_its_labels(own: Path, quick: Quick) -> None:
    """Not even their digest, which a list of guesses would open."""
    said = reason(own, handshake(quick(*CUSTOM)))
    assert said.startswith("Refusal: task.labels is empty")


def test_it_keeps_its_ledger_in_its_own_folder(tmp_path: Path, own: Path, quick: Quick) -> None:
    elsewhere = tmp_path / "elsewhere"
    experiment = quick(
        *(*CUSTOM, LABELS, "privacy.unit=example", "privacy.noise_multiplier=1"),
        *(f"privacy.ledger={elsewhere}", "local.batch_size=4"),
    )
    context = node_context(own)
    assert relay.app(handshake(experiment), context).has_content()
    start = runtime_of(experiment.to_toml()).trainable.initial(0)
    assert relay.app(task_vector("train", experiment, start), context).has_content()
    assert (own / "privacy.sqlite").is_file() and not elsewhere.exists()


def test_an_epsilon_counts_only_where_the_noise_is_secret(own: Path, quick: Quick) -> None:
    """The server knows the seed, and would take reproducible noise off again."""
    NodeSettings(str(own.parent / "data"), max_epsilon=50).write(own)
    private = [*CUSTOM, LABELS, "privacy.unit=example", "privacy.noise_multiplier=2"]
    for reproducible in ("true", "false"):
        experiment = quick(*private, "local.batch_size=4", f"privacy.reproducible={reproducible}")
        context = node_context(own)
        reply = relay.app(handshake(experiment), context)
        assert reply.has_error() == (reproducible == "true")
        if reply.has_error():
            assert reply.error.reason.startswith("Refusal: privacy.reproducible = true: ")
            continue
        start = runtime_of(experiment.to_toml()).trainable.initial(0)
        assert relay.app(task_vector("train", experiment, start), context).has_content()
        assert (own / "privacy.sqlite").exists()


def test_paths_of_the_machine_stay_in_its_own_log(
    own: Path, quick: Quick, caplog: pytest.LogCaptureFixture
) -> None:
    (own.parent / "data" / "train.tsv").unlink()
    said = reason(own, handshake(quick(*CUSTOM, LABELS)))
    assert said.startswith("UserError: <path>: holds no train")
    assert str(own.parent / "data") in caplog.text


def test_an_experiment_that_cannot_be_read_is_an_error_reply(own: Path) -> None:
    for toml in ("x = " + "[" * 100_000, "x = \x00", "[task]\nname = '" + "é" * 5000):
        config = ConfigRecord({"experiment": toml, "client": 0})
        said = reason(own, message("query.handshake", RecordDict({"config": config})))
        assert len(said) <= 200


def test_a_server_of_another_version_learns_the_version_and_no_more(own: Path) -> None:
    """Its experiment may have settings that nobody here knows."""
    config = ConfigRecord({"experiment": "new = 1", "client": 3, "version": "99.0"})
    reply = relay.app(message("query.handshake", RecordDict({"config": config})), node_context(own))
    assert dict(reply.content["node"]) == {"client": 3, "examples": 0, "version": __version__}


def test_nothing_escapes_the_relay_for_flower_to_send(own: Path, quick: Quick) -> None:
    asked = handshake(quick())
    asked.metadata.ttl = 1e300  # no socket waits so long
    assert reason(own, asked).startswith("OverflowError at channel.py:")
    context = node_context(own)
    del context.node_config["state"]
    assert relay.app(handshake(quick()), context).error.reason.startswith("KeyError at relay.py:")


def test_only_the_signal_to_end_ends_it(own: Path, quick: Quick) -> None:
    """While it waits for a worker that does not answer."""
    earlier = {
        signal.SIGTERM: signal.signal(signal.SIGTERM, lambda *_: sys.exit(0)),  # as Flower's does
        # A shell starts what runs in its background with this one ignored.
        signal.SIGINT: signal.signal(signal.SIGINT, signal.default_int_handler),
    }
    try:
        with listen(socket_path(own)):
            with sent(signal.SIGINT):
                said = reason(own, handshake(quick()))
            assert said.startswith("KeyboardInterrupt at channel.py:")
            with sent(signal.SIGTERM), pytest.raises(SystemExit):
                relay.app(handshake(quick()), node_context(own))
    finally:
        for number, handler in earlier.items():
            signal.signal(number, handler)


class sent:
    """Sends this process a signal soon."""

    def __init__(self, number: int):
        self.timer = threading.Timer(0.5, os.kill, (os.getpid(), number))

    def __enter__(self) -> None:
        self.timer.start()

    def __exit__(self, *error: object) -> None:
        self.timer.join()
