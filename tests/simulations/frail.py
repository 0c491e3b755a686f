"""A client app for tests that dies or hangs where a message says so; actors import it by name."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp


def act(message: Message, context: Context) -> Message:
    """Do what the message says; reply with this process and how often this node was asked."""
    order = message.content["order"]
    if order["do"] == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    if order["do"] == "die once" and not Path(str(order["mark"])).exists():
        Path(str(order["mark"])).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    while order["do"] == "wait" and not Path(str(order["mark"])).exists():
        time.sleep(0.1)
    if order["do"] == "hang":
        time.sleep(600)
    if order["do"] == "raise":
        raise ValueError("a client's secret")
    before = context.state.config_records.get("count", ConfigRecord({"asked": 0}))
    context.state["count"] = ConfigRecord({"asked": int(before["asked"]) + 1, "pid": os.getpid()})
    return Message(RecordDict({"count": context.state["count"]}), reply_to=message)


class Frail(ClientApp):
    """Answers every message by ``act``."""

    def __call__(self, message: Message, context: Context) -> Message:
        return act(message, context)


app = Frail()


def train_together(messages: Sequence[Message], contexts: Sequence[Context]) -> list[Message]:
    """Answer several messages; how many there are is said in each reply."""
    replies = [act(m, c) for m, c in zip(messages, contexts, strict=True)]
    for reply in replies:
        reply.content["cohort"] = ConfigRecord({"size": len(messages)})
    return replies
