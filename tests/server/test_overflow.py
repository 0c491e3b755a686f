"""Huge but finite updates never leave a run that cannot continue."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from flwr.app import Message
from messaging import changed, vector_of
from safetensors.numpy import load_file

from fedpeft.errors import RunFailed, UserError
from fedpeft.experiment.config import Experiment
from fedpeft.runs.folder import RunFolder

Quick = Callable[..., Experiment]
Federate = Callable[..., RunFolder]


def sending(value: float, codec: str = "float32") -> Callable[[Message], Message]:
    """Return a spoiler that replaces all numbers of an update."""

    def spoil(reply: Message) -> Message:
        return changed(reply, v=np.full_like(vector_of(reply, codec), value).tobytes())

    return spoil


#: By default updates are clipped, and none of this can happen.
UNLIMITED = "federation.max_update_norm=0"


def last_round(folder: RunFolder) -> int:
    checkpoint = folder.checkpoint()
    return checkpoint.round if checkpoint else 0


def test_a_vector_that_its_codec_cannot_hold_is_not_stored(
    quick: Quick, federate: Federate
) -> None:
    """The mean of 65504 is 21835; with a learning rate of 4 the next vector is beyond float16."""
    settings = [
        "federation.strategy=fedavgm",
        "federation.server_lr=4",
        "wire.up=float16",
        "wire.down=float16",
        UNLIMITED,
    ]
    experiment = quick(*settings, "federation.rounds=3")
    whole = federate(experiment, out="whole")
    with pytest.raises(RunFailed, match=r"^round 2: 82 of 82 numbers .* float16.*max_update_norm"):
        federate(experiment, sending(65504, "float16"), client=1, rounds=[2])
    resumed = federate(experiment, resume=True)
    vectors = [load_file(each.path / "vector.safetensors")["vector"] for each in (whole, resumed)]
    assert vectors[0].tobytes() == vectors[1].tobytes()


@pytest.mark.parametrize("strategy", ["fedadam", "fedyogi", "fedadagrad"])
def test_a_memory_of_a_strategy_that_is_infinite_is_not_stored(
    quick: Quick, federate: Federate, strategy: str
) -> None:
    """The square of 1e38 is beyond float32, although the vector is not."""
    experiment = quick(f"federation.strategy={strategy}", "federation.rounds=3", UNLIMITED)
    with pytest.raises(RunFailed, match=r"^round 2: 82 of 82 numbers .*max_update_norm"):
        federate(experiment, sending(3.4e38), client=1, rounds=[2])
    assert last_round(federate(experiment, resume=True)) == 3


def test_an_update_that_the_engine_cannot_hold_is_refused(quick: Quick, federate: Federate) -> None:
    folder = federate(quick("wire.up=float64"), sending(1e300, "float64"), client=1, rounds=[1])
    first, second = folder.rounds()
    [failed] = first["failed"]
    assert failed["client"] == 1
    assert "82 of 82 numbers are NaN or infinite" in failed["reason"]
    assert second["clients"] == 3


def test_a_run_spoiled_by_an_accepted_update_continues_from_the_round_before(
    quick: Quick, federate: Federate
) -> None:
    experiment = quick("federation.rounds=4", UNLIMITED)
    whole = federate(experiment, out="whole")
    for resume in (False, True):
        with pytest.raises(RunFailed, match="round 3: 0 of 3 clients succeeded"):
            federate(experiment, sending(3.4e38), client=1, rounds=[2], resume=resume)
    folder = RunFolder(whole.path.with_name("run"))
    assert [line["round"] for line in folder.rounds()] == [1, 2]
    with pytest.raises(UserError, match=r"--from-round 3: .* keeps the state after rounds 1 and 2"):
        folder.rewind(3)
    folder.rewind(1)
    assert [line["round"] for line in folder.rounds()] == [1]
    resumed = federate(experiment, resume=True)
    assert [line["round"] for line in resumed.rounds()] == [1, 2, 3, 4]
    vectors = [load_file(each.path / "vector.safetensors")["vector"] for each in (whole, resumed)]
    assert vectors[0].tobytes() == vectors[1].tobytes()
