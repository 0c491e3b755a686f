"""What the server sends to train in a round, to clients that missed some rounds and to others.

With a ``delta`` downlink all clients that took part in the last round hold the same *reference*,
and get one step from there, see ``fedpeft.transfer``. The server keeps the last steps, as many as
are shorter than a vector: a client that missed rounds gets all steps since its reference, or the
whole vector if that is shorter. A reference is named by a digest of all steps to it. A client names
the one it holds in the handshake; after that, it holds the one of the last round it answered.

All of it is part of the checkpoint, so a run that continues sends the same steps.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from fedpeft.runtime import Runtime
from fedpeft.transfer import decode_down, decode_step, encode_down, encode_step
from fedpeft.wire import formats
from fedpeft.wire.codecs import rate_of
from fedpeft.wire.messages import INITIAL_REFERENCE, next_reference

_VECTOR, _STEPS, _NAMES = "reference", "reference_steps", "reference_names"


@dataclass(frozen=True)
class Broadcast:
    """The task vector of a round as it is sent.

    Attributes:
        received: the vector [S] as clients decode it.
        whole: its bytes for a client of which nothing is known.
        steps: the last steps, oldest first; none without a ``delta`` downlink.
        names: of the references before the first step and after each; without steps, one.
    """

    received: np.ndarray
    whole: bytes
    steps: list[bytes] = field(default_factory=list)
    names: list[bytes] = field(default_factory=lambda: [b""])

    @property
    def name(self) -> bytes:
        """Name of the reference that a client holds after this round; empty if it holds none."""
        return self.names[-1]

    def payload(self, held: bytes) -> bytes:
        """Return the bytes for a client that holds the reference with this name."""
        if not self.steps or held not in self.names:
            return self.whole
        return b"".join(self.steps[self.names.index(held) :])

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
    if rate_of(runtime.experiment.wire.down, "delta") is None:
        whole = encode_down(runtime, number, vector)
        return Broadcast(decode_down(runtime, number, whole), whole)
    steps, names = [], [INITIAL_REFERENCE]
    reference = runtime.parameters.initial_shared(runtime.experiment.seed)
    if _VECTOR in memory:
        reference = memory[_VECTOR]
        steps = [step.tobytes() for step in memory[_STEPS]]
        names = [name.tobytes() for name in memory[_NAMES]]
    step = encode_step(runtime, number, vector, reference)
    received = decode_step(runtime, number, reference, step)
    name = next_reference(names[-1], step)
    whole = formats.encode(received, str(received.dtype))
    kept = max(1, (len(whole) - 1) // len(step))  # more steps would be longer than the vector
    return Broadcast(received, whole, [*steps, step][-kept:], [*names, name][-kept - 1 :])


def _rows(parts: list[bytes]) -> np.ndarray:
    """Return parts of equal length as rows, uint8."""
    return np.frombuffer(b"".join(parts), np.uint8).reshape(len(parts), -1)
