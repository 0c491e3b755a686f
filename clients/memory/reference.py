"""Vectors that messages refer to: the origin of the run, and the reference of a downlink of steps.

The origin is the vector that the run starts from. Its head may come from sums over the clients;
each client then gets it once. The reference is the vector that a client holds since its last
training. See ``server/exchange/downlink.py`` for the server's side.
"""

from __future__ import annotations

import numpy as np

from clients.data.client_data import LocalData
from clients.errors import ClientError
from clients.memory.kept import keep, kept
from fedpeft.updates.transfer import decode_step, origin_of, size_step
from fedpeft.wire import formats, slopes
from fedpeft.wire.codecs import continues
from fedpeft.wire.messages import (
    INITIAL_REFERENCE,
    REFERENCE_BYTES,
    next_reference,
    start_name,
)


def has_reference(data: LocalData) -> bool:
    """Return whether the run's downlink continues from what clients hold."""
    return continues(data.runtime.experiment.wire.down)


def held(data: LocalData) -> bytes:
    """Return the name of the client's reference; without one, that of the origin."""
    return _read(data, None)[1] if has_reference(data) else INITIAL_REFERENCE


def held_start(data: LocalData) -> bytes:
    """Return the name of the start that the client holds; b"" if it holds none."""
    return start_name(_start(data))


def start_head(data: LocalData, sent: bytes) -> np.ndarray | None:
    """Return the head that the run starts from, and keep it; None if the seed gives it.

    Args:
        data: the client's.
        sent: its name, and its numbers if the server thinks that the client does not hold it. They
            are not trusted.

    Raises:
        ClientError: the head is not the one with this name.
        ValueError: it is malformed.
    """
    if not sent:
        return None
    name, code = sent[:REFERENCE_BYTES], sent[REFERENCE_BYTES:]
    code = code or _start(data)
    if start_name(code) != name:
        raise ClientError("the start of this run is not the one that the message names")
    parameters = data.runtime.parameters
    dtype, size = parameters.numpy_dtype, parameters.shared.head_size
    head = formats.decode(code, dtype, size, dtype)
    if sent[REFERENCE_BYTES:]:
        keep(data, "start", size, 0, {"vector": head})
    return head


def _start(data: LocalData) -> bytes:
    """Return the bytes of the start's head that the client holds; b"" if it holds none."""
    parameters = data.runtime.parameters
    _, arrays = kept(data, "start", parameters.shared.head_size, 0)
    return formats.encode(arrays["vector"], parameters.numpy_dtype) if arrays else b""


def follow(
    data: LocalData, number: int, payload: bytes, name: bytes, head: np.ndarray | None
) -> np.ndarray:
    """Return the vector [S] of a train message, and keep it as the new reference.

    Args:
        data: the client's.
        number: of the round.
        payload: the steps of the last rounds, or the vector. It is not trusted.
        name: of the vector.
        head: that the run starts from, see ``start_head``.

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
        reached, vector = _after_steps(data, number, payload, head)
        if reached != name:
            raise ClientError("the steps lead to another vector than the one the message names")
    arrays = {"vector": vector, "name": np.frombuffer(name, np.uint8)}
    keep(data, "reference", size, number, arrays)
    return vector


def _after_steps(
    data: LocalData, number: int, payload: bytes, head: np.ndarray | None
) -> tuple[bytes, np.ndarray]:
    """Return name and vector [S] of the reference after the steps that the client lacks."""
    last, name, vector = _read(data, head)
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


def _read(data: LocalData, head: np.ndarray | None) -> tuple[int, bytes, np.ndarray]:
    """Return round, name and vector [S] of the reference; at first, it is the origin."""
    parameters, rounds = data.runtime.parameters, data.runtime.experiment.federation.rounds
    last, arrays = kept(data, "reference", int(parameters.shared.size), rounds)
    if arrays:
        return last, arrays["name"].tobytes(), arrays["vector"]
    return 0, INITIAL_REFERENCE, origin_of(data.runtime, head)
