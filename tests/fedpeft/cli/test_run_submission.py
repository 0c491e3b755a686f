"""``fedpeft run`` where the answer to its submission is lost: the server knows whose the run is."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from servers import operations, server_state

from fedpeft.config import Experiment
from fedpeft.errors import UserError
from server.host.state import ServerState
from server.remote import follow, submit
from server.remote.flwr_cli import UnknownRun
from server.remote.submit import Status
from server.runfolder import RunFolder

Command = Callable[..., tuple[int, str, str]]
OVERRIDES = ["backbone=tiny", "output.plots=false"]
SETTINGS = [part for each in OVERRIDES for part in ("-s", each)]
RUNNING, STOPPED = Status("running"), Status("finished", "stopped")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> ServerState:
    """A server's state; its keys take a moment."""
    return server_state(tmp_path_factory.mktemp("server"))


@pytest.fixture
def server(made: ServerState, tmp_path: Path) -> Iterator[Path]:
    """The folder of the run of this test's name at a server whose operations endpoint is up."""
    run = RunFolder.create(made.path / "runs" / tmp_path.name, Experiment.load("", OVERRIDES))
    with operations(made):
        yield run.path


class Flower:
    """What stands for Flower: the states of its runs, and what it was asked for."""

    def __init__(self) -> None:
        self.runs: dict[str, Status] = {}
        self.asked: list[tuple[str, str]] = []
        self.at_submit: BaseException | None = None

    def submit(self, connection: Any, experiment: Any, name: str, resume: bool) -> str:
        self.asked.append(("run", name))
        if self.at_submit:
            raise self.at_submit
        return "99"

    def status(self, connection: Any, run: str) -> Status:
        assert run.isdecimal(), "it goes into a command line"
        if run not in self.runs:
            raise UnknownRun(f"no run {run}")
        return self.runs[run]

    def stop(self, connection: Any, run: str) -> None:
        self.asked.append(("stop", run))

    def follow(self, mirror: Any, run: str, say: Any) -> None:
        self.asked.append(("follow", run))
        raise KeyboardInterrupt


@pytest.fixture
def flower(monkeypatch: pytest.MonkeyPatch) -> Flower:
    """Flower, replaced."""
    stand_in = Flower()
    for name in ("submit", "status", "stop"):
        monkeypatch.setattr(submit, name, getattr(stand_in, name))
    monkeypatch.setattr(follow, "follow", stand_in.follow)
    return stand_in


@pytest.fixture
def call(fedpeft: Command, server: Path, tmp_path: Path) -> Command:
    """Return what calls ``fedpeft run`` for the run, at home in ``tmp_path/home``."""
    here = ("--on", server.parents[1], "--name", server.name, "--out", tmp_path / "home")
    return lambda *more: fedpeft("run", *here, *SETTINGS, *more)


def keep(folder: Path, file: str, **content: Any) -> None:
    folder.mkdir(exist_ok=True)
    (folder / file).write_text(json.dumps(content))


@pytest.mark.parametrize("home", [None, "", "--database", 7.5, "6"])
@pytest.mark.parametrize("option", ["--resume", "--stop"])
def test_the_server_tells_the_id_that_home_lacks(
    call: Command, server: Path, flower: Flower, tmp_path: Path, home: Any, option: str
) -> None:
    RunFolder.create(tmp_path / "home", Experiment.load("", OVERRIDES))
    keep(server, "run.json", run="7")
    if home is not None:
        keep(tmp_path / "home", "submitted.json", name=server.name, run=home)
    flower.runs = {"6": STOPPED, "7": RUNNING}
    with RunFolder(server).locked():
        code, _, _ = call(option)
    assert flower.asked == [("follow" if option == "--resume" else "stop", "7")]
    assert code == (130 if option == "--resume" else 0)


@pytest.mark.parametrize("theirs", [{}, {"run": "7"}, {"run": "--x"}, {"run": ["7"]}])
def test_a_run_that_nobody_goes_on_with_is_given_again(
    call: Command, server: Path, flower: Flower, tmp_path: Path, theirs: dict[str, Any]
) -> None:
    RunFolder.create(tmp_path / "home", Experiment.load("", OVERRIDES))
    keep(server, "run.json", **theirs)
    flower.runs = {"7": STOPPED}
    code, _, said = call("--stop")
    assert code == 2 and f"nothing to stop: no run '{server.name}' goes on" in said
    call("--resume")
    assert flower.asked == [("run", server.name), ("follow", "99")]
    kept = json.loads((tmp_path / "home" / "submitted.json").read_text())
    assert kept == {"name": server.name, "run": "99"}


def test_a_run_whose_server_app_is_dead_is_ended_and_given_again(
    call: Command, server: Path, flower: Flower, tmp_path: Path
) -> None:
    """Flower takes a minute to notice; nobody holds the run's folder any more."""
    RunFolder.create(tmp_path / "home", Experiment.load("", OVERRIDES))
    keep(server, "run.json", run="7")
    flower.runs = {"7": RUNNING}
    _, printed, _ = call("--resume")
    assert flower.asked == [("stop", "7"), ("run", server.name), ("follow", "99")]
    assert "run 7 had died at the server; it goes on as a new one\n" in printed


@pytest.mark.parametrize("ended", [{"run": "7", "ok": True}, None])
def test_a_run_that_has_just_completed_or_not_yet_begun_is_not_dead(
    call: Command, server: Path, flower: Flower, tmp_path: Path, ended: dict[str, Any] | None
) -> None:
    RunFolder.create(tmp_path / "home", Experiment.load("", OVERRIDES))
    keep(tmp_path / "home", "submitted.json", name=server.name, run="7")
    keep(server, "run.json", run="7" if ended else "6")
    if ended:
        keep(server, "ended.json", **ended)
    flower.runs = {"7": RUNNING}
    call("--resume")
    assert flower.asked == [("follow", "7")]


def test_a_server_that_does_not_say_gets_no_second_run(
    call: Command, server: Path, flower: Flower, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def busy(connection: Any, run: str) -> Status:
        raise UserError("Flower refused 'flwr ls': database is locked")

    monkeypatch.setattr(submit, "status", busy)
    RunFolder.create(tmp_path / "home", Experiment.load("", OVERRIDES))
    keep(server, "run.json", run="7")
    code, _, said = call("--resume")
    assert code == 2 and "database is locked" in said
    assert flower.asked == []


def test_ctrl_c_while_the_run_is_given_says_that_it_may_go_on(
    fedpeft: Command, made: ServerState, flower: Flower, tmp_path: Path
) -> None:
    flower.at_submit, out = KeyboardInterrupt(), tmp_path / "home"
    with operations(made):
        arguments = ("--on", made.path, "--out", out, "--name", "interrupted")
        code, _, said = fedpeft("run", *arguments, *SETTINGS)
    assert code == 130 and said.count("\n") == 1
    assert said.startswith("interrupted while the server was given the run, which may go on there:")
    assert f"'--out {out} --resume' comes back to it or gives it again" in said
    # Its name is kept, so that --resume and --stop find it.
    assert json.loads((out / "submitted.json").read_text()) == {"name": "interrupted"}


def test_a_name_that_is_no_text_is_refused(
    fedpeft: Command, server: Path, flower: Flower, tmp_path: Path
) -> None:
    keep(tmp_path / "home", "submitted.json", name=5)
    for option in ("--resume", "--stop"):
        here = ("--on", server.parents[1], "--out", tmp_path / "home")
        code, _, said = fedpeft("run", *here, option)
        assert code == 2 and "'5': expected a --name of letters" in said
