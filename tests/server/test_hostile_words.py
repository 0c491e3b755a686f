"""Text from nodes goes to logs and terminals, so it becomes one short printable line."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from flwr.app import Context, Error, Message
from flwr.clientapp import ClientApp
from messaging import changed

from fedpeft.errors import RunFailed
from fedpeft.experiment.config import Experiment
from fedpeft.runs.folder import RunFolder
from fedpeft.wire.messages import Request
from server.exchange.byte_ledger import ByteLedger
from server.exchange.sending import Patience, exchange
from server.flower import new_run
from simulations.engines.local import LocalGrid

#: Clears the screen, sets the window's title, and begins a line that looks like ours.
WORDS = "\x1b[2J\x1b]0;title\x07\nround 9: all is well \x9b31m\u202e" + "x" * 100_000


class Shouting(ClientApp):
    """A node that answers with an error of its own making."""

    def __call__(self, message: Message, context: Context) -> Message:
        return Message(Error(2, WORDS), reply_to=message)


def test_the_reason_of_an_error_reply_becomes_one_short_printable_line() -> None:
    new_run()
    grid = LocalGrid(Shouting(), [{"partition-id": 0}])
    _, failed = exchange(grid, "train", lambda _: Request(), {0: 1000}, ByteLedger(), Patience(60))
    assert failed[0].text.startswith("error 2: ?[2J?]0;title??round 9: all is well ?31m?xxx")
    assert failed[0].text.isprintable() and len(failed[0].text) < 1000


@pytest.mark.parametrize("key", ["s", "c", "b", WORDS])
def test_a_refused_nodes_report_becomes_one_short_printable_line(
    quick: Callable[..., Experiment], federate: Callable[..., RunFolder], key: str
) -> None:
    def spoil(reply: Message) -> Message:
        return changed(reply, **{key: WORDS})

    with pytest.raises(RunFailed) as failed:
        federate(quick("federation.min_success=3"), spoil, "query.handshake", client=1)
    assert str(failed.value).isprintable() and len(str(failed.value)) < 1000
