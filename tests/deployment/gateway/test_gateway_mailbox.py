"""The mailbox against a real SuperLink state: the contract with Flower's tables."""

from __future__ import annotations

import sqlite3
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from flwr.app import ConfigRecord, RecordDict
from superlinks import SuperLinkState

from deployment.gateway.mailbox import Mailbox


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


def test_expired_message_is_not_waited_for(
    state: SuperLinkState, mailbox: Mailbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    node, _ = two_nodes(state)
    state.send(node, ttl=600)
    later = SimpleNamespace(time=lambda: time.time() + 601, monotonic=time.monotonic)
    monkeypatch.setattr("deployment.gateway.mailbox.time", later)
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


def test_objects_of_a_reply_are_needed_until_they_arrive(
    state: SuperLinkState, mailbox: Mailbox
) -> None:
    """Also after the ServerApp has asked, when the SuperLink has forgotten the announcement."""
    node, _ = two_nodes(state)
    sent = state.send(node)
    reply = state.reply(sent, node, RecordDict({"c": ConfigRecord({"text": "an answer"})}))
    announced = state.announce(reply)
    assert state.ask(sent) and not state.ask(sent)
    left = set(announced.objects)
    for part in announced.objects:
        session, needed = mailbox.needed(reply.metadata.message_id)
        assert (session, set(needed)) == (announced.session, left)
        assert not mailbox.has_object(part)
        assert state.store(announced, part) and not state.store(announced, part)
        assert mailbox.has_object(part)
        left.remove(part)
    assert mailbox.needed(reply.metadata.message_id) == ("", [])
    state.confirm(reply.metadata.message_id)  # the ServerApp has fetched all
    assert not any(mailbox.has_object(part) for part in announced.objects)
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
        lambda: mailbox.needed("0" * 64),
        lambda: mailbox.has_object("0" * 64),
    )
    for call in calls:
        with pytest.raises(sqlite3.Error):
            call()
    sqlite3.connect(tmp_path / "superlink.db").close()
    for call in calls:
        with pytest.raises(sqlite3.Error):
            call()
    assert not list(tmp_path.glob("*.db-wal"))
