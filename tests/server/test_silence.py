"""A client that hangs delays few rounds, and takes part again once it answers."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Message

from clients.app import app as client_app
from fedpeft.errors import RunFailed
from fedpeft.experiment.config import Experiment
from fedpeft.runs.folder import RunFolder
from fedpeft.wire.failures import Failure, FailureKind
from server.app import app as server_app
from server.members.silence import Silence
from simulations.engines.grid import NodeConfig
from simulations.engines.local import LocalGrid, serve

Quick = Callable[..., Experiment]
Nodes = Callable[..., list[NodeConfig]]
SILENT = Failure(FailureKind.SILENT, "no reply within 2 s")
ERROR = Failure(FailureKind.FAILED, "error 2: OSError")


def test_pauses_grow_from_the_third_silence_and_end_with_a_reply() -> None:
    silence, asked = Silence(), []
    for number in range(1, 40):
        if not silence.rests(7, number):
            silence.hear(number, [7], {7: SILENT})
            asked.append(number)
    assert asked == [1, 2, 3, 6, 11, 20, 37]
    silence.hear(40, [7], {})
    assert not silence.rests(7, 41)


def test_an_error_is_a_reply() -> None:
    silence = Silence()
    for number in range(1, 9):
        assert silence.hear(number, [7], {7: ERROR}) == []
        assert not silence.rests(7, number + 1)


class Hanging(LocalGrid):
    """A grid on which one node never answers one kind of message in some rounds."""

    def __init__(self, nodes: list[NodeConfig], kind: str, rounds: Iterable[int]) -> None:
        super().__init__(client_app, nodes)
        self.kind, self.rounds, self.asked = kind, rounds, []

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        sent = [*messages]
        ids = super().push_messages(sent)
        for message in sent:
            metadata, fields = message.metadata, message.content["m"]
            if metadata.message_type == self.kind and metadata.dst_node_id == 1001:
                number: Any = fields.get("r", 0)
                self.asked.append(number)
                if number in self.rounds:
                    del self._waiting[metadata.message_id]
        return ids


@pytest.fixture
def hang(
    quick: Quick, node_configs: Nodes, tmp_path: Path, virtual_time: object
) -> Callable[..., Any]:
    """Return a runner of a federation with a node that hangs; it returns grid and folder."""

    def run(kind: str, rounds: Iterable[int], *settings: str) -> tuple[Hanging, RunFolder]:
        experiment = quick("federation.timeout=2", "federation.rounds=8", *settings)
        grid = Hanging(node_configs(experiment), kind, rounds)
        serve(server_app, grid, {"experiment": experiment.to_toml(), "out": str(tmp_path / "run")})
        return grid, RunFolder(tmp_path / "run")

    return run


def test_a_node_that_never_trains_is_asked_in_few_rounds_and_noted_once(
    hang: Callable[..., Any],
) -> None:
    grid, folder = hang("train", range(1, 9))
    assert grid.asked == [1, 2, 3, 6]
    lines = folder.rounds()
    assert [line["clients"] for line in lines] == [2] * 8
    assert [len(line["failed"]) for line in lines] == [1, 1, 1, 0, 0, 1, 0, 0]
    [noted] = folder.noted()
    assert noted.startswith("client 1 sent no reply to 3 train messages in a row; it is asked")


def test_a_node_that_answers_again_takes_part_in_every_round(hang: Callable[..., Any]) -> None:
    grid, folder = hang("train", range(1, 4))
    assert grid.asked == [1, 2, 3, 6, 7, 8]
    assert [line["clients"] for line in folder.rounds()] == [2] * 5 + [3] * 3


def test_a_node_that_never_evaluates_is_asked_in_few_rounds(hang: Callable[..., Any]) -> None:
    grid, folder = hang("evaluate", range(1, 9), "federation.evaluation=clients")
    assert grid.asked == [1, 2, 3, 6]
    assert [line["clients"] for line in folder.rounds()] == [3] * 3 + [2] * 2 + [3] + [2] * 2
    assert "client 1 did not evaluate: no reply within 2 s" in folder.noted()


def test_a_node_that_hangs_in_training_is_not_asked_to_evaluate(hang: Callable[..., Any]) -> None:
    _, folder = hang("train", range(1, 9), "federation.evaluation=clients")
    evaluated = {
        line["round"]
        for line in folder.sent()
        if line["kind"] == "evaluate" and line["client"] == 1
    }
    assert not evaluated & {1, 2, 3, 6}


def test_a_node_that_never_shakes_hands_is_asked_in_few_rounds(hang: Callable[..., Any]) -> None:
    grid, folder = hang("query.handshake", [0])
    assert len(grid.asked) == 4
    assert [line["clients"] for line in folder.rounds()] == [2] * 8


def test_a_run_that_needs_a_silent_node_asks_it_in_every_round(hang: Callable[..., Any]) -> None:
    with pytest.raises(RunFailed, match="round 1: 2 of 3 clients succeeded"):
        hang("train", range(1, 9), "federation.min_success=3")
