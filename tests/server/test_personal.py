"""Personal parameters, which stay at the clients, in whole runs."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from flwr.app import Message
from safetensors.numpy import load_file

from fedpeft.errors import RunFailed, UserError
from fedpeft.experiment.config import Experiment
from fedpeft.runtime import runtime_of
from fedpeft.trained import Trained
from fedpeft.training import When, evaluate, train_cohort
from server.runfolder import RunFolder

Quick = Callable[..., Experiment]
Federate = Callable[..., RunFolder]
PERSONAL = ["federation.personal=head", "federation.evaluation=clients"]


def shares(folder: RunFolder) -> list[np.ndarray]:
    found = json.loads((folder.path / "partition.json").read_text())["clients"]
    return [np.array(rows) for rows in found]


def own(folder: RunFolder, client: int) -> dict[int, np.ndarray]:
    found = load_file(folder.path / "kept" / "personal" / f"client-{client:05d}.safetensors")
    return {int(key.split("/")[0]): values for key, values in found.items()}


def test_personal_parameters_are_trained_and_kept_and_never_sent(
    quick: Quick, federate: Federate
) -> None:
    """Against the algorithm written out: whole vectors, of which the server averages a part."""
    experiment = quick(*PERSONAL, "local.lr=0.1")
    folder = federate(experiment)
    runtime = runtime_of(experiment)
    model, personal = runtime.model, runtime.parameters.personal
    wholes = [model.parameters.initial(experiment.seed) for _ in range(3)]
    for number in (1, 2):
        for client, rows in enumerate(shares(folder)):
            data = runtime.train.select(rows)
            when = When(experiment.seed, number, 2)
            trained = train_cohort(model, wholes[client], [data], [client], experiment.local, when)
            wholes[client] = trained.vectors[0]
        mean = np.mean([whole[~personal].astype(np.float64) for whole in wholes], axis=0)
        for whole in wholes:
            whole[~personal] = mean
    state = folder.checkpoint()
    assert (
        state is not None
        and len(state.vector) == (~personal).sum() == runtime.parameters.shared.size
    )
    assert np.allclose(state.vector, mean, atol=1e-6)
    correct = 0.0
    for client in range(3):
        assert np.allclose(own(folder, client)[2], wholes[client][personal], atol=1e-6)
        dev = runtime.dev.select(np.arange(client, len(runtime.dev), 3))
        correct += (evaluate(model, wholes[client], dev).outputs.argmax(1) == dev.labels).sum()
    assert folder.rounds()[-1]["score"] == pytest.approx(correct / len(runtime.dev))
    heads = [own(folder, client)[2] for client in range(3)]
    assert not np.allclose(heads[0], heads[1]) and not np.allclose(heads[1], heads[2])


def test_only_shared_parameters_are_sent_and_counted(quick: Quick, federate: Federate) -> None:
    experiment = quick(*PERSONAL)
    folder = federate(experiment)
    shared = runtime_of(experiment).parameters.shared
    result = json.loads((folder.path / "result.json").read_text())
    assert (result["vector_size"], result["head_size"]) == (shared.size, 0)
    assert result["bytes"]["per_client_round_up"]["payload"] == 4 * shared.size
    assert result["bytes"]["up"]["payload"] == 4 * shared.size * 3 * 2
    with pytest.raises(UserError, match="lacks the parameters that stay at the clients"):
        Trained.read(folder.path)


def test_a_repeated_round_starts_from_the_same_personal_parameters(
    tmp_path: Path, quick: Quick, federate: Federate
) -> None:
    experiment = quick(*PERSONAL, "federation.min_success=3", "federation.rounds=3")

    def broken(reply: Message) -> Message:
        raise OSError("lost after the client had kept what it learned")

    with pytest.raises(RunFailed, match="round 3: 2 of 3"):
        federate(experiment, broken, client=1, rounds=[3], out="again")
    again = federate(experiment, out="again", resume=True)
    undisturbed = federate(experiment, out="undisturbed")
    vectors = [
        load_file(each.path / "vector.safetensors")["vector"] for each in (again, undisturbed)
    ]
    assert vectors[0].tobytes() == vectors[1].tobytes()
    for client in range(3):
        found, expected = own(again, client), own(undisturbed, client)
        assert list(found) == list(expected) == [2, 3]
        assert all(found[number].tobytes() == expected[number].tobytes() for number in found)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (
            ["federation.personal=head"],
            "only the clients have them; expected federation.evaluation",
        ),
        (["federation.personal=heads"], "no such parameter; did you mean 'head'"),
        (["federation.personal=head,z"], "all parameters; expected some to be shared"),
    ],
)
def test_parameters_that_cannot_be_personal_are_refused(
    quick: Quick, federate: Federate, settings: list[str], expected: str
) -> None:
    where = [] if "only" in expected else ["federation.evaluation=clients"]
    with pytest.raises(UserError, match=expected):
        federate(quick(*settings, *where))
