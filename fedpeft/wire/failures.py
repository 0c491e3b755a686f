"""Failures of clients: a kind, on which the server decides, and a text, which only people read.

A client's error reply carries its kind as the code of Flower's ``Error``. fedpeft's own codes start
at 1001, apart from Flower's, which are small numbers (``flwr.common.constant.ErrorCode``). A code
that is not in ``CODES`` counts as ``FAILED``: a new or unknown error never lowers the privacy that
is assumed spent.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum


class FailureKind(Enum):
    """Why a client failed, as far as a decision depends on it; the value is for people.

    Attributes:
        SPENT: the client's privacy budget does not cover the round.
        UNCHARGED: an error before the round was charged to the client's privacy ledger, such as a
            refusal by the rules of its node.
        FAILED: any other error, among them those of training and of data.
        GONE: the node is no longer connected.
        DIED: the process that answers messages died.
        SILENT: no reply within the time limit.
        LATE: no reply before the round ended, see ``federation.deadline`` and ``over_selection``.
        LOST: the sum that contains the update could not be unmasked.
        INVALID: the server refused the reply.
    """

    SPENT = "budget spent"
    UNCHARGED = "uncharged"
    FAILED = "failed"
    GONE = "gone"
    DIED = "died"
    SILENT = "silent"
    LATE = "late"
    LOST = "lost"
    INVALID = "invalid"

    @classmethod
    def of_code(cls, code: int) -> FailureKind:
        """Return the kind of an error reply; codes come from outside and may be any number."""
        return _KINDS.get(code, cls.FAILED)

    @property
    def may_have_trained(self) -> bool:
        """Whether the client may have spent the privacy of the round."""
        return self not in (FailureKind.SPENT, FailureKind.UNCHARGED)


#: Codes of error replies. 2, 5 and 8 are Flower's: an exception in the ClientApp, a node that is
#: not connected, and a ClientApp that was silent for a minute. Kinds that only the server can
#: know have none, so no node can claim them.
CODES = {
    FailureKind.FAILED: 2,
    FailureKind.GONE: 5,
    FailureKind.DIED: 8,
    FailureKind.SPENT: 1001,
    FailureKind.UNCHARGED: 1002,
}
_KINDS = {code: kind for kind, code in CODES.items()}


@dataclass(frozen=True)
class Failure:
    """Why a client failed; ``text`` is one printable line for people."""

    kind: FailureKind
    text: str

    def __str__(self) -> str:
        return self.text

    def uncharged(self) -> Failure:
        """Return the failure of a client that nobody has asked to train yet.

        Silence remains, as silent clients are asked more rarely.
        """
        silent = self.kind is FailureKind.SILENT
        return self if silent else replace(self, kind=FailureKind.UNCHARGED)
