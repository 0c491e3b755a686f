"""Error replies of a client: the class of an error, and text only of types that hold no data.

Text is denied by default. ``SENDABLE`` lists the types whose text may leave the node; where the
error was raised plays no part. Data are read inside ``reading``, settings are checked inside
``checking_settings``.
"""

from __future__ import annotations

import logging
import re
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from flwr.app import Error, Message

from fedpeft.errors import UserError
from fedpeft.privacy.ledger import BudgetSpent, OtherLedger
from fedpeft.wire.failures import CODES, FailureKind

log = logging.getLogger(__name__)
WITHHELD = "this node cannot use its data here; its operator finds the reason in the node's log"
_LONGEST, _LONGEST_RULE = 200, 500  # characters sent of a message, and of a refusal
#: A path may contain blanks and apostrophes, so the pattern may hide more than the path.
_PATH = re.compile(r"'[^']*/.*'|(?<![\w.])/\S+(?: \S*/\S*)*")


class ClientError(Exception):
    """A message that this client cannot answer; the text holds no data and may be sent."""


class Refusal(UserError):
    """An experiment that the rules of this node forbid; the text names rules and settings only.

    It is sent to the server, so that the user who started the run can change the experiment.
    """


class SettingsError(Exception):
    """A ``UserError`` about the experiment's settings, with its text: the server sent them."""


class DataError(Exception):
    """An error in reading the client's data: its cause, whose text may quote rows."""


class Withheld(Exception):
    """An error that may depend on the rows of a node that limits its epsilon: its cause."""


#: Types whose text may be sent: about messages, rules, settings and ledgers, never about rows.
SENDABLE = (ClientError, Refusal, SettingsError, BudgetSpent, OtherLedger)
#: Types that ``charge`` and what comes before it raise only while nothing is charged. A second unit
#: may be refused (``BudgetSpent``) after the first was charged, which the server knows.
BEFORE_CHARGE = (ClientError, Refusal, SettingsError, DataError, OtherLedger, BudgetSpent)
_WRAPPERS = (SettingsError, DataError, Withheld)


def error_reply(error: BaseException, message: Message, charged: bool = True) -> Message:
    """Return the reply that reports ``error`` without any of the client's data.

    Sent to the server:
        The text of an error that is ``SENDABLE``, without paths of this machine. Of errors that
        are ``Withheld`` one constant text. Of all others only the class and the place in the code.

    Logged at this node:
        The text of all of fedpeft's errors, with paths; the class and place of any other error.

    Args:
        error: the exception.
        message: the message that is answered.
        charged: whether the privacy ledger may have been charged for the message.
    """
    cause = error
    while isinstance(cause, _WRAPPERS) and cause.__cause__:
        cause = cause.__cause__
    name, frames = type(cause).__name__, traceback.extract_tb(cause.__traceback__)
    place = name
    if frames:
        place += f" at {Path(frames[-1].filename).name}:{frames[-1].lineno}"
    logged = f"{name}: {cause}" if isinstance(cause, ClientError | UserError) else place
    reason = f"{name}: {error}" if isinstance(error, SENDABLE) else place
    reason = WITHHELD if isinstance(error, Withheld) else reason
    sent = "" if logged == reason else f" (sent to the server: {reason})"
    log.warning("%s%s", logged, sent, extra={"run": str(message.metadata.run_id)})
    longest = _LONGEST_RULE if isinstance(error, Refusal) else _LONGEST
    text = _PATH.sub("<path>", reason)[:longest].encode(errors="replace").decode()
    return Message(Error(code=CODES[_kind(error, charged)], reason=text), reply_to=message)


def _kind(error: BaseException, charged: bool) -> FailureKind:
    if isinstance(error, BudgetSpent):
        return FailureKind.SPENT
    # One code for all errors that are withheld: another one would tell when they occurred.
    return FailureKind.FAILED if charged or isinstance(error, Withheld) else FailureKind.UNCHARGED


def ends_process(error: BaseException) -> bool:
    """Return whether Flower raised this exception to end the process at SIGTERM.

    Any other exception becomes an error reply, including those that are not an ``Exception``, such
    as a panic in Rust code: they would end the process without a reply and could print data.
    """
    return isinstance(error, SystemExit) and isinstance(error.code, int)


@contextmanager
def checking_settings() -> Iterator[None]:
    """Raise a ``UserError`` as ``SettingsError``, so that the user who started the run reads it.

    Only for checks of the experiment that read no rows, other than inside ``reading``.
    """
    try:
        yield
    except SENDABLE:
        raise
    except UserError as error:
        raise SettingsError(str(error)) from error


@contextmanager
def reading(limited: bool) -> Iterator[None]:
    """Raise any exception as ``DataError``, or as ``Withheld`` if the node limits its epsilon.

    Every use of the client's rows that is not training stands inside.
    """
    with withheld(limited):
        try:
            yield
        except (DataError, Withheld):
            raise
        except BaseException as error:  # a panic in Rust code is no ``Exception``
            if ends_process(error):
                raise
            raise DataError from error


@contextmanager
def withheld(limited: bool) -> Iterator[None]:
    """Raise any error as ``Withheld`` if the node limits its epsilon.

    Errors that do not depend on rows remain: those of messages, rules and a spent budget.
    """
    try:
        yield
    except (BudgetSpent, ClientError, Refusal, Withheld):
        raise
    except BaseException as error:
        if not limited or ends_process(error):
            raise
        raise Withheld from error
