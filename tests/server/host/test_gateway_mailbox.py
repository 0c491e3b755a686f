"""The mailbox against a real SuperLink state: the contract with Flower's tables."""

from __future__ import annotations

import sqlite3
import time
from pathlib import Path

import pytest
from flwr.app import ConfigRecord, RecordDict
from superlinks import SuperLinkState

from server.host.gateway.mailbox import Mailbox


@pytest.fixture
def state(tmp_path: Path) -> SuperLinkState:
    made = SuperLinkState(tmp_path / "superlink.db")
    made.start_run()
    return made


@pytest.fixture
def mailbox(tmp_path: Path) -> Mailbox:
    return Mailbox(tmp_path / "superlink.db")


def two_nodes(state: SuperLinkState) -> list[int]:
    """Return two nodes, one of them with a number above 2^63."""
    numbers = [state.register(b"key %d" % number) for number in range(40)]
    return [min(numbers), max(numbers)]


def test_exactly_the_nodes_with_messages_wait(state: SuperLinkState, mailbox: Mailbox) -> None:
    small, large = two_nodes(state)
    assert small < 2**63 < large
    assert mailbox.waiting() == set()
    state.send(large)
    assert mailbox.waiting() == {large}
    state.send(small)
    assert mailbox.waiting() == {small, large}
    state.claim(large)
    assert mailbox.waiting() == {small}
    mailbox.close()


def test_message_waits_only_when_all_its_objects_are_there(
    state: SuperLinkState, mailbox: Mailbox
) -> None:
    """A node that fetches objects too early tries again after a second."""
    node, other = two_nodes(state)
    state.send(node, objects=2)
    assert mailbox.waiting() == set()
    state.send(other)
    assert mailbox.waiting() == {other}
    mailbox.close()


def test_expired_message_is_not_waited_for(state: SuperLinkState, mailbox: Mailbox) -> None:
    node, _ = two_nodes(state)
    state.send(node, ttl=0.5)
    time.sleep(0.6)
    assert mailbox.waiting() == set()
    mailbox.close()


def test_unconfirmed_message_is_handed_out_again(state: SuperLinkState, mailbox: Mailbox) -> None:
    node, other = two_nodes(state)
    sent, others = state.send(node), state.send(other)
    assert mailbox.deliver_again(node) == 0  # not handed out yet
    assert state.claim(node) == [sent] and state.claim(other) == [others]
    assert state.claim(node) == []  # Flower hands it out once
    assert mailbox.deliver_again(node) == 1
    assert mailbox.waiting() == {node}
    assert state.claim(node) == [sent]
    mailbox.close()


def test_confirmed_message_is_not_handed_out_again(state: SuperLinkState, mailbox: Mailbox) -> None:
    node, _ = two_nodes(state)
    sent = state.send(node)
    assert state.claim(node) == [sent]
    state.confirm(sent)
    assert mailbox.deliver_again(node) == 0
    assert state.claim(node) == []
    mailbox.close()


def test_message_that_a_node_never_confirms_is_handed_out_five_times(
    state: SuperLinkState, mailbox: Mailbox
) -> None:
    node, _ = two_nodes(state)
    state.send(node)
    for _ in range(4):
        assert len(state.claim(node)) == 1
        assert mailbox.deliver_again(node) == 1
    assert len(state.claim(node)) == 1
    assert mailbox.deliver_again(node) == 0
    mailbox.close()


def test_object_has_arrived_once_its_node_no_longer_owes_it(
    state: SuperLinkState, mailbox: Mailbox
) -> None:
    """The SuperLink itself refuses an object that arrives again; replies may share objects."""
    node, other = two_nodes(state)
    shared = RecordDict({"same": ConfigRecord({"text": "of both nodes"})})
    ours = state.reply(state.send(node), node, shared)
    theirs = state.reply(state.send(other), other, shared)
    common = sorted(ours.objects.keys() & theirs.objects.keys())
    assert common and ours.objects.keys() - theirs.objects.keys()
    for part in common:
        assert not mailbox.received(node, part) and not mailbox.received(other, part)
        assert state.store(ours, part) and not state.store(ours, part)
        assert mailbox.received(node, part)
        assert not mailbox.received(other, part)  # the SuperLink still waits for it
        assert state.store(theirs, part)
        assert mailbox.received(other, part)
    mailbox.close()


def test_object_that_no_reply_of_the_node_has_did_not_arrive(
    state: SuperLinkState, mailbox: Mailbox
) -> None:
    node, other = two_nodes(state)
    reply = state.reply(state.send(node), node, RecordDict({"c": ConfigRecord({"text": "mine"})}))
    for part in reply.objects:
        assert state.store(reply, part)
        assert mailbox.received(node, part)
        assert not mailbox.received(other, part)
    assert not mailbox.received(node, "0" * 64)
    assert not mailbox.received(node, state.send(node))  # the server's own message
    mailbox.close()


def test_look_without_a_change_is_quick(state: SuperLinkState, mailbox: Mailbox) -> None:
    node, _ = two_nodes(state)
    state.send(node)
    mailbox.waiting()
    start = time.process_time()
    for _ in range(1000):
        mailbox.waiting()
    assert time.process_time() - start < 0.5  # 10 looks a second cost 0.5 % of a core at most
    mailbox.close()


def test_missing_database_and_other_tables_are_errors(tmp_path: Path) -> None:
    mailbox = Mailbox(tmp_path / "superlink.db")
    calls = (
        mailbox.waiting,
        lambda: mailbox.deliver_again(1),
        lambda: mailbox.received(1, "0" * 64),
    )
    for call in calls:
        with pytest.raises(sqlite3.Error):
            call()
    sqlite3.connect(tmp_path / "superlink.db").close()
    for call in calls:
        with pytest.raises(sqlite3.Error):
            call()
    assert not list(tmp_path.glob("*.db-wal"))
