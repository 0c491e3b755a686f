"""Error replies of a client: the class of an error, and no text that may quote data."""

from __future__ import annotations

import logging
import re
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from flwr.app import Error, Message

from fedpeft.errors import UserError
from fedpeft.privacy.ledger import BudgetSpent

log = logging.getLogger(__name__)
CLIENT_EXCEPTION = 2  # Flower's code for an exception in a ClientApp
WITHHELD = "this node cannot use its data here; its operator finds the reason in the node's log"
_LONGEST, _LONGEST_RULE = 200, 500  # characters sent of a message, and of a refusal
#: A path may contain blanks and apostrophes, so the pattern may hide more than the path.
_PATH = re.compile(r"'[^']*/.*'|(?<![\w.])/\S+(?: \S*/\S*)*")


def error_reply(error: BaseException, message: Message) -> Message:
    """Return the reply that reports ``error`` without any of the client's data.

    Sent to the server:
        The text of fedpeft's errors, which holds no data, without paths of this machine. Of errors
        in reading a task's files, whose text names the invalid value, and of all other errors only
        the class and the place in the code. Of errors that are ``Withheld`` one constant text.

    Logged at this node:
        The text of all of fedpeft's errors, with paths; the class and place of any other error.
    """
    withheld_from_server = isinstance(error, Withheld)
    if withheld_from_server and error.__cause__:
        error = error.__cause__
    name = type(error).__name__
    files = [
        (Path(frame.filename), frame.lineno) for frame in traceback.extract_tb(error.__traceback__)
    ]
    place = f"{files[-1][0].name}:{files[-1][1]}"
    reading = any(file.parent.name == "tasks" for file, _ in files)
    safe = isinstance(error, ClientError | UserError)
    logged = f"{name}: {error}" if safe else f"{name} at {place}"
    reason = f"{name} at {place}" if reading else logged
    reason = WITHHELD if withheld_from_server else reason
    sent = "" if logged == reason else f" (sent to the server: {reason})"
    log.warning("%s%s", logged, sent, extra={"run": str(message.metadata.run_id)})
    longest = _LONGEST_RULE if isinstance(error, Refusal) else _LONGEST
    code = BudgetSpent.CODE if isinstance(error, BudgetSpent) else CLIENT_EXCEPTION
    text = _PATH.sub("<path>", reason)[:longest].encode(errors="replace").decode()
    return Message(Error(code=code, reason=text), reply_to=message)


def ends_process(error: BaseException) -> bool:
    """Return whether Flower raised this exception to end the process at SIGTERM.

    Any other exception becomes an error reply, including those that are not an ``Exception``, such
    as a panic in Rust code: they would end the process without a reply and could print data.
    """
    return isinstance(error, SystemExit) and isinstance(error.code, int)


class ClientError(Exception):
    """A message that this client cannot answer; the text holds no data and may be sent."""


class Refusal(UserError):
    """An experiment that the rules of this node forbid; the text names rules and settings only.

    It is sent to the server, so that the user who started the run can change the experiment.
    """


class Withheld(Exception):
    """An error that may depend on the rows of a node that limits its epsilon: its cause."""


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
