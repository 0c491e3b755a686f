"""The reference of a downlink of steps: the vector that a client holds since its last training.

See ``server/downlink.py`` for the server's side.
"""

from __future__ import annotations

import numpy as np

from clients.data import LocalData
from clients.errors import ClientError
from clients.kept import keep, kept
from fedpeft.transfer import decode_step, size_step
from fedpeft.wire import formats, slopes
from fedpeft.wire.codecs import continues
from fedpeft.wire.messages import INITIAL_REFERENCE, REFERENCE_BYTES, next_reference


def has_reference(data: LocalData) -> bool:
    """Return whether the run's downlink continues from what clients hold."""
    return continues(data.runtime.experiment.wire.down)


def held(data: LocalData) -> bytes:
    """Return the name of the client's reference; without one, that of the initial vector."""
    return _read(data)[1] if has_reference(data) else INITIAL_REFERENCE


def follow(data: LocalData, number: int, payload: bytes, name: bytes) -> np.ndarray:
    """Return the vector [S] of a train message, and keep it as the new reference.

    Args:
        data: the client's.
        number: of the round.
        payload: the steps of the last rounds, or the vector. It is not trusted.
        name: of the vector.

    Raises:
        ClientError: the steps do not lead from the client's reference to the one with this name.
        ValueError: a step or the vector is malformed.
    """
    if len(name) != REFERENCE_BYTES:
        raise ClientError(f"the reference's name has {len(name)} bytes, expected {REFERENCE_BYTES}")
    if data.runtime.experiment.wire.down == slopes.DOWN:
        number -= 1  # the combined slopes of a round are sent in the next one
    dtype, size = data.runtime.parameters.numpy_dtype, int(data.runtime.parameters.shared.size)
    if len(payload) == size * formats.FORMATS[dtype]:
        vector = formats.decode(payload, dtype, size, dtype)
    else:
        reached, vector = _after_steps(data, number, payload)
        if reached != name:
            raise ClientError("the steps lead to another vector than the one the message names")
    arrays = {"vector": vector, "name": np.frombuffer(name, np.uint8)}
    keep(data, "reference", size, number, arrays)
    return vector


def _after_steps(data: LocalData, number: int, payload: bytes) -> tuple[bytes, np.ndarray]:
    """Return name and vector [S] of the reference after the steps that the client lacks."""
    last, name, vector = _read(data)
    length = size_step(data.runtime)
    steps = [payload[at : at + length] for at in range(0, len(payload), length)]
    if not number - len(steps) <= last <= number:
        raise ClientError(
            f"the message has the steps to round {number} from round {number - len(steps)}, "
            f"and this client is at round {last}"
        )
    for each in range(last + 1, number + 1):
        step = steps[each - number - 1]
        vector = decode_step(data.runtime, each, vector, step)
        name = next_reference(name, step)
    return name, vector


def _read(data: LocalData) -> tuple[int, bytes, np.ndarray]:
    """Return round, name and vector [S] of the reference."""
    parameters, rounds = data.runtime.parameters, data.runtime.experiment.federation.rounds
    last, arrays = kept(data, "reference", int(parameters.shared.size), rounds)
    if arrays:
        return last, arrays["name"].tobytes(), arrays["vector"]
    initial = parameters.initial_shared(data.runtime.experiment.seed)
    return 0, INITIAL_REFERENCE, initial
