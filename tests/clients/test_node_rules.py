"""Experiments against a node's rules are refused at the handshake, with the reason."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from workers import handshake, node_context, state_folder, task_vector

from clients.folder import NodeSettings
from deployment.node import relay
from fedpeft.experiment.config import Experiment
from fedpeft.runtime import runtime_of
from fedpeft.wire.messages import RECORD, HandshakeReply, from_fields
from server.flower import new_run

Quick = Callable[..., Experiment]
TASK = ["task.name=custom", "task.train_limit=0", "task.eval_limit=0", "task.labels=bad,good"]
PRIVATE = ["privacy.unit=example", "privacy.noise_multiplier=2", "local.batch_size=4"]


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """The state folder of a node with 20 examples of its own and a limit of epsilon."""
    new_run()
    lines = [f"film {number}\t{label}" for number in range(10) for label in ("bad", "good")]
    (tmp_path / "own.tsv").write_text("\n".join(["text\tlabel", *lines]) + "\n")
    data = str(tmp_path / "own.tsv")
    limits = {"max_epsilon": 4.0, "examples": 20}
    return state_folder(
        tmp_path / "state", data=data, labels=("bad", "good"), partition=None, **limits
    )


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (
            [],
            "privacy.unit = 'none': this node takes part only with noise of its own, for examples ",
        ),
        ([*PRIVATE, "privacy.reproducible=true"], "privacy.reproducible = true: this node takes "),
        ([*PRIVATE, "task.train_limit=10"], "task.train_limit = 10: this node limits its epsilon"),
        ([*PRIVATE, "privacy.noise_multiplier=0.2"], "one round spends epsilon "),
    ],
)
def test_a_run_against_the_rules_is_refused_before_its_first_round(
    state: Path, quick: Quick, settings: list[str], expected: str, caplog: pytest.LogCaptureFixture
) -> None:
    reply = relay.app(handshake(quick(*TASK, *settings)), node_context(state))
    assert reply.error.reason.startswith(f"Refusal: {expected}")
    assert reply.error.reason in caplog.messages  # whole, for the node's operator, too
    assert not (state / "privacy.sqlite").exists()


WHOLE = ["privacy.unit=client", "federation.clients=5", "federation.secure=true"]


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (
            ["privacy.reproducible=true", "privacy.noise_multiplier=2"],
            "privacy.reproducible = true",
        ),
        (["privacy.noise_multiplier=0.2"], "one round spends epsilon "),
        (["privacy.epsilon=100"], "one round spends epsilon "),
        (
            ["privacy.noise_multiplier=4"],
            "federation.secure = true: this node knows no other nodes",
        ),
    ],
)
def test_a_limit_covers_the_noise_of_whole_clients(
    state: Path, quick: Quick, settings: list[str], expected: str
) -> None:
    """The server chooses the noise, so without a limit of its own a node has no bound."""
    experiment = quick(*TASK, *WHOLE, "privacy.client_noise=secure", *settings)
    reply = relay.app(handshake(experiment), node_context(state))
    assert reply.error.reason.startswith(f"Refusal: {expected}")
    central = quick(*TASK, "privacy.unit=client", "federation.clients=5", "privacy.epsilon=2")
    reply = relay.app(handshake(central), node_context(state))
    assert reply.error.reason.startswith("Refusal: privacy.unit = 'client': this node takes part ")


def test_clients_evaluate_only_where_the_experiment_says_so(tmp_path: Path, quick: Quick) -> None:
    """Exact counts for any vector would otherwise leave a client whose update is hidden."""
    new_run()
    state = state_folder(tmp_path / "state")
    for where, error in (("server", True), ("clients", False)):
        experiment = quick(f"federation.evaluation={where}")
        context = node_context(state)
        assert not relay.app(handshake(experiment), context).has_error()
        start = runtime_of(experiment).parameters.initial(0)
        reply = relay.app(task_vector("evaluate", experiment, start), context)
        assert reply.has_error() == error
        if error:
            assert (
                "federation.evaluation = 'server': clients evaluate nothing" in reply.error.reason
            )


def test_a_delta_is_below_one_over_the_examples_whatever_is_held_out(
    state: Path, quick: Quick
) -> None:
    """The server chooses the share; a node that limits its epsilon holds out nothing."""
    few = quick(*TASK, *PRIVATE, "task.held_out=0.5", "privacy.delta=0.09")
    reply = relay.app(handshake(few), node_context(state))
    assert reply.error.reason.startswith("UserError: privacy.delta = 0.09: expected less than 1 /")


def test_texts_longer_than_the_backbone_reads_are_refused_before_any_charge(
    state: Path, quick: Quick
) -> None:
    reply = relay.app(handshake(quick(*TASK, *PRIVATE, "task.max_length=900")), node_context(state))
    assert reply.error.reason.startswith("UserError: task.max_length = 900: 'tiny' reads at most ")
    assert not (state / "privacy.sqlite").exists()


def test_a_node_takes_part_in_a_run_within_its_rules(state: Path, quick: Quick) -> None:
    context, experiment = node_context(state), quick(*TASK, *PRIVATE)
    assert relay.app(handshake(experiment), context).has_content()
    start = runtime_of(experiment).parameters.initial(0)
    assert relay.app(task_vector("train", experiment, start), context).has_content()


def test_rules_added_after_the_handshake_hold(state: Path, quick: Quick) -> None:
    """A node is restarted with a limit, and the server continues its run."""
    limited = NodeSettings.read(state)
    replace(limited, max_epsilon=None).write(state)
    context, experiment = node_context(state), quick(*TASK)
    assert relay.app(handshake(experiment), context).has_content()
    limited.write(state)
    start = runtime_of(experiment).parameters.initial(0)
    reply = relay.app(task_vector("train", experiment, start), context)
    assert reply.error.reason.startswith("Refusal: privacy.unit = 'none'")


def test_a_node_with_a_roster_trains_only_in_sums(tmp_path: Path, quick: Quick) -> None:
    """The server could otherwise ask for the same update without masks."""
    new_run()
    state = state_folder(tmp_path / "state", roster="/etc/fedpeft/roster", key="/etc/fedpeft/site1")
    reply = relay.app(handshake(quick()), node_context(state))
    assert reply.error.reason.startswith("Refusal: federation.secure = false: this node shows its ")


def test_a_node_says_from_how_many_colluders_a_sum_has_to_protect(
    tmp_path: Path, quick: Quick
) -> None:
    new_run()
    files = {"roster": "/etc/fedpeft/roster", "key": "/etc/fedpeft/site1"}
    state = state_folder(tmp_path / "state", **files, colluders=2)
    fewer = quick("federation.secure=true", "federation.clients=10", "secure.colluders=1")
    reply = relay.app(handshake(fewer), node_context(state))
    assert reply.error.reason.startswith("Refusal: secure.colluders = 1: this node takes part only")


def test_a_node_reports_the_form_of_its_weights_and_trains_with_it(
    tmp_path: Path, quick: Quick
) -> None:
    new_run()
    experiment = quick()
    start = runtime_of(experiment).parameters.initial(0)
    vectors = []
    for form in ("", "float32", "int8"):
        context = node_context(state_folder(tmp_path / f"state{form}", weights=form))
        reply = relay.app(handshake(experiment), context)
        said = from_fields(HandshakeReply, reply.content[RECORD])
        assert said.weights == (form or "float32")
        trained = relay.app(task_vector("train", experiment, start), context)
        vectors.append(trained.content[RECORD]["v"])
    assert vectors[0] == vectors[1] != vectors[2]


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (["method.name=said"], "engine.weights = 'int8': method 'said' changes whole weights"),
        (["engine.dtype=float64"], "engine.weights = 'int8': expected engine.dtype = 'float32'"),
    ],
)
def test_a_run_that_compact_weights_cannot_do_is_refused(
    tmp_path: Path, quick: Quick, settings: list[str], expected: str
) -> None:
    new_run()
    context = node_context(state_folder(tmp_path / "state", weights="int8"))
    reply = relay.app(handshake(quick(*settings)), context)
    assert reply.error.reason.startswith(f"Refusal: {expected}")
    assert "fedpeft node up --weights int8" in reply.error.reason


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"sums": False}, "this node sends none"),
        ({"examples": "rounded"}, "this node shows only about how many it has"),
        ({"examples": 20}, "this node shows only about how many it has"),
    ],
)
def test_a_node_sends_no_sums_against_its_rules_and_trains_all_the_same(
    tmp_path: Path, quick: Quick, settings: dict[str, object], reason: str
) -> None:
    new_run()
    state = state_folder(tmp_path / "state", **settings)
    experiment, context = quick("head.start=sums"), node_context(state)
    assert relay.app(handshake(experiment), context).has_content()
    reply = relay.app(task_vector("train", experiment, np.zeros(0, np.float32), 0), context)
    assert reply.error.reason.startswith("Refusal: head.start = 'sums': sums of features tell")
    assert reason in reply.error.reason
    start = runtime_of(experiment).parameters.initial(0)
    assert relay.app(task_vector("train", experiment, start), context).has_content()


def test_a_repeated_request_for_sums_gets_the_stored_reply(tmp_path: Path, quick: Quick) -> None:
    new_run()
    state = state_folder(tmp_path / "state")
    experiment, context = quick("head.start=sums"), node_context(state)
    assert relay.app(handshake(experiment), context).has_content()
    asked = task_vector("train", experiment, np.zeros(0, np.float32), 0)
    first = relay.app(asked, context).content[RECORD]
    [stored] = (state / "attempts").iterdir()
    before = stored.stat().st_mtime_ns
    again = relay.app(task_vector("train", experiment, np.zeros(0, np.float32), 0), context)
    assert again.content[RECORD]["v"] == first["v"]
    assert stored.stat().st_mtime_ns == before


def test_sums_are_sent_only_where_the_experiment_asks_for_them(
    tmp_path: Path, quick: Quick
) -> None:
    new_run()
    experiment, context = quick(), node_context(state_folder(tmp_path / "state"))
    assert relay.app(handshake(experiment), context).has_content()
    reply = relay.app(task_vector("train", experiment, np.zeros(0, np.float32), 0), context)
    assert "round 0: expected 1 to 2" in reply.error.reason
