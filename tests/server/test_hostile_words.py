"""What a node says ends in logs and on terminals: it stays one short line of plain text."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from flwr.app import ConfigRecord, Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp

from fedpeft.config import Experiment
from fedpeft.errors import RunFailed
from server.exchange import exchange
from server.flower import new_run
from server.ledger import ByteLedger
from server.runfolder import RunFolder
from simulations.local import LocalGrid

#: Clears the screen, sets the window's title, and begins a line that looks like ours.
WORDS = "\x1b[2J\x1b]0;title\x07\nround 9: all is well \x9b31m\u202e" + "x" * 100_000


class Shouting(ClientApp):
    """A node that answers with an error of its own making."""

    def __call__(self, message: Message, context: Context) -> Message:
        return Message(Error(2, WORDS), reply_to=message)


def test_the_reason_of_an_error_reply_is_made_plain() -> None:
    new_run()
    grid = LocalGrid(Shouting(), [{"partition-id": 0}])
    _, failed = exchange(grid, "train", lambda _: RecordDict(), {0: 1000}, ByteLedger(), timeout=60)
    assert failed[0].startswith("error 2: ?[2J?]0;title??round 9: all is well ?31m?xxx")
    assert failed[0].isprintable() and len(failed[0]) < 1000


@pytest.mark.parametrize("key", ["version", "client", "backbone"])
def test_so_is_what_a_node_says_of_itself(
    quick: Callable[..., Experiment], federate: Callable[..., RunFolder], key: str
) -> None:
    def spoil(reply: Message) -> Message:
        reply.content["node"] = ConfigRecord({**reply.content["node"], key: WORDS})
        return reply

    with pytest.raises(RunFailed) as failed:
        federate(quick("federation.min_success=3"), spoil, "query.handshake", client=1)
    assert str(failed.value).isprintable() and len(str(failed.value)) < 1000
