"""The supervisor with real processes: order, restarts, output, end."""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from deployment.hosting.child import Child
from deployment.hosting.processes import Supervisor
from deployment.hosting.timing import Timing
from fedpeft.errors import UserError

PATIENCE = 240.0  # seconds to wait for anything, as machines are busy
SLEEP = "import time; time.sleep(600)"
SOON = Timing(restarts=(0.1,))


class Records(logging.Handler):
    """Keep (source, level, message) of each log record."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[str, int, str]] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.seen.append((record.source, record.levelno, record.getMessage()))  # type: ignore[attr-defined]

    def messages(self, source: str) -> list[str]:
        return [message for name, _, message in self.seen if name == source]


@pytest.fixture
def records() -> Iterator[Records]:
    handler, log = Records(), logging.getLogger("test_processes")
    log.setLevel(logging.DEBUG)
    log.addHandler(handler)
    yield handler
    log.removeHandler(handler)


def python(name: str, program: str, *arguments: object, **more: Any) -> Child:
    return Child(name, [sys.executable, "-c", program, *map(str, arguments)], **more)


def until(true: Callable[[], object]) -> None:
    limit = time.monotonic() + PATIENCE
    while not true():
        assert time.monotonic() < limit, "did not happen"
        time.sleep(0.02)


def alive(pid: int) -> bool:
    """Return whether a process runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@contextmanager
def running(*children: Child, timing: Timing = SOON) -> Iterator[Supervisor]:
    """Run a supervisor in a thread; stop it and its children at the end."""
    supervisor = Supervisor(children, logging.getLogger("test_processes"), timing)
    thread = threading.Thread(target=supervisor.run)
    thread.start()
    try:
        yield supervisor
    finally:
        supervisor.stop()
        thread.join(PATIENCE)
        assert not thread.is_alive()


def test_a_child_starts_when_the_one_before_is_ready(tmp_path: Path) -> None:
    touch = "import sys, time, pathlib; time.sleep(0.5); pathlib.Path(sys.argv[1]).touch()\n"
    first, ready = tmp_path / "first", tmp_path / "ready"
    children = [
        python("first", touch + SLEEP, first, ready=first.exists),
        python("second", f"import pathlib; assert pathlib.Path({str(first)!r}).exists();" + SLEEP),
    ]
    supervisor = Supervisor(children, logging.getLogger("test_processes"))
    thread = threading.Thread(target=supervisor.run, args=(ready.touch,))
    thread.start()
    try:
        until(ready.exists)
        pids = dict(supervisor.pids)
        assert list(pids) == ["first", "second"]
        assert supervisor.restarts == {"first": 0, "second": 0}
        assert all(map(alive, pids.values()))
    finally:
        supervisor.stop()
        thread.join(PATIENCE)
    assert not any(map(alive, pids.values()))
    assert supervisor.pids == {}


def test_a_child_that_ends_is_restarted_with_growing_pauses(records: Records) -> None:
    growing = Timing(restarts=(0.1, 0.6))
    with running(python("short", "import sys; sys.exit(5)"), timing=growing) as supervisor:
        until(lambda: supervisor.restarts["short"] >= 3)
    planned = [message for message in records.messages("short") if "restart" in message]
    assert planned[:3] == [
        "ended with exit code 5; restart 1 in 0.1 s",
        "ended with exit code 5; restart 2 in 0.6 s",
        "ended with exit code 5; restart 3 in 0.6 s",
    ]


def test_only_the_child_that_was_killed_is_restarted(records: Records) -> None:
    with running(python("a", SLEEP), python("b", SLEEP)) as supervisor:
        until(lambda: len(supervisor.pids) == 2)
        before = dict(supervisor.pids)
        os.kill(before["a"], signal.SIGKILL)
        until(lambda: supervisor.restarts["a"] == 1 and supervisor.pids.get("a"))
        assert supervisor.pids["a"] != before["a"]
        assert supervisor.pids["b"] == before["b"]
        assert supervisor.restarts == {"a": 1, "b": 0}
    assert "ended by signal 9 (Killed); restart 1 in 0.1 s" in records.messages("a")


def test_a_child_that_is_not_ready_in_time_is_restarted(records: Records) -> None:
    child = python("slow", SLEEP, ready=lambda: False, patience=0.3)
    with running(child, python("next", SLEEP)) as supervisor:
        until(lambda: supervisor.restarts["slow"] >= 2)
        assert "next" not in supervisor.pids
    assert "not ready within 0.3 s; restart 1 in 0.1 s" in records.messages("slow")


class Watch:
    """A clock and a child's health, which only the test changes."""

    def __init__(self) -> None:
        self.now, self.healthy, self._asked = 0.0, True, 0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    def ready(self) -> bool:
        self._asked += 1
        return self.healthy

    def asked(self) -> None:
        """Wait until the child's health was checked, from beginning to end."""
        before = self._asked
        until(lambda: self._asked >= before + 3)


def test_a_hanging_child_is_restarted_after_its_patience(
    records: Records, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch = Watch()
    monkeypatch.setattr("deployment.hosting.child.time", watch)
    hung = python("hung", SLEEP, ready=watch.ready, patience=1.0)
    with running(hung, python("other", SLEEP), timing=replace(SOON, health=0.0)) as supervisor:
        until(lambda: len(supervisor.pids) == 2)
        before = dict(supervisor.pids)
        for _ in range(2):
            watch.healthy = False
            watch.asked()
            watch.now += 0.6
            watch.asked()
            watch.healthy = True
            watch.asked()
        assert supervisor.pids == before
        watch.healthy = False
        watch.asked()
        watch.now += 1.1
        until(lambda: supervisor.restarts["hung"] == 1)
        assert not alive(before["hung"])
        watch.healthy = True
        watch.now += SOON.restarts[0]
        until(lambda: len(records.messages("hung")) == 3)
        assert supervisor.restarts == {"hung": 1, "other": 0}
    assert [message.partition(" (pid")[0] for message in records.messages("hung")] == [
        "ready",
        "did not answer for 1 s; restart 1 in 0.1 s",
        "ready",
    ]


def test_output_is_logged_line_by_line_with_its_level_and_long_lines_cut(records: Records) -> None:
    program = (
        "import sys, os\n"
        "print('WARNING : low', file=sys.stderr); print('x' * 100_000); print(); print('after')\n"
        "print(os.environ['MARK']); sys.stdout.write('no newline'); sys.stdout.flush()\n"
    )
    child = python("talker", program + SLEEP, environment={"MARK": "here", "PYTHONUNBUFFERED": "1"})
    with running(child):
        until(lambda: "here" in records.messages("talker"))
    seen = [(level, message) for name, level, message in records.seen if name == "talker"]
    assert (logging.WARNING, "low") in seen
    messages = [message for _, message in seen]
    (long,) = [message for message in messages if message.startswith("xx")]
    assert long.endswith("x ...")
    assert len(long) < 5000
    assert messages[messages.index(long) + 1] == "after"
    assert "no newline" in messages


def test_a_child_may_have_its_own_reader_of_output(records: Records) -> None:
    def read(line: str) -> tuple[int, str] | None:
        return None if line == "noise" else (logging.ERROR, line.upper())

    child = python("gateway", "print('noise'); print('refused', flush=True);" + SLEEP, read=read)
    with running(child):
        until(lambda: "REFUSED" in records.messages("gateway"))
    assert ("gateway", logging.ERROR, "REFUSED") in records.seen
    assert "noise" not in records.messages("gateway")


def test_nothing_starts_if_a_program_is_missing(tmp_path: Path) -> None:
    mark = tmp_path / "started"
    first = python("first", "import sys, pathlib; pathlib.Path(sys.argv[1]).touch()", mark)
    supervisor = Supervisor([first, Child("b", ["no-such-program"])], logging.getLogger("x"))
    with pytest.raises(UserError, match="b: the program 'no-such-program' is not installed"):
        supervisor.run()
    assert not mark.exists()


def test_stopping_ends_children_in_reverse_and_kills_those_that_stay(records: Records) -> None:
    stubborn = (
        "import signal, subprocess, sys; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        "print(child.pid, flush=True)\n"
    )
    polite = (
        "import signal, sys; signal.signal(signal.SIGTERM, lambda *_: (print('bye'), sys.exit()))\n"
        "print('up', flush=True)\n"
    )
    children = python("first", polite + SLEEP), python("second", stubborn + SLEEP)
    # The second is killed after one second, and the first has all the time that it needs.
    timing = replace(SOON, stop=PATIENCE, stop_each=PATIENCE - 1)
    with running(*children, timing=timing) as supervisor:
        until(lambda: records.messages("second") and len(records.messages("second")) >= 2)
        until(lambda: "up" in records.messages("first"))
        pids = list(supervisor.pids.values())
        grandchild = int(next(m for m in records.messages("second") if m.isdigit()))
        supervisor.stop()
        supervisor.stop()
    assert not any(map(alive, [*pids, grandchild]))
    order = [message for _, _, message in records.seen if "killed" in message or message == "bye"]
    assert order == ["did not end by itself: killed", "bye"]


SUPERVISED = """
import json, logging, sys
from deployment.hosting.child import Child
from deployment.hosting.processes import Supervisor
children = [Child(name, [sys.executable, "-c", "import time; time.sleep(600)"]) for name in "ab"]
supervisor = Supervisor(children, logging.getLogger())
supervisor.run(lambda: print(json.dumps(supervisor.pids), flush=True))
print("stopped")
"""


@pytest.mark.parametrize(
    ("kind", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 0), (signal.SIGKILL, -9)]
)
def test_children_end_with_the_supervisor(kind: signal.Signals, code: int) -> None:
    process = subprocess.Popen([sys.executable, "-c", SUPERVISED], stdout=subprocess.PIPE)
    assert process.stdout is not None
    pids = list(json.loads(process.stdout.readline()).values())
    try:
        assert len(pids) == 2
        process.send_signal(kind)
        assert process.wait(PATIENCE) == code
        until(lambda: not any(map(alive, pids)))
        assert process.stdout.read() == (b"stopped\n" if code == 0 else b"")
    finally:
        process.stdout.close()
        for pid in filter(alive, pids):
            os.kill(pid, signal.SIGKILL)
