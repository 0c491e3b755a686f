"""What a client tells the server of an error: its class, and only words that are ours."""

from __future__ import annotations

import logging
import re
import traceback
from pathlib import Path

from flwr.app import Error, Message

from fedpeft.errors import UserError
from fedpeft.privacy.ledger import BudgetSpent

log = logging.getLogger(__name__)
CLIENT_EXCEPTION = 2  # Flower's code for an exception in a ClientApp
_LONGEST, _LONGEST_RULE = 200, 500  # characters of a message, and of a refusal, that travel
#: A path may hold blanks and apostrophes; rather too much of a line is hidden than too little.
_PATH = re.compile(r"'[^']*/.*'|(?<![\w.])/\S+(?: \S*/\S*)*")


def error_reply(error: BaseException, message: Message) -> Message:
    """Return the reply that reports ``error`` without anything of the client's data.

    The text of our own errors is written to hold none, but for those of reading a task's files,
    which name the value at fault: it stands in this node's own log, whose reader owns the data.
    Of these and of any other error, whose text may quote a client's examples, only the class and
    the place in the code travel. Of an error that is not ours, no more is logged either. Paths of
    this machine stand in its own log only.
    """
    name = type(error).__name__
    files = [
        (Path(frame.filename), frame.lineno) for frame in traceback.extract_tb(error.__traceback__)
    ]
    place = f"{files[-1][0].name}:{files[-1][1]}"
    reading = any(file.parent.name == "tasks" for file, _ in files)
    ours = isinstance(error, ClientError | UserError)
    known = f"{name}: {error}" if ours else f"{name} at {place}"
    reason = f"{name} at {place}" if reading else known
    told = "" if known == reason else f" (the server is told: {reason})"
    log.warning("%s%s", known, told, extra={"run": str(message.metadata.run_id)})
    longest = _LONGEST_RULE if isinstance(error, Refusal) else _LONGEST
    code = BudgetSpent.CODE if isinstance(error, BudgetSpent) else CLIENT_EXCEPTION
    said = _PATH.sub("<path>", reason)[:longest].encode(errors="replace").decode()
    return Message(Error(code=code, reason=said), reply_to=message)


def ends_process(error: BaseException) -> bool:
    """Return whether an exception is how Flower ends a process that gets SIGTERM.

    Any other becomes an error reply. Some are no ``Exception``, as a panic in Rust code is none:
    they would end the process with what they quote on its standard error, and without a reply.
    """
    return isinstance(error, SystemExit) and isinstance(error.code, int)


class ClientError(Exception):
    """A message this client cannot act on; its text holds no data and may travel."""


class Refusal(UserError):
    """What the rules of this node do not allow; its text is of rules and settings, never of data.

    It travels to the server, so that who starts runs there can mend the experiment.
    """
