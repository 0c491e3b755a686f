"""Vectors that a client keeps between rounds, on disk: a node starts a process for each message.

- ``personal``: parameters that stay at the client, personalization layers (Arivazhagan et al. 2019,
  arXiv 1912.00818) or any other part of the task vector. They are trained with the others and never
  sent.
- ``unsent``: what ``topk`` left out of the client's changes so far.
- ``reference``: the vector that a downlink of steps continues from, see
  ``clients/memory/reference.py``.
- ``start``: the head that the run starts from, if the seed does not give it.

Those of the last two rounds are kept, so that a repeated round starts from the same values.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from clients.data.client_data import LocalData
from clients.errors import ClientError
from fedpeft.files import PRIVATE, keep_newest, write_together

What = Literal["personal", "unsent", "reference", "start"]
Arrays = dict[str, np.ndarray]

_KEPT = 2  # rounds
_RUNS = 100  # files of one folder: a server could otherwise fill a node's disk with runs


def kept(data: LocalData, what: What, size: int, number: int) -> tuple[int, Arrays]:
    """Return the vectors of the last round up to ``number``, and that round; 0 if there is none.

    Args:
        data: the client's.
        what: which vectors.
        size: length of the array "vector", which is checked.
        number: of a round.

    Raises:
        ClientError: the file is damaged.
    """
    rounds = _read(data, what, size)
    last = max((each for each in rounds if each <= number), default=0)
    return last, rounds.get(last, {})


def keep(data: LocalData, what: What, size: int, number: int, arrays: Arrays) -> None:
    """Keep vectors of round ``number``, in place of those of that round and of later ones."""
    from safetensors.numpy import save

    rounds = {each: value for each, value in _read(data, what, size).items() if each < number}
    rounds[number] = arrays
    content = {
        f"{each}/{name}": array
        for each in sorted(rounds)[-_KEPT:]
        for name, array in rounds[each].items()
    }
    path = data.kept(what)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_together({path: (save(content), PRIVATE)}, replace=True)
    if data.settings:  # a deployed node, whose folder has one file for each run
        keep_newest(path.parent, _RUNS)


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
    _, arrays = kept(data, "personal", int(parameters.personal.sum()), number)
    if arrays:
        whole[parameters.personal] = arrays["vector"]
    return whole


def keep_personal(data: LocalData, number: int, vector: np.ndarray) -> None:
    """Keep the personal part of a task vector [P] that was trained in a round."""
    personal = data.runtime.parameters.personal
    if personal.any():
        keep(data, "personal", int(personal.sum()), number, {"vector": vector[personal]})


def _read(data: LocalData, what: What, size: int) -> dict[int, Arrays]:
    """Return the kept arrays by round."""
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    path = data.kept(what)
    rounds: dict[int, Arrays] = {}
    if not path.exists():
        return rounds
    try:
        for key, array in load_file(path).items():
            number, name = key.split("/")
            rounds.setdefault(int(number), {})[name] = array
        if all(arrays["vector"].shape == (size,) for arrays in rounds.values()):
            return rounds
    except (SafetensorError, OSError, ValueError, KeyError):
        pass
    raise ClientError(f"the file of this client's {what} vector is damaged; remove it")
