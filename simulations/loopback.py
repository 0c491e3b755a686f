"""Real deployments on one machine, for trials, tests, and benchmarks."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedpeft.hosting.ports import free_port
from fedpeft.hosting.timing import Timing
from simulations.processes import command_line, descendants, kill, started

PATIENCE = 480.0  # seconds to wait for anything, as machines are busy
_RUN = 1800.0  # seconds for a whole run to end


def command(*arguments: str) -> list[str]:
    """Return a fedpeft command line of this Python."""
    return [str(Path(sys.executable).with_name("fedpeft")), *arguments]


class TrialFailed(Exception):
    """A part of a deployment did not behave as expected."""


def run(*arguments: str, expect: int = 0, timeout: float = PATIENCE, at: Sequence[str] = ()) -> str:
    """Run a fedpeft command, with the prefix ``at`` for another host; return its output.

    Raises:
        TrialFailed: its exit code is not ``expect``.
    """
    line = [*at, *command(*arguments)]
    done = subprocess.run(line, capture_output=True, text=True, timeout=timeout)
    if done.returncode != expect:
        raise TrialFailed(f"{line}: exit code {done.returncode}: {done.stdout}{done.stderr}")
    return done.stdout + done.stderr


def until(what: Callable[[], Any], name: str, patience: float = PATIENCE) -> Any:
    """Wait until ``what`` returns a true value; return that value.

    Raises:
        TrialFailed: it did not within ``patience`` seconds.
    """
    end = time.monotonic() + patience
    while time.monotonic() < end:
        if value := what():
            return value
        time.sleep(0.2)
    raise TrialFailed(f"waited {patience:g} s for {name}")


@dataclass
class Deployment:
    """A server and its nodes in a folder."""

    folder: Path
    address: str = "localhost"  # of the server, as the nodes see it
    #: Words before the command of "server" or of a node, for example to run it on another host.
    prefixes: Mapping[str, Sequence[str]] = field(default_factory=dict)
    #: Written into the state folders of server and nodes.
    timing: Timing = field(default_factory=Timing)
    first_port: int | None = None  # for nodes, at the first start; None: any free one
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    @property
    def state(self) -> Path:
        """The server's state folder."""
        return self.folder / "server"

    @property
    def keys(self) -> Path:
        """The folder of all keys."""
        return self.folder / "keys"

    def node(self, name: str) -> Path:
        """Return a node's state folder."""
        return self.folder / name

    def make_keys(self) -> None:
        """Make the authority and the server's key."""
        run("keys", "init", "--out", str(self.keys))
        run("keys", "server", self.address, "--out", str(self.keys))

    def start_server(self) -> None:
        """Start or restart the server, and wait until it is up."""
        ports = []
        if not (self.state / "server.json").exists():
            ports = ["--port", str(self.first_port or free_port())]
        before = len(self.log("server"))
        host = "127.0.0.1" if self.address == "localhost" else self.address
        options = ["--state", str(self.state), "--keys", str(self.keys), "--host", host]
        up = command("server", "up", *options, *ports)
        self.write_timing("server")
        self.start("server", *self.prefixes.get("server", ()), *up)
        self.wait_for("server", "the server is up", before)

    def add_node(self, name: str) -> None:
        """Make a node's key and register it."""
        run("keys", "node", name, "--out", str(self.keys))
        key = str(self.keys / f"{name}.pub")
        run(
            "server",
            "add-node",
            key,
            "--state",
            str(self.state),
            at=self.prefixes.get("server", ()),
        )

    @property
    def port(self) -> int:
        """The server's public port."""
        return int(json.loads((self.state / "server.json").read_text())["ports"]["public"])

    def start_node(
        self, name: str, *options: str, ca: Path | None = None, port: int | None = None
    ) -> None:
        """Start a node, and wait until it is up; ``port`` replaces the server's public port."""
        before = len(self.log(name))
        self.write_timing(name)
        self.start(
            name,
            *self.prefixes.get(name, ()),
            *command("node", "up", "--superlink", f"{self.address}:{port or self.port}"),
            *("--key", str(self.keys / name), "--ca", str(ca or self.keys / "ca.crt")),
            *("--state", str(self.node(name)), *options),
        )
        self.wait_for(name, "the node is up", before)

    def write_timing(self, name: str) -> None:
        """Make the state folder of the server or of a node, with the timing."""
        state = self.folder / name
        state.mkdir(mode=0o700, exist_ok=True)
        self.timing.write(state)

    def submit(self, name: str, settings: Sequence[str], *options: str) -> subprocess.Popen[bytes]:
        """Start `fedpeft run` and return its process; its folder is ``folder / name``."""
        overrides = [part for setting in settings for part in ("-s", setting)]
        on = ["--on", str(self.state), "--out", str(self.folder / name)]
        at = self.prefixes.get("server", ())
        return self.start(f"run-{name}", *at, *command("run", *on, *overrides, *options))

    def finish(self, name: str, expect: int = 0) -> dict[str, Any]:
        """Wait for a run to end and return its result; empty if it failed as expected.

        Raises:
            TrialFailed: its exit code is not ``expect``.
        """
        code = self.processes[f"run-{name}"].wait(_RUN)
        if code != expect:
            raise TrialFailed(f"run {name}: exit code {code}: {self.output(f'run-{name}')}")
        path = self.folder / name / "result.json"
        return json.loads(path.read_text()) if path.exists() else {}

    def run(self, name: str, settings: Sequence[str], *options: str) -> dict[str, Any]:
        """Run an experiment to its end and return its result."""
        self.submit(name, settings, *options)
        return self.finish(name)

    def rounds(self, name: str) -> list[dict[str, Any]]:
        """Return the finished rounds of a run, from the server's files."""
        path = self.state / "runs" / name / "rounds.jsonl"
        lines = path.read_text().split("\n")[:-1] if path.exists() else []
        return [json.loads(line) for line in lines]

    def sent(self, name: str) -> list[dict[str, Any]]:
        """Return a run's byte ledger, from the server's files, bytes on the wire included."""
        lines = (self.state / "runs" / name / "bytes.jsonl").read_text().split("\n")[:-1]
        return [json.loads(line) for line in lines]

    def log(self, name: str) -> list[dict[str, Any]]:
        """Return the log of the server or of a node."""
        path = self.folder / name / ("server.log" if name == "server" else "node.log")
        lines = path.read_text().split("\n")[:-1] if path.exists() else []
        return [json.loads(line) for line in lines]

    def logged(self, name: str, pattern: str, after: int = 0) -> list[str]:
        """Return the messages in a log that match a pattern."""
        messages = (line["message"] for line in self.log(name)[after:])
        return [message for message in messages if re.search(pattern, message)]

    def wait_for(self, name: str, pattern: str, after: int = 0) -> str:
        """Wait for a line in a log and return it.

        Raises:
            TrialFailed: the line does not come, or the process that writes the log ended.
        """

        def lines_or_end() -> list[str]:
            lines = self.logged(name, pattern, after)
            ended = name in self.processes and self.processes[name].poll() is not None
            if ended and not lines:
                raise TrialFailed(f"{name} ended: {self.output(name)}")
            return lines

        return str(until(lines_or_end, f"'{pattern}' in the log of {name}")[0])

    def pids(self, name: str, child: str) -> list[int]:
        """Return the descendants of a server or node whose command line contains ``child``."""
        return [pid for pid in descendants(self.processes[name].pid) if child in command_line(pid)]

    def output(self, name: str) -> str:
        """Return the output of a process."""
        return (self.folder / f"{name}.out").read_text(errors="replace")

    def signal(self, name: str, number: int) -> None:
        """Send a signal to a process that was started here."""
        self.processes[name].send_signal(number)

    def kill_tree(self, name: str) -> None:
        """Kill a process and its descendants, as a power failure does."""
        pid = self.processes[name].pid
        for member in [pid, *descendants(pid)]:
            kill(member)
        self.processes[name].wait(PATIENCE)

    def stop(self, name: str) -> int:
        """Ask a process to end; return its exit code."""
        self.signal(name, signal.SIGTERM)
        return self.processes[name].wait(PATIENCE)

    def start(self, name: str, *arguments: str, shown: bool = False) -> subprocess.Popen[bytes]:
        """Start a process under ``name``, which ends with the others; return it.

        It also ends if this process is killed, and a Ctrl-C at the terminal does not reach it. Its
        output is in ``NAME.out``; with ``shown`` it is that of this process.
        """
        setpriv = shutil.which("setpriv")
        tied = [setpriv, "--pdeathsig", "TERM", "--"] if setpriv else []
        with open(self.folder / f"{name}.out", "ab") as output:
            self.processes[name] = subprocess.Popen(
                [*tied, *arguments],
                stdout=None if shown else output,
                stderr=None if shown else subprocess.STDOUT,
                env={**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"},
                cwd=self.folder,
                start_new_session=True,
            )
        return self.processes[name]


@contextmanager
def deployment(
    folder: Path,
    address: str = "localhost",
    prefixes: Mapping[str, Sequence[str]] | None = None,
    timing: Timing | None = None,
    port: int | None = None,
) -> Iterator[Deployment]:
    """Yield a deployment with keys and a running server; end every process afterwards.

    Args:
        folder: for everything the deployment writes.
        address: of the server, as the nodes see it.
        prefixes: see ``Deployment``.
        timing: the waits of server and nodes; None: the defaults.
        port: of the server, for nodes; None: any free one.
    """
    made = Deployment(folder, address, prefixes or {}, timing or Timing(), port)
    try:
        made.make_keys()
        made.start_server()
        yield made
    finally:
        # With their start times: a pid may be reused by another process.
        below = {
            pid: started(pid)
            for process in made.processes.values()
            for pid in descendants(process.pid)
        }
        for process in made.processes.values():
            if process.poll() is None:
                process.terminate()
        for process in made.processes.values():
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        for pid, start in below.items():
            if start and started(pid) == start:
                kill(pid)
