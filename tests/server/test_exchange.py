"""Messages to clients and their replies: order, failures by client, and timeouts."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable
from typing import Any

import pytest
from flwr.app import ConfigRecord, Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp

from fedpeft.wire.failures import CODES, Failure, FailureKind
from fedpeft.wire.messages import Request
from server.exchange.byte_ledger import ByteLedger
from server.exchange.sending import Patience, exchange
from server.flower import from_wire, to_wire
from simulations.engines.local import LocalGrid

Answer = Callable[[int], None]


class Echo(ClientApp):
    """Replies with the client's number, after ``act`` has done something with it."""

    def __init__(self, act: Answer):
        super().__init__()
        self.act, self.asked = act, list[int]()

    def __call__(self, message: Message, context: Context) -> Message:
        client = int(context.node_config["partition-id"])
        self.asked.append(client)
        self.act(client)
        content = RecordDict({"client": ConfigRecord({"number": client})})
        return Message(content, reply_to=message)


def ask(
    act: Answer,
    clients: list[int],
    timeout: float = 60,
    deadline: float | None = None,
    enough: int | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> tuple[dict[int, int], dict[int, Failure], ByteLedger]:
    """Ask clients; return what each replied, why others did not, and the ledger."""
    grid = LocalGrid(Echo(act), [{"partition-id": client} for client in range(6)])
    ledger = ByteLedger()
    replies, failed = exchange(
        grid,
        "train",
        lambda client: Request(),
        {client: 1000 + client for client in clients},
        ledger,
        Patience(timeout, deadline, enough),
        progress,
    )
    numbers = {c: int(reply.content["client"]["number"]) for c, reply in replies.items()}
    return numbers, failed, ledger


def nothing(client: int) -> None: ...


def test_replies_come_in_client_order_each_from_its_own_node() -> None:
    numbers, failed, _ = ask(nothing, [4, 0, 2])
    assert list(numbers.items()) == [(0, 0), (2, 2), (4, 4)]
    assert failed == {}


def test_an_exception_is_a_failure_of_that_client_without_its_text() -> None:
    def act(client: int) -> None:
        if client == 2:
            raise RuntimeError("the film was awful")

    numbers, failed, _ = ask(act, [1, 2, 3])
    assert list(numbers) == [1, 3]
    assert list(failed) == [2]
    assert re.fullmatch(r"error 2: RuntimeError at test_exchange.py:\d+", failed[2].text)


def test_progress_counts_replies_up_to_all_clients() -> None:
    seen: list[tuple[int, int]] = []
    ask(nothing, [0, 1, 2], progress=lambda done, total: seen.append((done, total)))
    assert seen == [(1, 3), (2, 3), (3, 3)]


def test_replies_after_the_timeout_do_not_count(virtual_time: Any) -> None:
    def act(client: int) -> None:
        if client == 1:
            virtual_time.seconds += 0.6

    numbers, failed, ledger = ask(act, [0, 1, 2], timeout=0.5)
    assert list(numbers) == [0]
    assert failed == dict.fromkeys([1, 2], Failure(FailureKind.SILENT, "no reply within 0.5 s"))
    assert ("train", 1, "down") in ledger.entries
    assert ("train", 1, "up") not in ledger.entries


def test_a_deadline_and_enough_replies_end_the_wait(virtual_time: Any) -> None:
    def act(client: int) -> None:
        if client == 2:
            virtual_time.seconds += 0.6

    numbers, failed, _ = ask(act, [0, 1, 2, 3], deadline=0.5)
    assert list(numbers) == [0, 1]
    late = Failure(FailureKind.LATE, "late: no reply within 0.5 s (federation.deadline)")
    assert failed == dict.fromkeys([2, 3], late)
    numbers, failed, _ = ask(nothing, [0, 1, 2, 3], enough=3)
    assert list(numbers) == [0, 1, 2]
    faster = "late: 3 others were faster (federation.over_selection)"
    assert failed == {3: Failure(FailureKind.LATE, faster)}
    _, failed, _ = ask(act, [2], timeout=0.5, deadline=60)
    assert failed[2].kind is FailureKind.SILENT


def test_an_error_reply_counts_in_the_byte_ledger() -> None:
    def act(client: int) -> None:
        raise KeyError(client)

    _, failed, ledger = ask(act, [5])
    assert failed[5].text.startswith("error 2: KeyError at ")
    assert ledger.entries["train", 5, "up"]["message"] > 0


@pytest.mark.parametrize("deaths", [1, 2])
def test_a_client_whose_process_died_is_asked_a_second_time(deaths: int) -> None:
    class Dying(Echo):
        def __call__(self, message: Message, context: Context) -> Message:
            reply = super().__call__(message, context)
            if self.asked.count(1) > deaths or self.asked[-1] == 0:
                return reply
            return Message(
                Error(code=CODES[FailureKind.DIED], reason="stopped responding"), reply_to=message
            )

    app, ledger = Dying(nothing), ByteLedger()
    grid = LocalGrid(app, [{"partition-id": client} for client in range(2)])
    replies, failed = exchange(
        grid, "train", lambda _: Request(), {0: 1000, 1: 1001}, ledger, Patience(60)
    )
    assert app.asked == [0, 1, 1]  # the second death counts
    assert (list(replies), list(failed)) == (([0, 1], []) if deaths == 1 else ([0], [1]))
    sizes = [ledger.entries["train", client, "down"]["message"] for client in (0, 1)]
    assert sizes[1] == 2 * sizes[0]


@pytest.mark.parametrize("timeout", [60.0, 24 * 3600.0])
def test_a_message_lives_as_long_as_its_reply_is_waited_for(timeout: float) -> None:
    """Flower's own limit is 12 hours."""
    lives: list[float] = []

    class Noting(LocalGrid):
        def push_messages(self, messages: Iterable[Message]) -> list[str]:
            made = list(messages)
            lives.extend(message.metadata.ttl for message in made)
            return super().push_messages(made)

    grid = Noting(Echo(nothing), [{"partition-id": 0}])
    patience = Patience(timeout, deadline=5.0)
    exchange(grid, "train", lambda client: Request(), {0: 1000}, ByteLedger(), patience)
    assert lives == [timeout + 900]


def test_an_exchange_ends_after_the_timeout_without_any_reply() -> None:
    class Silent(LocalGrid):
        def pull_messages(self, message_ids: object) -> list[Message]:
            return []

    grid = Silent(Echo(nothing), [{"partition-id": 0}])
    started = time.monotonic()
    replies, failed = exchange(
        grid, "train", lambda _: Request(), {0: 1000}, ByteLedger(), Patience(0.3)
    )
    assert not replies
    assert failed == {0: Failure(FailureKind.SILENT, "no reply within 0.3 s")}
    assert time.monotonic() - started >= 0.3


@pytest.mark.parametrize("cohort", [1, 2, 4])
def test_a_cohort_of_any_size_gets_each_message_once(cohort: int) -> None:
    app = Echo(nothing)

    def together(messages: list[Message], contexts: list[Context]) -> list[Message]:
        assert 1 < len(messages) <= cohort
        return [app(message, context) for message, context in zip(messages, contexts, strict=True)]

    grid = LocalGrid(app, [{"partition-id": client} for client in range(5)], cohort, together)
    nodes = {client: 1000 + client for client in range(5)}
    replies, _ = exchange(grid, "train", lambda _: Request(), nodes, ByteLedger(), Patience(60))
    assert list(replies) == sorted(app.asked) == [0, 1, 2, 3, 4]


class Repeating(LocalGrid):
    """A grid that passes each reply on twice, and replies to messages that nobody sent."""

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        replies = super().pull_messages(message_ids)
        stranger = from_wire(to_wire(replies[0]))
        stranger.metadata.__dict__["_reply_to_message_id"] = "f" * 64
        return [stranger, *replies, *replies]


def test_replies_that_nobody_waits_for_are_ignored() -> None:
    grid, ledger = Repeating(Echo(nothing), [{"partition-id": 0}]), ByteLedger()
    replies, failed = exchange(
        grid, "train", lambda client: Request(), {0: 1000}, ledger, Patience(60)
    )
    assert [*replies] == [0]
    assert failed == {}
