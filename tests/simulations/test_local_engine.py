"""The local engine from settings to result."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp

from fedpeft.errors import UserError
from fedpeft.experiment.config import Experiment
from fedpeft.runs.folder import RunFolder
from fedpeft.version import __version__
from simulations.engines.local import LocalGrid
from simulations.simulation import prepare

Quick = Callable[..., Experiment]
Run = Callable[..., tuple[RunFolder, dict[str, Any]]]


def test_a_run_leaves_a_complete_result(
    quick: Quick, run: Run, final_vector: Callable[[Path], np.ndarray]
) -> None:
    experiment = quick("seed=7")
    folder, result = run(experiment)
    assert result == json.loads((folder.path / "result.json").read_text())
    vector = final_vector(folder.path)
    assert {key: result[key] for key in ("task", "method", "backbone", "metric", "seed")} == {
        "task": "synthetic/sentiment",
        "method": "slash",
        "backbone": "tiny",
        "metric": "accuracy",
        "seed": 7,
    }
    assert (result["rounds"], result["clients"]) == (2, 3)
    assert (result["vector_size"], result["head_size"]) == (16 + 66, 66) == (len(vector), 66)
    assert result["score"] == folder.rounds()[-1]["score"]
    assert result["epsilon"] is result["privacy"] is None
    assert result["seconds"] > 0
    assert result["bytes"].keys() >= {"down", "up", "evaluate", "handshake", "per_client_round_up"}
    assert result["bytes"]["per_client_round_up"]["payload"] == 4 * 82
    assert result["versions"]["fedpeft"] == __version__
    assert result["versions"]["flwr"].startswith(("1.41.", "1.42."))
    assert result["digests"].keys() >= {"projection", "layout", "backbone", "experiment", "vector"}
    assert result["digests"]["experiment"] == experiment.digest
    assert result["digests"]["vector"] == hashlib.sha256(vector.tobytes()).hexdigest()


def test_every_round_leaves_a_line(quick: Quick, run: Run) -> None:
    folder, _ = run(quick("federation.rounds=3"))
    lines = folder.rounds()
    assert [line["round"] for line in lines] == [1, 2, 3]
    for line in lines:
        assert line.keys() >= {"clients", "failed", "loss", "score", "seconds", "bytes", "epsilon"}
        assert line["clients"] == 3
        assert line["failed"] == []
        assert 0 < line["loss"] < 5
        assert 0 <= line["score"] <= 1
        assert line["bytes"]["up"]["payload"] == line["bytes"]["down"]["payload"] == 3 * 4 * 82
        assert line["bytes"]["up"]["message"] > 3 * 4 * 82
        assert line["epsilon"] is None


def test_training_lowers_the_loss(quick: Quick, run: Run) -> None:
    folder, _ = run(quick("federation.rounds=6", "local.lr=0.05", "local.epochs=2"))
    losses = [line["loss"] for line in folder.rounds()]
    assert losses[-1] < 0.9 * losses[0]


def test_the_vector_file_describes_how_to_use_it(quick: Quick, run: Run) -> None:
    from safetensors import safe_open

    experiment = quick()
    folder, result = run(experiment)
    with safe_open(folder.path / "vector.safetensors", framework="numpy") as file:
        about = json.loads(file.metadata()["fedpeft"])
    assert Experiment.load(about["experiment"]) == experiment
    assert about["labels"] == ["negative", "positive"]
    sizes = [int(np.prod(shape)) for _, shape in about["parameters"]]
    assert sum(sizes) == result["vector_size"]
    assert about["digests"]["backbone"] == result["digests"]["backbone"]


def test_a_seed_gives_the_same_bits_and_another_seed_others(quick: Quick, run: Run) -> None:
    digests = [
        run(quick(f"seed={seed}"), f"run{place}")[1]["digests"]["vector"]
        for place, seed in enumerate([0, 0, 1])
    ]
    assert digests[0] == digests[1] != digests[2]


def test_a_run_does_not_depend_on_earlier_runs_of_the_process(quick: Quick, run: Run) -> None:
    first = run(quick(), "first")[1]["digests"]["vector"]
    run(quick("seed=5", "local.optimizer=sgd"), "between")
    assert run(quick("output.eval_every=2"), "last")[1]["digests"]["vector"] == first


@pytest.mark.parametrize("weighting", ["examples", "uniform"])
def test_a_round_averages_the_vectors_of_single_clients(
    quick: Quick, run: Run, final_vector: Callable[[Path], np.ndarray], weighting: str
) -> None:
    """The oracle trains each client by itself, from the initial task vector."""
    from fedpeft.runtime import runtime_of
    from fedpeft.training import When, train_cohort

    experiment = quick(
        "federation.rounds=1",
        "partition.kind=quantity",
        f"federation.weighting={weighting}",
        "federation.max_update_norm=0",
        "engine.cohort=1",
        "engine.dtype=float64",
        "wire.up=float64",
        "wire.down=float64",
    )
    folder, _ = run(experiment)
    runtime = runtime_of(experiment)
    clients = json.loads((folder.path / "partition.json").read_text())["clients"]
    start = runtime.parameters.initial(experiment.seed)
    learned = [
        train_cohort(
            runtime.model,
            start[None],
            [runtime.train.select(np.array(rows))],
            [client],
            experiment.local,
            When(experiment.seed, 1, 1),
        ).vectors[0]
        for client, rows in enumerate(clients)
    ]
    weights = [len(rows) if weighting == "examples" else 1 for rows in clients]
    assert len(set(map(len, clients))) > 1
    expected = np.average(learned, axis=0, weights=weights)
    np.testing.assert_allclose(final_vector(folder.path), expected, rtol=1e-12, atol=1e-14)


def test_a_mistake_is_reported_before_anything_is_written(quick: Quick, tmp_path: Path) -> None:
    for mistake in ("task.name=nothing", "partition.kind=bins", "federation.clients=121"):
        with pytest.raises(UserError):
            prepare(quick(mistake), tmp_path / "run")
        assert not (tmp_path / "run").exists()


class Keeping(ClientApp):
    """Counts in its node's state how often it was asked."""

    def __call__(self, message: Message, context: Context) -> Message:
        from flwr.app import ConfigRecord

        before = context.state.config_records.get("count", ConfigRecord({"n": 0}))
        context.state["count"] = ConfigRecord({"n": int(before["n"]) + 1})
        content = RecordDict({"count": context.state["count"]})
        return Message(content, reply_to=message)


def push(grid: LocalGrid, nodes: Sequence[int], kind: str = "train") -> list[str]:
    return grid.push_messages(
        Message(RecordDict(), dst_node_id=node, message_type=kind) for node in nodes
    )


def test_a_node_keeps_its_state_from_message_to_message() -> None:
    grid = LocalGrid(Keeping(), [{}, {}])
    first, second = grid.get_node_ids()
    counts = []
    for nodes in ([first, second], [first], [first]):
        replies = grid.pull_messages(push(grid, nodes))
        counts.append(replies[0].content["count"]["n"])
    assert counts == [1, 2, 3]


def test_a_message_replaces_one_that_waits_for_the_same_node() -> None:
    grid = LocalGrid(Keeping(), [{}, {}])
    first, second = push(grid, grid.get_node_ids())
    new = push(grid, grid.get_node_ids()[:1])
    assert grid.pull_messages([first]) == []
    assert len(grid.pull_messages([second])) == 1
    assert len(grid.pull_messages(new)) == 1


def test_only_train_messages_form_cohorts() -> None:
    calls: list[int] = []

    def together(messages: Sequence[Message], contexts: Sequence[Context]) -> list[Message]:
        calls.append(len(messages))
        return [Message(RecordDict(), reply_to=message) for message in messages]

    grid = LocalGrid(Keeping(), [{}] * 5, 3, together)
    waiting = push(grid, grid.get_node_ids())
    assert len(grid.pull_messages(waiting)) == 3
    assert len(grid.pull_messages(waiting)) == 2
    assert calls == [3, 2]
    replies = grid.pull_messages(push(grid, grid.get_node_ids(), "evaluate"))
    assert calls == [3, 2]
    assert all("count" in reply.content for reply in replies)


def test_send_and_receive_runs_everything() -> None:
    grid = LocalGrid(Keeping(), [{}] * 4)
    replies = grid.send_and_receive(
        Message(RecordDict(), dst_node_id=node, message_type="train")
        for node in grid.get_node_ids()
    )
    assert [reply.metadata.src_node_id for reply in replies] == grid.get_node_ids()
