"""The downlink of training: the server's vector, or the steps since a client's last round.

With a ``delta`` downlink all clients that took part in the last round hold the same *reference*,
and get one step from there, see ``fedpeft.updates.transfer``. The first reference is
the origin, the vector that the run starts from. The server keeps the last steps, as many as
are shorter than a vector: a client that missed rounds gets all steps since its reference, or the
whole vector if that is shorter. A reference is named by a digest of all steps to it. A client names
the one it holds in the handshake; after that, it holds the one of the last round it answered.

With a ``scalars`` downlink, the step of a round is the combined slopes of its clients, which the
next round sends. The server takes the step itself, so the reference is its vector.

All of it is part of the checkpoint, so a run that continues sends the same steps.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from fedpeft.runs.checkpoints import START
from fedpeft.runtime import Runtime
from fedpeft.updates.transfer import (
    decode_down,
    decode_step,
    encode_down,
    encode_slopes,
    encode_step,
    origin_of,
    refers_to_origin,
)
from fedpeft.wire import formats, slopes
from fedpeft.wire.codecs import continues
from fedpeft.wire.messages import INITIAL_REFERENCE, next_reference

_VECTOR, _STEPS, _NAMES = "reference", "reference_steps", "reference_names"
_NEXT = "next_step"  # combined slopes, encoded


@dataclass(frozen=True)
class Broadcast:
    """The task vector of a round as it is sent.

    Attributes:
        received: the vector [S] as clients decode it.
        whole: its bytes for a client of which nothing is known.
        steps: the last steps, oldest first.
        names: of the references before the first step and after each; none if clients hold none.
        prefix: what is sent to clients that hold only a prefix of z, if there are any.
    """

    received: np.ndarray
    whole: bytes
    steps: list[bytes] = field(default_factory=list)
    names: list[bytes] = field(default_factory=list)
    prefix: Broadcast | None = None

    def to(self, *, small: bool) -> Broadcast:
        """Return what is sent to clients that hold only a prefix of z, or to the others."""
        return self.prefix if small and self.prefix else self

    @property
    def name(self) -> bytes:
        """Name of the reference that a client holds after this round; empty if it holds none."""
        return self.names[-1] if self.names else b""

    def payload(self, held: bytes) -> bytes:
        """Return the bytes for a client that holds the reference with this name."""
        if held not in self.names:
            return self.whole
        steps = b"".join(self.steps[self.names.index(held) :])
        return min(self.whole, steps, key=len)  # equal lengths: clients take it for the vector

    def memory(self) -> dict[str, np.ndarray]:
        """Return the arrays that the next round needs."""
        if not self.steps:
            return {}
        return {_VECTOR: self.received, _STEPS: _rows(self.steps), _NAMES: _rows(self.names)}


def broadcast(
    runtime: Runtime, memory: Mapping[str, np.ndarray], number: int, vector: np.ndarray
) -> Broadcast:
    """Return what to send in round ``number``.

    Args:
        runtime: of the run.
        memory: arrays of the checkpoint, among them those of the last broadcast.
        number: of the round, from 1.
        vector: the server's task vector [S].
    """
    codec = runtime.experiment.wire.down
    if not continues(codec):
        head, nested = memory.get(START), runtime.experiment.nested.d
        prefix = _vector(runtime, number, vector, True, head) if nested else None
        return replace(_vector(runtime, number, vector, False, head), prefix=prefix)
    steps, names = [], [INITIAL_REFERENCE]
    reference = origin_of(runtime, memory.get(START))
    if _VECTOR in memory:
        reference = memory[_VECTOR]
        steps = [step.tobytes() for step in memory[_STEPS]]
        names = [name.tobytes() for name in memory[_NAMES]]
    if codec == slopes.DOWN and _NEXT not in memory:  # the first round
        return Broadcast(vector, formats.encode(vector, str(vector.dtype)), steps, names)
    if codec == slopes.DOWN:
        received, step = vector, memory[_NEXT].tobytes()
    else:
        step = encode_step(runtime, number, vector, reference)
        received = decode_step(runtime, number, reference, step)
    name = next_reference(names[-1], step)
    whole = formats.encode(received, str(received.dtype))
    kept = max(1, (len(whole) - 1) // len(step))  # more steps would be longer than the vector
    return Broadcast(received, whole, [*steps, step][-kept:], [*names, name][-kept - 1 :])


def _vector(
    runtime: Runtime, number: int, vector: np.ndarray, small: bool, head: np.ndarray | None
) -> Broadcast:
    whole = encode_down(runtime, number, vector, small, head)
    return Broadcast(decode_down(runtime, number, whole, small, head), whole)


def start_of(runtime: Runtime, memory: Mapping[str, np.ndarray]) -> bytes:
    """Return the bytes of the head that a run starts from, if clients need them; else b""."""
    if START not in memory or not refers_to_origin(runtime):
        return b""
    return formats.encode(memory[START], str(memory[START].dtype))


def take_slopes(
    runtime: Runtime, number: int, vector: np.ndarray, combined: np.ndarray
) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Return the vector [S] after the steps of combined slopes, and what the next round sends.

    Args:
        runtime: of the run.
        number: of the round, from 1.
        vector: the vector [S] before the steps.
        combined: slopes [local.steps, local.perturbations].

    Raises:
        ValueError: a slope, or a number of the vector, is not finite.
    """
    step = encode_slopes(runtime, combined)
    return decode_step(runtime, number, vector, step), {_NEXT: np.frombuffer(step, np.uint8)}


def _rows(parts: list[bytes]) -> np.ndarray:
    """Return parts of equal length as rows, uint8."""
    return np.frombuffer(b"".join(parts), np.uint8).reshape(len(parts), -1)
