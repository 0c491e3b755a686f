"""The log of JSON lines: its content, and following it."""

from __future__ import annotations

import json
import logging
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from deployment.hosting.logs import follow, plain, split_level, start_log

PATIENCE = 240.0  # seconds to wait for anything, as machines are busy


@pytest.fixture
def path(tmp_path: Path) -> Iterator[Path]:
    """Path of a log; the root logger is restored after the test."""
    root = logging.getLogger()
    earlier = root.handlers[:]
    yield tmp_path / "server.log"
    for handler in [handler for handler in root.handlers if handler not in earlier]:
        root.removeHandler(handler)
        handler.close()


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_line_has_time_level_source_run_and_message(path: Path) -> None:
    before = datetime.now(UTC) - timedelta(milliseconds=1)  # the log's precision
    start_log(path, "serverapp", run="17").warning("round %d\nof %d", 1, 3)
    (line,) = lines(path)
    written = datetime.fromisoformat(line.pop("time"))
    assert written.utcoffset() == timedelta(0)
    assert before <= written <= datetime.now(UTC)
    assert line == {
        "level": "warning",
        "source": "serverapp",
        "run": "17",
        "message": "round 1\nof 3",
    }
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_extra_of_a_record_overrides_source_and_run(path: Path) -> None:
    log = start_log(path, "up")
    log.info("a")
    log.info("b", extra={"source": "proxy", "run": "3"})
    assert [(line["source"], line["run"]) for line in lines(path)] == [
        ("up", None),
        ("proxy", "3"),
    ]


def test_other_libraries_log_only_warnings(path: Path) -> None:
    start_log(path, "up")
    for name in ("server.members.nodes", "clients.app", "httpx"):
        logging.getLogger(name).info("info of %s", name)
        logging.getLogger(name).warning("warning of %s", name)
    messages = [line["message"] for line in lines(path)]
    assert "info of server.members.nodes" in messages
    assert "info of clients.app" in messages
    assert "info of httpx" not in messages
    assert "warning of httpx" in messages


def test_an_exception_is_logged_without_its_text(path: Path) -> None:
    log = start_log(path, "worker")
    try:
        int("a patient's name")
    except ValueError:
        log.exception("round 3 failed")
    (line,) = lines(path)
    assert line["message"].startswith("round 3 failed (ValueError at ")
    assert "patient" not in path.read_text()


def test_starting_a_log_again_moves_it(path: Path) -> None:
    start_log(path, "up").info("first")
    other = path.with_name("other.log")
    start_log(other, "up").info("second")
    assert [line["message"] for line in lines(path)] == ["first"]
    assert [line["message"] for line in lines(other)] == ["second"]


def test_lines_of_several_processes_stay_whole(path: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from deployment.hosting.logs import start_log\n"
        "log = start_log(Path(sys.argv[1]), sys.argv[2])\n"
        "for number in range(300): log.info(sys.argv[2] * 2000)"
    )
    writers = [
        subprocess.Popen([sys.executable, "-c", program, str(path), source]) for source in "abc"
    ]
    assert [writer.wait(PATIENCE) for writer in writers] == [0, 0, 0]
    logged = lines(path)
    assert len(logged) == 900
    assert all(line["message"] == line["source"] * 2000 for line in logged)


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        ("\x1b[92mINFO \x1b[0m:      Starting", (logging.INFO, "Starting")),
        ("WARNING :  \tslow: 3 s", (logging.WARNING, "slow: 3 s")),
        ("2026-01-31T12:00:00.123Z ERROR [uvicorn] x", (logging.ERROR, "[uvicorn] x")),
        ("  Traceback (most recent", (logging.INFO, "Traceback (most recent")),
        ("INFORMATION: x", (logging.INFO, "INFORMATION: x")),
        ("", (logging.INFO, "")),
    ],
)
def test_split_level_of_a_line_of_output(output: str, expected: tuple[int, str]) -> None:
    assert split_level(output) == expected


def test_plain_lines_keep_to_one_line_and_hold_no_control_characters() -> None:
    line = {
        "time": "T",
        "level": "error",
        "source": "proxy",
        "run": None,
        "message": "a\n\x1b[2Jé",
    }
    assert plain(line) == "T error proxy: a\\n\\x1b[2Jé"
    assert plain({**line, "run": "7", "message": "m"}) == "T error proxy [run 7]: m"


@pytest.mark.parametrize("as_json", [True, False])
def test_following_prints_what_is_appended_until_it_is_stopped(
    path: Path, as_json: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    log = start_log(path, "up")
    log.info("before")
    begin = path.stat().st_size
    stop = threading.Event()
    follower = threading.Thread(target=follow, args=(path, stop, as_json, begin))
    follower.start()
    with open(path, "a") as file:
        file.write('{"torn')  # the rest of a line may come later
        file.flush()
        time.sleep(0.3)
        file.write('": 1}\n')
    log.info("last")
    stop.set()
    follower.join(PATIENCE)
    assert not follower.is_alive()
    printed = capsys.readouterr().out.splitlines()
    if as_json:
        assert printed == path.read_text().splitlines()[1:]
    else:
        assert len(printed) == 1
        assert printed[0].endswith(" info up: last")


def printed_with(words: str, capsys: pytest.CaptureFixture[str]) -> str:
    """Return what is printed, once it contains some words."""
    limit, printed = time.monotonic() + PATIENCE, ""
    while words not in printed:
        assert time.monotonic() < limit, printed
        time.sleep(0.02)
        printed += capsys.readouterr().out
    return printed


def test_following_reads_a_rotated_log_from_its_start(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = start_log(path, "up")
    log.info("long " * 50)
    stop = threading.Event()
    follower = threading.Thread(target=follow, args=(path, stop, False))
    follower.start()
    printed_with("long", capsys)
    path.write_bytes(b"")  # as logrotate's copytruncate does
    log.info("anew")
    stop.set()
    follower.join(PATIENCE)
    assert [line.rpartition(": ")[2] for line in capsys.readouterr().out.splitlines()] == ["anew"]


def test_following_waits_for_a_missing_log(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stop = threading.Event()
    follower = threading.Thread(target=follow, args=(path, stop, False))
    follower.start()
    start_log(path, "up").info("first")
    assert printed_with("first", capsys).endswith(" info up: first\n")
    stop.set()
    follower.join(PATIENCE)
    follow(path.with_name("never.log"), stop, False)  # told to stop, it returns


def test_flowers_wrong_counts_of_nodes_are_not_logged(path: Path) -> None:
    start_log(path, "run")
    flower = logging.getLogger("flwr")
    flower.warning("configure_train: Sampled %s nodes (out of %s)", 1, 1)
    flower.warning("%s: Received %s results and %s failures", "aggregate_train", 2, 0)
    flower.warning("  ")
    flower.warning("something else: Sampled nodes")
    logging.getLogger("server.x").warning("Sampled %s nodes", 2)
    messages = [line["message"] for line in lines(path)]
    assert messages == ["something else: Sampled nodes", "Sampled 2 nodes"]


def test_the_code_of_every_package_is_logged_from_info_on(path: Path) -> None:
    start_log(path, "run")
    packages = ("fedpeft", "clients", "server", "deployment")
    for package in packages:
        logging.getLogger(f"{package}.x").info(package)
    assert tuple(line["message"] for line in lines(path)) == packages
