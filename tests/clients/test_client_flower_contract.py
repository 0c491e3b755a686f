"""The private parts of this version of Flower that clients/flower.py uses."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from flowering import (
    environment,
    flwr,
    foreign_project,
    insecure_superlink,
    lines,
    running,
    until,
)
from flwr.app import Message, RecordDict

from deployment.hosting.shims import write_shims
from deployment.hosting.timing import Timing
from deployment.tunnel import connection, tunnel
from fedpeft.page.ports import free_port
from server.flower import new_run


def test_flowers_replaced_functions_exist() -> None:
    from flwr.supernode.cli import flwr_clientapp
    from flwr.supernode.runtime import run_clientapp

    source = inspect.getsource(run_clientapp)
    # One call, after the run's id is known and before anything of the bundle is used.
    assert source.count("install_from_fab(") == 1
    assert source.index("pull_task_input(client)") < source.index("install_from_fab(")
    assert source.index("install_from_fab(") < source.index("load_client_app_fn(")
    expected = {"runtime_api_address", "token", "insecure", "certificates", "parent_pid"}
    parameters = inspect.signature(run_clientapp.run_clientapp).parameters
    assert set(parameters) == {*expected, "runtime_dependency_install"}
    # What Flower's own command does with its arguments, and we do in its place.
    command = inspect.getsource(inspect.getmodule(flwr_clientapp))  # type: ignore[arg-type]
    assert all(f"{name}=" in command for name in expected)
    assert command.count(".add_argument(") == 1  # the address; the others are added together


def test_a_task_starts_without_the_supernode_and_torch(tmp_path: Path) -> None:
    """Every message starts a process, and waits for its imports."""
    code = (
        "import sys; sys.argv = ['x', '--help']\n"
        "from deployment.node.process import main\n"
        "try: main()\n"
        "except SystemExit: print(sorted({'torch', 'transformers', 'pandas', 'flwr.supernode.cli'}"
        " & set(sys.modules)), 'flwr.supernode.runtime.run_clientapp' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "FEDPEFT_NODE_STATE": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.splitlines()[-1] == "[] True"


def test_a_task_outside_of_a_node_is_refused() -> None:
    environment = {name: os.environ[name] for name in os.environ if name != "FEDPEFT_NODE_STATE"}
    command = [sys.executable, "-m", "deployment.node.process"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 1 and "start this program through 'fedpeft node up'" in done.stderr


def test_the_tunnel_knows_flowers_headers_paths_and_times() -> None:
    from flwr.common.constant import (
        HEARTBEAT_CALL_TIMEOUT,
        TIMESTAMP_HEADER,
        TIMESTAMP_TOLERANCE,
    )
    from flwr.proto.fleet_pb2 import PullMessagesResponse
    from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER, FLEET_HTTP_SIGNATURE_HEADER
    from flwr.supercore.protobuf.client import ProtobufClient
    from flwr.supernode import fleet_http_client

    assert {FLEET_HTTP_SIGNATURE_HEADER, TIMESTAMP_HEADER} == set(connection.CHANGING)
    assert FLEET_HTTP_PUBLIC_KEY_HEADER.startswith("flwr-")
    source = inspect.getsource(fleet_http_client)
    paths = (tunnel.PULL, tunnel.HEARTBEAT, *tunnel.RECEIVE)
    assert all(f'"{path}"' in source for path in paths)
    assert PullMessagesResponse().SerializeToString() == b""
    assert Timing().beat < HEARTBEAT_CALL_TIMEOUT
    # The last pull may start with a signature of this age, and the server may hold it for 20 s.
    assert tunnel.HOLD + 20 < TIMESTAMP_TOLERANCE
    timeout = inspect.signature(ProtobufClient).parameters["timeout"].default
    assert Timing().interim < timeout == 30


@pytest.mark.parametrize("refused", tunnel.RECEIVE)
@pytest.mark.parametrize(("status", "kept"), [(403, 1), (410, 0)])
def test_the_supernode_keeps_a_message_that_is_forbidden_and_drops_one_that_is_gone(
    refused: str, status: int, kept: int
) -> None:
    """The tunnel changes the status for this; once Flower drops both messages, it need not."""
    from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree
    from flwr.supercore.object_store import ObjectStoreFactory
    from flwr.supercore.retry import make_simple_http_retry_invoker
    from flwr.supernode.nodestate import NodeStateFactory
    from flwr.supernode.start_client_internal import _pull_and_store_message

    run = new_run()
    message = Message(RecordDict(), dst_node_id=1, message_type="train")
    message.metadata.__dict__.update(_run_id=run.run_id, _message_id=message.object_id)
    contents = {name: part.deflate() for name, part in get_all_nested_objects(message).items()}
    state = (states := NodeStateFactory(ObjectStoreFactory())).state()
    state.store_run(run)

    def ask(path: str) -> None:
        request = httpx.Request("POST", f"https://superlink{path}")
        answer = httpx.Response(status if path == refused else 200, request=request)
        make_simple_http_retry_invoker().invoke(answer.raise_for_status)

    def pull_object(run_id: int, name: str) -> bytes:
        ask(tunnel.RECEIVE[0])
        return contents[name]

    received = _pull_and_store_message(
        state=state,
        object_store=states.objectstore_factory.store(),
        node_config={},
        receive=lambda: (message, get_object_tree(message)),
        get_run=None,
        get_fab=None,
        pull_object=pull_object,
        confirm_message_received=lambda run_id, name: ask(tunnel.RECEIVE[1]),
        trusted_entities=None,
    )
    assert received is None
    assert len(state.get_messages_legacy()) == kept
    assert len(state.get_tasks(statuses=["pending"])) == kept


@pytest.mark.long
def test_a_node_refuses_code_that_its_server_sends(tmp_path: Path) -> None:
    """The server is plain Flower and runs any code; the node still refuses it."""
    port, state = free_port(), tmp_path / "state"
    state.mkdir()
    write_shims(state / "bin", {"flwr-clientapp": "deployment.node.process"})
    server = environment(tmp_path / "server", SIDE="server")
    node = environment(state / "flwr", state / "bin", SIDE="node", FEDPEFT_NODE_STATE=str(state))
    command = ["flower-supernode", "--insecure", "--superlink", f"127.0.0.1:{port}"]
    command += ["--port", str(free_port())]
    with insecure_superlink(tmp_path, port, server), running(command, tmp_path / "node.txt", node):
        project = foreign_project(tmp_path / "foreign", tmp_path)
        run = flwr(port, tmp_path / "operator", "run", str(project))["run-id"]
        reply = until((tmp_path / "reply").is_file) and (tmp_path / "reply").read_text()
        code, _, reason = reply.partition(" ")
        assert code == "2"  # an exception of the ClientApp
        assert reason == (
            "<class 'deployment.hosting.bundle.ForeignBundle'>:"
            "<'the bundle brings its own code: evil.py'>"
        )
    refused = [line for line in lines(state / "node.log") if "refused" in line["message"]]
    assert [(line["level"], line["source"], line["run"], line["message"]) for line in refused] == [
        ("error", "task", str(run), "refused: the bundle brings its own code: evil.py")
    ]
    assert (tmp_path / "imported-by-server").exists()
    assert not (tmp_path / "imported-by-node").exists()
    assert not list((state / "flwr").rglob("*.py")) and not (state / "flwr" / "apps").exists()
    # What a task prints is logged a second time.
    assert "raised an exception" not in (tmp_path / "node.txt").read_text()
