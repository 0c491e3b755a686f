"""``fedpeft run`` where the answer to its submission is lost: the server knows whose the run is."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from servers import operations, server_folder

from deployment.operator import follow, submit
from deployment.operator.flwr_cli import UnknownRun
from deployment.operator.submit import Status
from deployment.server.folder import ServerFolder
from fedpeft.errors import UserError
from fedpeft.experiment.config import Experiment
from fedpeft.runs.folder import RunFolder

Command = Callable[..., tuple[int, str, str]]
OVERRIDES = ["backbone=tiny", "method.d=8", "output.plots=false"]
SETTINGS = [part for override in OVERRIDES for part in ("-s", override)]
RUNNING, STOPPED = Status("running"), Status("finished", "stopped")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> ServerFolder:
    """A server's state; its keys take a moment."""
    return server_folder(tmp_path_factory.mktemp("server"))


@pytest.fixture
def server(made: ServerFolder, tmp_path: Path) -> Iterator[Path]:
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

    def submit(
        self, connection: Any, experiment: Any, name: str, resume: bool, from_round: int | None
    ) -> str:
        self.asked.append(("run", name if from_round is None else f"{name} from {from_round}"))
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

    def follow(self, mirror: Any, run: str, say: Any, timing: Any) -> None:
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


def test_the_start_of_a_local_server_that_is_down_is_named(
    fedpeft: Command, made: ServerFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # the default folder of runs is below it
    (tmp_path / "mine").mkdir()
    for out in ([], ["--out", "out"], ["--out", "mine"]):
        code, _, said = fedpeft("run", "--on", made.path, *SETTINGS, *out)
        assert code == 2 and said.count("\n") == 1
        assert f"'fedpeft server up --state {made.path}' starts the server" in said
    assert [*(tmp_path / "runs").iterdir()] == [*(tmp_path / "mine").iterdir()] == []
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("home", [None, "", "--database", 7.5, "6"])
@pytest.mark.parametrize("option", ["--resume", "--stop"])
def test_the_server_has_the_run_id_that_the_local_folder_lacks(
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


@pytest.mark.parametrize(
    ("end", "said"),
    [("completed", "has finished"), ("failed", "has failed"), ("stopped", "was stopped before")],
)
def test_stop_says_how_a_run_ended(
    call: Command, server: Path, flower: Flower, end: str, said: str
) -> None:
    keep(server, "run.json", run="7")
    flower.runs = {"7": Status("finished", end)}
    assert call("--stop") == (2, "", f"error: nothing to stop: run 7 {said}\n")
    assert not flower.asked


@pytest.mark.parametrize("theirs", [{}, {"run": "7"}, {"run": "--x"}, {"run": ["7"]}])
def test_an_ended_run_is_submitted_again(
    call: Command, server: Path, flower: Flower, tmp_path: Path, theirs: dict[str, Any]
) -> None:
    RunFolder.create(tmp_path / "home", Experiment.load("", OVERRIDES))
    keep(server, "run.json", **theirs)
    flower.runs = {"7": STOPPED}
    code, _, said = call("--stop")
    stopped = f"no active run '{server.name}'" if theirs != {"run": "7"} else "run 7 was stopped"
    assert code == 2 and f"nothing to stop: {stopped}" in said
    call("--resume")
    assert flower.asked == [("run", server.name), ("follow", "99")]
    kept = json.loads((tmp_path / "home" / "submitted.json").read_text())
    assert kept == {"name": server.name, "run": "99"}


def test_a_run_with_a_dead_server_app_is_stopped_and_submitted_again(
    call: Command, server: Path, flower: Flower, tmp_path: Path
) -> None:
    """Flower takes a minute to notice; nobody holds the run's folder any more."""
    RunFolder.create(tmp_path / "home", Experiment.load("", OVERRIDES))
    keep(server, "run.json", run="7")
    flower.runs = {"7": RUNNING}
    _, printed, _ = call("--resume")
    assert flower.asked == [("stop", "7"), ("run", server.name), ("follow", "99")]
    assert "run 7 had died at the server; continuing it as a new run\n" in printed


@pytest.mark.parametrize("state", [STOPPED, Status("finished", "completed")])
def test_an_ended_run_is_submitted_again_from_a_round(
    call: Command, server: Path, flower: Flower, tmp_path: Path, state: Status
) -> None:
    RunFolder.create(tmp_path / "home", Experiment.load("", OVERRIDES))
    keep(server, "run.json", run="7")
    flower.runs = {"7": state}
    call("--resume", "--from-round", "3")
    assert flower.asked == [("run", f"{server.name} from 3"), ("follow", "99")]


def test_an_active_run_cannot_continue_from_a_round(
    call: Command, server: Path, flower: Flower, tmp_path: Path
) -> None:
    RunFolder.create(tmp_path / "home", Experiment.load("", OVERRIDES))
    keep(server, "run.json", run="7")
    flower.runs = {"7": RUNNING}
    with RunFolder(server).locked():
        code, _, said = call("--resume", "--from-round", "3")
    assert code == 2 and "--from-round: run 7 is active at the server; --stop stops it" in said
    assert flower.asked == []


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


def test_without_a_status_of_the_run_no_second_one_is_submitted(
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


def test_ctrl_c_during_a_submission_says_that_the_run_may_exist(
    fedpeft: Command, made: ServerFolder, flower: Flower, tmp_path: Path
) -> None:
    flower.at_submit, out = KeyboardInterrupt(), tmp_path / "home"
    with operations(made):
        arguments = ("--on", made.path, "--out", out, "--name", "interrupted")
        code, _, said = fedpeft("run", *arguments, *SETTINGS)
    assert code == 130 and said.count("\n") == 1
    assert said.startswith("interrupted; the server may have received the run; in a minute,")
    assert f"'--out {out} --resume' reconnects or submits it again" in said
    # Its name is kept, so that --resume and --stop find it.
    assert json.loads((out / "submitted.json").read_text()) == {"name": "interrupted"}


def test_a_name_that_is_not_a_string_is_refused(
    fedpeft: Command, server: Path, flower: Flower, tmp_path: Path
) -> None:
    keep(tmp_path / "home", "submitted.json", name=5)
    for option in ("--resume", "--stop"):
        here = ("--on", server.parents[1], "--out", tmp_path / "home")
        code, _, said = fedpeft("run", *here, option)
        assert code == 2 and "'5': expected a --name of letters" in said
