"""The state of a SuperLink, through Flower's private modules: nodes, a run, messages."""

from __future__ import annotations

import time
import warnings
from dataclasses import dataclass
from pathlib import Path

from flwr.app import ConfigRecord, Message, Metadata, RecordDict
from flwr.app.message import make_message
from flwr.supercore.constant import NOOP_FEDERATION_ID
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_tree,
    no_object_id_recompute,
)
from flwr.supercore.task_identity import TaskIdentity
from flwr.superlink.config_loader import get_objectstore_linkstate_factories
from flwr.superlink.federation.noop_federation_manager import NoOpFederationManager

_SUPERLINK = 1  # the sender's number


@dataclass(frozen=True)
class Announced:
    """An announced reply: its session, and the objects that the SuperLink needs."""

    session: str
    objects: dict[str, bytes]


@dataclass
class SuperLinkState:
    """A SuperLink's database, also while a SuperLink runs on it."""

    database: Path

    def __post_init__(self) -> None:
        _, factory = get_objectstore_linkstate_factories(
            str(self.database), NoOpFederationManager()
        )
        with warnings.catch_warnings():  # of alembic, which makes the tables
            warnings.simplefilter("ignore", DeprecationWarning)
            self._state = factory.state()
        self._run = self._task = 0

    def register(self, public_key: bytes) -> int:
        """Register a node and mark it online; return its number."""
        node_id = self._state.create_node("<none>", "<none>", public_key, 0)
        assert self._state.activate_node(node_id, 30)
        return node_id

    def start_run(self) -> int:
        """Start a run, which messages belong to."""
        self._run = self._state.create_run(
            None, None, None, {}, NOOP_FEDERATION_ID, None, None, "flwr-serverapp"
        )
        (task,) = self._state.get_tasks(run_ids=[self._run])
        self._task = task.task_id
        assert self._state.claim_task(self._task) and self._state.activate_task(self._task)
        return self._run

    def send(
        self, node_id: int, ttl: float = 3600.0, text: str = "", objects: int | None = None
    ) -> str:
        """Send a message to a node as a ServerApp does; return its id.

        ``objects`` is the number of objects to store; None stores all of them.
        """
        assert self._state.acknowledge_task_heartbeat(self._task)
        TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, self._run, _SUPERLINK
        content = RecordDict({"config": ConfigRecord({"text": text or str(node_id)})})
        message = Message(content, dst_node_id=node_id, message_type="query", ttl=ttl)
        message.metadata.__dict__["_run_id"] = self._run
        with no_object_id_recompute():
            message.metadata.__dict__["_message_id"] = message.object_id
            session = self._state.start_session(self._run)
            stored, missing = self._state.store_message_and_object_tree(
                message, get_object_tree(message), session
            )
            assert stored
            for number, part in list(get_all_nested_objects(message).items())[:objects]:
                if number in missing:
                    assert self._state.store_object(self._run, session, number, part.deflate())
        return message.metadata.message_id

    def reply(self, message_id: str, node_id: int, content: RecordDict) -> Message:
        """Return a node's reply to a message, as its SuperNode makes it."""
        metadata = Metadata(
            self._run, "", node_id, _SUPERLINK, message_id, "", time.time(), 60.0, "query"
        )
        reply = make_message(metadata, content)
        with no_object_id_recompute():
            metadata.__dict__["_message_id"] = reply.object_id
        return reply

    def announce(self, reply: Message) -> Announced:
        """Announce a reply, as for its node's request."""
        session = self._state.start_session(self._run)
        with no_object_id_recompute():
            _, missing = self._state.store_message_and_object_tree(
                reply, get_object_tree(reply), session
            )
            parts = get_all_nested_objects(reply)
            return Announced(session, {number: parts[number].deflate() for number in missing})

    def ask(self, message_id: str) -> bool:
        """Ask for the reply to a message, as a ServerApp does; return whether there is one."""
        replies = self._state.get_message_res({message_id}, self._run)
        self._state.delete_messages({message_id})
        return not any(reply.has_error() for reply in replies)

    def store(self, reply: Announced, object_id: str) -> bool:
        """Store an object of a reply; return whether the SuperLink did."""
        return self._state.store_object(
            self._run, reply.session, object_id, reply.objects[object_id]
        )

    def object(self, object_id: str) -> bytes | None:
        """Return the content of an object; None if it is unknown."""
        return self._state.object_store.get(object_id)

    def claim(self, node_id: int) -> list[str]:
        """Hand out the messages of a node, as for its pull; return their ids."""
        messages = self._state.get_message_ins(node_id, limit=None)
        return [message.metadata.message_id for message in messages]

    def confirm(self, message_id: str) -> None:
        """Confirm a message, as its node does after it has all objects."""
        self._state.object_store.delete(message_id)
