"""One train or evaluate message, checked against the experiment of the handshake."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from flwr.app import Context, Message, MessageType

from clients.data.client_data import LocalData
from clients.data.rules import require_sums
from clients.errors import ClientError
from clients.memory.experiment import recall
from clients.memory.kept import completed, keep, kept
from clients.memory.reference import follow, has_reference, start_head
from clients.secure.masking import Masking
from fedpeft.experiment.config import Experiment
from fedpeft.nested import is_small
from fedpeft.privacy.ledger import Attempt
from fedpeft.privacy.noise import KeptNoise, SeededNoise, Words
from fedpeft.profiling import phase
from fedpeft.randomness import generator
from fedpeft.runtime import Runtime
from fedpeft.updates import sums
from fedpeft.updates.transfer import decode_down, decode_up, encode_up
from fedpeft.wire.codecs import rate_of
from fedpeft.wire.messages import RECORD, Request, from_fields


@dataclass(frozen=True)
class Masked:
    """How one update becomes part of a sum.

    Attributes:
        masking: among the checked members of the round.
        clip_norm: at which the update is clipped.
        share: weight of the client, relative to the largest of the round.
    """

    masking: Masking
    clip_norm: float
    share: float

    @classmethod
    def read(cls, data: LocalData, request: Request) -> Masked:
        """Check what a request says about the sum.

        Raises:
            ClientError: see ``Masking``; or a clip norm or weight out of range.
        """
        experiment = data.runtime.experiment
        weight = float(data.examples) if experiment.federation.weighting == "examples" else 1.0
        if not (0 < request.clip_norm < np.inf and weight <= request.max_weight < np.inf):
            raise ClientError("the clip norm or the largest weight of the sum is out of range")
        clip = experiment.privacy.client_clip
        if experiment.privacy.distributed and (request.clip_norm, request.max_weight) != (clip, 1):
            raise ClientError(
                f"the clip norm or the largest weight of the sum is not that of its privacy; "
                f"expected privacy.client_clip = {clip:g} and 1"
            )
        work = request.vector, request.clip_norm, request.max_weight
        with phase("masking"):
            masking = Masking(data, request.round, request.members, request.sealed, work)
        return cls(masking, request.clip_norm, weight / request.max_weight)

    def encode(self, assignment: Assignment, change: np.ndarray, loss: float) -> bytes:
        """Return the masked change [S] of the trained vector, with its facts."""
        experiment, number = assignment.experiment, assignment.round
        bits, client = sums.width(experiment, self.masking.clients, len(change)), assignment.client
        norm, share, noise = self.clip_norm, self.share, self._noise(assignment)
        with phase("masking"):
            levels, facts = sums.encoded(
                experiment, number, client, change, loss, norm, share, noise
            )
            return self.masking.mask(levels, facts, bits)

    def _noise(self, assignment: Assignment) -> Words | None:
        """Return the client's noise for the sum; None without.

        It follows from the secrets of the round, so a repeated request gets the same noise: the
        difference of two replies would otherwise have only the noise's difference.
        """
        experiment, number = assignment.experiment, assignment.round
        if not experiment.privacy.distributed:
            return None
        if experiment.privacy.reproducible:
            draw = generator(experiment.seed, "client-noise", number, assignment.client)
            return SeededNoise(draw)
        return KeptNoise(self.masking.noise_seed)


def _received(data: LocalData, request: Request, trains: bool) -> np.ndarray:
    """Return the shared part [S] of the task vector that a request asks to train or evaluate."""
    number, head = request.round, start_head(data, request.start)
    if trains and has_reference(data):
        return follow(data, number, request.vector, request.reference, head)
    small = is_small(data.runtime.experiment, data.client)
    return decode_down(data.runtime, number, request.vector, small, head)


@dataclass(frozen=True)
class Assignment:
    """The work that one message asks of one client.

    Attributes:
        message: as it arrived.
        data: the client's data.
        round: number of the round; 0 asks for the moments of the client's features.
        start: task vector [P], with the client's personal parameters.
        attempt: the training at a deployed node, which may be repeated; None in a simulation.
        masking: how the update is masked, if only sums of updates may be known.
    """

    message: Message
    data: LocalData
    round: int
    start: np.ndarray
    attempt: Attempt | None = None
    masking: Masked | None = None

    @classmethod
    def read(cls, message: Message, context: Context, attempt: Attempt | None = None) -> Assignment:
        """Check a message against the experiment kept at the handshake.

        Raises:
            ClientError: no handshake came before, the message belongs to another experiment, or its
                round is not one of the run.
        """
        request = from_fields(Request, message.content.get(RECORD))
        data = recall(context, request.label)
        number, trains = request.round, message.metadata.message_type == MessageType.TRAIN
        experiment = data.runtime.experiment
        first, rounds = trains and experiment.head.start != "sums", experiment.federation.rounds
        if not first <= number <= rounds:
            raise ClientError(f"round {number}: expected {int(first)} to {rounds}")
        if trains and not number:
            require_sums(data)
            return cls(message, data, 0, data.runtime.parameters.initial(experiment.seed), attempt)
        shared = _received(data, request, trains)
        start = completed(data, shared, number - 1 if trains else number)
        masking = None
        if trains and experiment.federation.secure:
            masking = Masked.read(data, request)
        return cls(message, data, number, start, attempt, masking)

    @property
    def runtime(self) -> Runtime:
        """Runtime of the experiment."""
        return self.data.runtime

    @property
    def experiment(self) -> Experiment:
        """All settings."""
        return self.data.runtime.experiment

    @property
    def client(self) -> int:
        """Number of the client."""
        return self.data.client

    def encode(self, shared: np.ndarray, slopes: np.ndarray, loss: float) -> bytes:
        """Return the bytes of the shared part [S] of the trained vector, for the reply.

        ``slopes`` are those of the client's steps, see ``CohortResult``; ``loss`` is the one of its
        training, which only a sum contains. What ``topk`` leaves out
        is kept, and added to the change of the client's next round.
        """
        start = self.start[~self.runtime.parameters.personal]
        if self.masking:
            hidden = 0.0 if self.experiment.privacy.unit != "none" else loss
            return self.masking.encode(self, np.subtract(shared, start, dtype=np.float64), hidden)
        if rate_of(self.experiment.wire.up, "topk") is None:
            return encode_up(self.runtime, self.round, self.client, start, shared, slopes)
        _, arrays = kept(self.data, "unsent", len(start), self.round - 1)
        whole = shared + arrays["vector"] if arrays else shared
        code = encode_up(self.runtime, self.round, self.client, start, whole)
        unsent = whole - decode_up(self.runtime, self.round, self.client, start, code)
        keep(self.data, "unsent", len(start), self.round, {"vector": unsent})
        return code
