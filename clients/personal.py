"""The parameters that stay at a client: personalisation layers (Arivazhagan et al. 2019,
arXiv 1912.00818), or any other part of the task vector.

They are trained with the rest and never sent. On disk, because they must outlive any process; the
values of the last two rounds are kept, so that a round that is done again begins where it did.
"""

from __future__ import annotations

import numpy as np

from clients.data import LocalData
from fedpeft.errors import UserError
from fedpeft.files import write_atomic

_KEPT = 2  # rounds


def completed(data: LocalData, shared: np.ndarray, round: int) -> np.ndarray:
    """Return the whole task vector [P] of a client.

    Args:
        data: the client's.
        shared: what all clients share [S].
        round: whose personal parameters to take; of an earlier one if it took no part in that,
            and the initial ones before its first.
    """
    ours = data.runtime.trainable
    if not ours.personal.any():
        return shared
    whole = ours.initial(data.runtime.experiment.seed)
    whole[~ours.personal] = shared
    kept = {number: own for number, own in _read(data).items() if number <= round}
    if kept:
        whole[ours.personal] = kept[max(kept)]
    return whole


def keep(data: LocalData, round: int, vector: np.ndarray) -> None:
    """Keep the personal part of a task vector [P] that was trained in a round."""
    from safetensors.numpy import save

    personal = data.runtime.trainable.personal
    if not personal.any():
        return
    kept = {number: own for number, own in _read(data).items() if number < round}
    kept[round] = vector[personal]
    newest = sorted(kept)[-_KEPT:]
    data.personal.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_atomic(data.personal, save({str(number): kept[number] for number in newest}))


def _read(data: LocalData) -> dict[int, np.ndarray]:
    """Return what is kept, by round."""
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    if not data.personal.exists():
        return {}
    try:
        found = {int(number): own for number, own in load_file(data.personal).items()}
    except (SafetensorError, OSError, ValueError):
        found = {0: np.zeros(0)}
    size = int(data.runtime.trainable.personal.sum())
    if any(own.shape != (size,) for own in found.values()):
        raise UserError("the file of this client's personal parameters is damaged; remove it")
    return found
