"""Parameters that stay at a client: personalization layers (Arivazhagan et al. 2019,
arXiv 1912.00818), or any other part of the task vector.

They are trained with the others and never sent. They are kept on disk, because a node starts a
process for each message. The values of the last two rounds are kept, so that a repeated round
starts from the same values.
"""

from __future__ import annotations

import numpy as np

from clients.data import LocalData
from fedpeft.errors import UserError
from fedpeft.files import keep_newest, write_atomic

_KEPT = 2  # rounds
_RUNS = 100  # files of one folder: a server could otherwise fill a node's disk with runs


def completed(data: LocalData, shared: np.ndarray, number: int) -> np.ndarray:
    """Return the whole task vector [P] of a client.

    Args:
        data: the client's.
        shared: the part that all clients share [S].
        number: of the round whose personal parameters to take; those of an earlier round if the
            client skipped it, and the initial ones before its first round.
    """
    parameters = data.runtime.parameters
    if not parameters.personal.any():
        return shared
    whole = parameters.initial(data.runtime.experiment.seed)
    whole[~parameters.personal] = shared
    kept = {key: values for key, values in _read(data).items() if key <= number}
    if kept:
        whole[parameters.personal] = kept[max(kept)]
    return whole


def keep(data: LocalData, number: int, vector: np.ndarray) -> None:
    """Keep the personal part of a task vector [P] that was trained in a round."""
    from safetensors.numpy import save

    personal = data.runtime.parameters.personal
    if not personal.any():
        return
    kept = {key: values for key, values in _read(data).items() if key < number}
    kept[number] = vector[personal]
    newest = sorted(kept)[-_KEPT:]
    data.personal.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_atomic(data.personal, save({str(key): kept[key] for key in newest}))
    if data.settings:  # a deployed node, whose folder has one file for each run
        keep_newest(data.personal.parent, _RUNS)


def _read(data: LocalData) -> dict[int, np.ndarray]:
    """Return the kept values by round."""
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    if not data.personal.exists():
        return {}
    size = int(data.runtime.parameters.personal.sum())
    try:
        kept = {int(key): values for key, values in load_file(data.personal).items()}
    except (SafetensorError, OSError, ValueError):
        kept = {0: np.zeros(0)}
    if any(values.shape != (size,) for values in kept.values()):
        raise UserError("the file of this client's personal parameters is damaged; remove it")
    return kept
