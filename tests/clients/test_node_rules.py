"""What a node's operator does not allow is refused at the handshake, in words for the server."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from workers import handshake, node_context, state_folder, task_vector

from clients import relay
from clients.state import NodeSettings
from fedpeft.config import Experiment
from fedpeft.runtime import runtime_of
from server.flower import new_run

Quick = Callable[..., Experiment]
TASK = ["task.name=custom", "task.train_limit=0", "task.eval_limit=0", "task.labels=bad,good"]
PRIVATE = ["privacy.unit=example", "privacy.noise_multiplier=2", "local.batch_size=4"]


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """The state folder of a node with 20 examples of its own and a limit of epsilon."""
    new_run()
    lines = [f"film {number}\t{label}" for number in range(10) for label in ("bad", "good")]
    (tmp_path / "own.tsv").write_text("\n".join(["text\tlabel", *lines]) + "\n")
    data = str(tmp_path / "own.tsv")
    return state_folder(tmp_path / "state", data=data, partition=None, max_epsilon=4.0)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ([], "privacy.unit = 'none': this node takes part only with privacy for examples, of an "),
        ([*PRIVATE, "privacy.reproducible=true"], "privacy.reproducible = true: this node takes "),
        ([*PRIVATE, "task.train_limit=10"], "task.train_limit = 10: this node limits its epsilon"),
        (
            [*PRIVATE, "task.held_out=0.5", "privacy.delta=0.09"],
            "privacy.delta = 0.09, task.held_out = 0.5: this node limits its epsilon, and expects "
            "a delta below 1 / its 20 examples",
        ),
        ([*PRIVATE, "privacy.noise_multiplier=0.2"], "one round spends epsilon "),
    ],
)
def test_a_run_against_the_rules_is_refused_before_its_first_round(
    own: Path, quick: Quick, settings: list[str], said: str, caplog: pytest.LogCaptureFixture
) -> None:
    reply = relay.app(handshake(quick(*TASK, *settings)), node_context(own))
    assert reply.error.reason.startswith(f"Refusal: {said}")
    assert reply.error.reason in caplog.messages  # whole, for the node's operator, too
    assert not (own / "privacy.sqlite").exists()


def test_a_run_within_the_rules_is_taken_part_in(own: Path, quick: Quick) -> None:
    context, experiment = node_context(own), quick(*TASK, *PRIVATE)
    assert relay.app(handshake(experiment), context).has_content()
    start = runtime_of(experiment.to_toml()).trainable.initial(0)
    assert relay.app(task_vector("train", experiment, start), context).has_content()


def test_rules_that_came_after_the_handshake_hold(own: Path, quick: Quick) -> None:
    """A node is started again with a limit, and the server goes on with its run."""
    limited = NodeSettings.read(own)
    NodeSettings(limited.data).write(own)
    context, experiment = node_context(own), quick(*TASK)
    assert relay.app(handshake(experiment), context).has_content()
    limited.write(own)
    start = runtime_of(experiment.to_toml()).trainable.initial(0)
    reply = relay.app(task_vector("train", experiment, start), context)
    assert reply.error.reason.startswith("Refusal: privacy.unit = 'none'")
