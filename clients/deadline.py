"""When a client stops training, so that what it has trained arrives before the deadline."""

from __future__ import annotations

from collections.abc import Sequence

from clients.assignment import Assignment
from fedpeft.simulated.devices import device_of
from fedpeft.training import Limit
from fedpeft.updates.transfer import size_up
from fedpeft.wire.framing import train_reply_bytes
from fedpeft.wire.messages import RECORD, Request, from_fields

#: Of the deadline: a real client trains no longer, the rest is for its messages.
_SHARE = 0.8


def limit_of(assignments: Sequence[Assignment]) -> Limit | None:
    """Return when the clients of one round stop, with ``federation.partial``; None = never."""
    experiment = assignments[0].experiment
    federation = experiment.federation
    if not federation.partial or federation.deadline is None:
        return None
    if not experiment.devices.step_seconds:
        return Limit(seconds=_SHARE * federation.deadline)
    return Limit([_steps(assignment, federation.deadline) for assignment in assignments])


def _steps(assignment: Assignment, deadline: float) -> int:
    """Return how many steps a simulated device makes until the deadline."""
    request = from_fields(Request, assignment.message.content.get(RECORD))
    received = train_reply_bytes(len(request.vector))
    sent = train_reply_bytes(size_up(assignment.runtime))
    device = device_of(assignment.experiment, assignment.client)
    return device.steps_within(deadline, received, sent)
