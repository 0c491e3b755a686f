"""The checkpoints of a run: the states after its last two rounds.

The last one decides which round is the last. If no round can succeed from there, because a client
poisoned the vector, the run can continue from the one before.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fedpeft.errors import RunFailed, UserError
from fedpeft.files import sync, write_atomic

if TYPE_CHECKING:
    from fedpeft.runtime import Runtime

CHECKPOINT = "checkpoint.safetensors"
PREVIOUS = "checkpoint.previous.safetensors"
#: Name of the numbers of a head that started from sums.
START = "start.head"
#: Name of the virtual second at which a start was made.
NOW = "start.now"
#: Name of the noise of past rounds: whoever knows it can remove it from later task vectors.
PAST = "privacy.past"


@dataclass
class Checkpoint:
    """The stored state of a run.

    Attributes:
        round: number of rounds done.
        vector: the task vector [P].
        memory: arrays that strategy, reported privacy steps, adaptive clip and correlated noise
            need, by name.
        seconds: duration of all rounds.
    """

    round: int
    vector: np.ndarray
    memory: dict[str, np.ndarray] = field(default_factory=dict)
    seconds: float = 0.0


def check_finite(
    runtime: Runtime, number: int, vector: np.ndarray, memory: Mapping[str, np.ndarray]
) -> None:
    """Check a state before it becomes the checkpoint: no round could succeed from a NaN.

    Args:
        runtime: of the run.
        number: of the round that made the state; 0 = the start.
        vector: the task vector [P].
        memory: arrays of the checkpoint.

    Raises:
        RunFailed: the task vector [P] as sent, or the strategy's memory, is not finite.
    """
    from fedpeft.updates.transfer import (  # torch: readers of a folder need none
        decode_down,
        encode_down,
    )

    advice = "federation.max_update_norm limits what a client can add"
    if not number:
        advice = "the features or labels of a client are very large; choose another wire.down"
    try:
        head = memory.get(START)
        code = encode_down(runtime, number, vector, head=head)
        decode_down(runtime, number, code, head=head)
    except ValueError as error:
        codec = runtime.experiment.wire.down
        raise RunFailed(
            f"round {number}: {error} in the aggregated vector, as {codec}; {advice}"
        ) from None
    bad = max((np.count_nonzero(~np.isfinite(array)) for array in memory.values()), default=0)
    if bad:
        raise RunFailed(
            f"round {number}: {bad} of {vector.size} numbers of the strategy's memory are NaN or "
            f"infinite; {advice}"
        )


def last_checkpoint(folder: Path) -> Path | None:
    """Return the path of the last checkpoint, or None before the first round."""
    # A crash in write_checkpoint may leave only the previous one.
    paths = (folder / name for name in (CHECKPOINT, PREVIOUS))
    return next((path for path in paths if path.exists()), None)


def write_checkpoint(folder: Path, state: Checkpoint, settings: str) -> None:
    """Store a state and keep the one before; a crash at any moment leaves a complete one.

    Only the user can read a state with noise.

    Args:
        folder: of the run.
        state: the state.
        settings: the run's experiment as TOML.
    """
    from safetensors.numpy import save

    progress = {"round": state.round, "seconds": state.seconds, "experiment": settings}
    data = save({"vector": state.vector, **state.memory}, {"state": json.dumps(progress)})
    if (folder / CHECKPOINT).exists():
        os.replace(folder / CHECKPOINT, folder / PREVIOUS)
    write_atomic(folder / CHECKPOINT, data, 0o600 if PAST in state.memory else None)


def read_checkpoint(path: Path) -> tuple[Checkpoint, str]:
    """Return a stored state and the experiment of its run as TOML.

    Raises:
        UserError: the file cannot be read.
    """
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="numpy") as file:
            meta = json.loads(file.metadata()["state"])
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        vector = arrays.pop("vector")
        return Checkpoint(meta["round"], vector, arrays, meta["seconds"]), meta["experiment"]
    except (SafetensorError, KeyError, TypeError, ValueError) as error:
        raise UserError(f"'{path}' is damaged ({error}); {_way_out(path)}") from None


def _way_out(damaged: Path) -> str:
    """Return what to do without a checkpoint: continue from the one before, if that is whole."""
    if damaged.name == CHECKPOINT:
        with suppress(UserError, OSError):
            number = read_checkpoint(damaged.with_name(PREVIOUS))[0].round
            return f"--resume --from-round {number} continues after round {number}"
    return "start again in another --out"


def rewind(folder: Path, number: int) -> None:
    """Make the checkpoint after round ``number`` the last one.

    Raises:
        UserError: it is not kept.
    """
    kept: dict[int, str] = {}
    for name in (PREVIOUS, CHECKPOINT):
        with suppress(UserError, OSError):
            kept[read_checkpoint(folder / name)[0].round] = name
    if number not in kept:
        rounds = " and ".join(str(each) for each in sorted(kept))
        which = f"after round{'s' * (len(kept) > 1)} {rounds}" if kept else "after no round"
        raise UserError(f"--from-round {number}: '{folder}' keeps the state {which} only")
    if kept[number] == PREVIOUS:
        os.replace(folder / PREVIOUS, folder / CHECKPOINT)
        sync(folder)
