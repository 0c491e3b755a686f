"""What server/flower.py and simulations/flower_app.py rely on in this version of Flower.

When one of these fails after an upgrade, the place to look is named in the test.
"""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
from importlib import import_module
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pytest
from flowering import (
    environment,
    flwr,
    foreign_project,
    insecure_superlink,
    lines,
    until,
)
from flwr.app import (
    Array,
    ArrayRecord,
    ConfigRecord,
    Context,
    Error,
    Message,
    MessageType,
    MetricRecord,
    RecordDict,
)
from flwr.clientapp import ClientApp
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid, ServerApp

from deployment.hosting.bundle import write_bundle
from deployment.hosting.shims import write_shims
from fedpeft.page.ports import free_port
from fedpeft.wire.failures import CODES, FailureKind
from server.flower import from_wire, give_id, message_bytes, new_run, to_wire


def full_message() -> Message:
    content = RecordDict(
        {
            "arrays": ArrayRecord({"vector": Array(np.arange(5, dtype=np.float32))}),
            "metrics": MetricRecord({"loss": 0.1, "counts": [1, 2]}),
            "config": ConfigRecord({"text": "żółć", "flag": True, "raw": b"\x00\xff"}),
        }
    )
    return Message(content, dst_node_id=7, message_type="train", group_id="3")


def test_flower_has_the_tested_version() -> None:
    assert version("flwr").startswith(("1.41.", "1.42."))


def test_the_wire_keeps_content_to_the_bit(flower_run: int) -> None:
    sent = full_message()
    received = from_wire(to_wire(sent)).content
    assert np.array_equal(received["arrays"]["vector"].numpy(), np.arange(5, dtype=np.float32))
    assert received["arrays"]["vector"].numpy().dtype == np.float32
    assert dict(received["metrics"]) == dict(sent.content["metrics"])
    assert dict(received["config"]) == dict(sent.content["config"])


def test_the_wire_keeps_metadata(flower_run: int) -> None:
    sent = full_message()
    give_id(sent)
    received = from_wire(to_wire(sent)).metadata
    names = ("run_id", "message_id", "src_node_id", "dst_node_id", "message_type", "group_id")
    for name in (*names, "created_at", "ttl", "reply_to_message_id"):
        assert getattr(received, name) == getattr(sent.metadata, name), name


def test_a_received_message_shares_no_memory_with_the_one_sent(flower_run: int) -> None:
    sent = full_message()
    received = from_wire(to_wire(sent))
    sent.content["metrics"]["loss"] = 9.0
    assert received.content["metrics"]["loss"] == 0.1


def test_the_wire_keeps_errors(flower_run: int) -> None:
    reply = from_wire(to_wire(Message(Error(2, "why"), reply_to=full_message())))
    assert reply.has_error()
    assert not reply.has_content()
    assert (reply.error.code, reply.error.reason) == (2, "why")


def test_a_reply_names_the_message_id_that_was_set(flower_run: int) -> None:
    message = full_message()
    message_id = give_id(message)
    reply = from_wire(to_wire(Message(RecordDict(), reply_to=from_wire(to_wire(message)))))
    assert len(message_id) == 64
    assert reply.metadata.reply_to_message_id == message_id
    assert reply.metadata.src_node_id == 7
    assert reply.metadata.message_type == "train"


def test_messages_carry_the_id_of_the_run_that_was_started() -> None:
    first, second = new_run(), new_run()
    assert first.run_id != second.run_id
    assert full_message().metadata.run_id == second.run_id


def test_messages_of_every_run_have_the_same_size() -> None:
    """A run id travels as a number of variable length: 9 bytes of 7 bits hold 63."""
    sizes = set()
    for _ in range(500):  # a plain random number would be shorter in 4 of them
        new_run()
        sizes.add(message_bytes(full_message()))
    assert len(sizes) == 1


def test_message_bytes_is_the_length_of_the_serialized_message(flower_run: int) -> None:
    message = full_message()
    assert message_bytes(message) == len(to_wire(message)) > 5 * 4


def test_error_codes_are_those_of_flower() -> None:
    assert CODES[FailureKind.FAILED] == ErrorCode.CLIENT_APP_RAISED_EXCEPTION
    assert CODES[FailureKind.GONE] == ErrorCode.NODE_UNAVAILABLE
    assert CODES[FailureKind.DIED] == ErrorCode.CLIENT_APP_CRASHED
    flowers = {value for value in vars(ErrorCode).values() if isinstance(value, int)}
    assert not flowers & {CODES[FailureKind.SPENT], CODES[FailureKind.UNCHARGED]}


def test_message_types_are_the_names_the_server_sends() -> None:
    assert MessageType.TRAIN == "train"
    assert MessageType.EVALUATE == "evaluate"
    assert MessageType.QUERY == "query"


def test_a_query_with_a_name_reaches_its_function(flower_run: int) -> None:
    app = ClientApp()

    @app.query("handshake")
    def handshake(message: Message, context: Context) -> Message:
        return Message(RecordDict({"yes": ConfigRecord()}), reply_to=message)

    message = Message(RecordDict(), dst_node_id=1, message_type="query.handshake")
    give_id(message)
    reply = app(from_wire(to_wire(message)), Context(1, 1, {}, RecordDict(), {}))
    assert "yes" in reply.content


def test_an_app_is_a_function_of_grid_and_context() -> None:
    assert list(inspect.signature(ServerApp.__call__).parameters) == ["self", "grid", "context"]
    assert list(inspect.signature(ClientApp.__call__).parameters) == ["self", "message", "context"]


def test_a_context_holds_what_the_apps_read() -> None:
    context = Context(1, 2, {"partition-id": 3}, RecordDict(), {"out": "x"})
    assert (context.run_id, context.node_id) == (1, 2)
    assert context.node_config["partition-id"] == 3
    assert context.run_config["out"] == "x"
    context.run_config.update({"experiment": "y"})  # as simulations/flower_app.py does
    assert context.run_config["experiment"] == "y"


def test_a_grid_has_the_methods_that_local_grids_and_strategies_use() -> None:
    assert {"get_node_ids", "push_messages", "pull_messages"} <= Grid.__abstractmethods__
    assert Grid.__abstractmethods__ <= {
        "set_run",
        "run",
        "create_message",
        "get_node_ids",
        "get_nodes",
        "push_messages",
        "pull_messages",
        "send_and_receive",
    }


def test_the_functions_of_flower_that_run_task_replaces_exist() -> None:
    from flwr.superlink.cli import flwr_serverapp

    task = import_module("flwr.superlink.runtime.run_serverapp")
    source = inspect.getsource(task)
    # One call, after the run's id is known and before anything of the bundle is used.
    assert source.count("install_from_fab(") == 1
    assert source.index("TaskIdentity.run_id = ") < source.index("install_from_fab(")
    assert source.index("install_from_fab(") < source.index("get_fab_metadata(fab.content)")
    # What the command calls is the function that looks `install_from_fab` up in that module.
    assert inspect.unwrap(flwr_serverapp).__globals__["run_serverapp"] is task.run_serverapp


def test_a_server_process_without_a_state_folder_names_the_command_to_use() -> None:
    names = {name: os.environ[name] for name in os.environ if name != "FEDPEFT_SERVER_STATE"}
    command = [sys.executable, "-m", "deployment.server.process"]
    done = subprocess.run(command, env=names, capture_output=True, text=True)
    assert done.returncode == 1 and "FEDPEFT_SERVER_STATE is not set" in done.stderr


@pytest.mark.long
def test_a_server_does_not_run_code_from_a_bundle(tmp_path: Path) -> None:
    """And takes a bundle of ours, whose ServerApp then finds that this one is no experiment."""
    port, operator = free_port(), tmp_path / "operator"
    write_shims(tmp_path / "bin", {"flwr-serverapp": "deployment.server.process"})
    (tmp_path / "state").mkdir()
    server = environment(
        tmp_path / "flwr",
        tmp_path / "bin",
        SIDE="server",
        FEDPEFT_SERVER_STATE=str(tmp_path / "state"),
    )

    def end(project: Path) -> tuple[str, str]:
        """Return the id of a run, and why it failed."""
        run = flwr(port, operator, "run", str(project))["run-id"]

        def failure() -> str:
            (found,) = flwr(port, operator, "ls", "--run-id", run)["runs"]
            return found["status-details"] if found["status"] == "finished:failed" else ""

        return run, until(failure)

    ours = tmp_path / "fedpeft"
    ours.mkdir()
    write_bundle(ours, {"experiment": "no [ toml", "out": "first", "resume": 0})
    with insecure_superlink(tmp_path, port, server):
        foreign, reason = end(foreign_project(tmp_path / "foreign", tmp_path))
        assert reason.endswith("the bundle brings its own code: evil.py")
        own, _ = end(ours)
    log = lines(tmp_path / "state" / "server.log")
    assert {line["source"] for line in log} == {"run"}
    refused = [(line["run"], line["level"]) for line in log if "refused: the bu" in line["message"]]
    assert refused == [(foreign, "error")]
    assert [line["run"] for line in log if "raised an exception" in line["message"]] == [
        foreign,
        own,
    ]
    assert not any(line["level"] == "debug" for line in log)
    assert not (tmp_path / "imported-by-server").exists()
    installed = [path.name for path in (tmp_path / "flwr" / "apps").rglob("*") if path.is_file()]
    assert installed == ["pyproject.toml"]
    # Flower drops what a ServerApp's process prints; else every line would be logged twice.
    assert "raised an exception" not in (tmp_path / "superlink.txt").read_text()
