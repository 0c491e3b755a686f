"""Starting a run from a server's page: who may, and what is refused. No SuperLink runs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from servers import operations, server_folder
from visitors import Visitor

from deployment.operator.page import page_token
from fedpeft.cli.app import main
from fedpeft.experiment.config import Experiment
from fedpeft.runs.folder import RunFolder
from fedpeft.wire.messages import EXPERIMENT_BYTES

GOOD = b'backbone = "tiny"\n[task]\nname = "synthetic/sentiment"\n'
#: Texts of experiments that the command line refuses in the same words.
WRONG = {
    "TOML": "task = [",
    "key": "seeed = 1",
    "section": "[locl]\nlr = 1.0",
    "value": "[federation]\nrounds = -1",
    "contradiction": "[federation]\nclients = 4\nper_round = 9",
    "ray": '[engine]\nkind = "ray"',
    "malicious": "[adversary]\nfraction = 0.5",
    "devices": "[devices]\nstep_seconds = 1.0",
    "long": f'head.start = "random"\ntask.name = "custom"\ntask.train = "{"t" * 65_000}"\n'
    'task.labels = ["a", "b"]',
}


@pytest.fixture(scope="module")
def visitor(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Visitor]:
    state = server_folder(tmp_path_factory.mktemp("start"))
    with operations(state):
        yield Visitor(state)


def runs(visitor: Visitor) -> list[str]:
    folder = visitor.state.path / "runs"
    return sorted(path.name for path in folder.iterdir()) if folder.exists() else []


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_experiment_is_refused_in_the_words_of_the_command(
    visitor: Visitor, name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "experiment.toml"
    file.write_text(WRONG[name])
    on, out = str(visitor.state.path), str(tmp_path / "out")
    with pytest.raises(SystemExit) as stop:
        main(["run", str(file), "--on", on, "--out", out, "--name", "fresh"])
    assert stop.value.code == 2
    command = capsys.readouterr().err.removeprefix("error: ").removeprefix(f"{file}: ")
    answer = visitor.act("start?name=fresh", WRONG[name].encode())
    assert (answer.status, answer.text) == (409, command)
    assert answer.text.count("\n") == 1 and runs(visitor) == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b'[wire]\nbudget = "1 KB"', "wire.budget = '1 KB': `fedpeft config FILE` chooses"),
        (b'[output]\ntrack = ["mlflow"]', "only `fedpeft run` reports to other tools"),
    ],
)
def test_what_only_the_command_does_is_refused(
    visitor: Visitor, text: bytes, expected: str
) -> None:
    answer = visitor.act("start?name=fresh", text)
    assert answer.status == 409 and expected in answer.text


@pytest.mark.parametrize("name", ["", "..", "../up", "a/b", ".hidden", "x" * 101, "a%00b", "a%20b"])
def test_names_are_plain(visitor: Visitor, name: str) -> None:
    answer = visitor.act(f"start?name={name}", GOOD)
    assert answer.status == 409
    assert "expected a name of letters, digits and . _ -, at most 100" in answer.text


def test_a_name_is_taken_once_even_by_a_link(visitor: Visitor, tmp_path: Path) -> None:
    taken = visitor.state.path / "runs" / "taken"
    link = taken.with_name("link")
    RunFolder.create(taken, Experiment.load(GOOD.decode()))
    link.symlink_to(tmp_path / "nowhere")
    try:
        for name in ("taken", "link"):
            answer = visitor.act(f"start?name={name}", GOOD)
            expected = f"the server has a run '{name}' already; choose another name\n"
            assert (answer.status, answer.text) == (409, expected)
    finally:
        link.unlink()
        (taken / "experiment.toml").unlink()
        taken.rmdir()


def test_bodies_are_bounded_text(visitor: Visitor) -> None:
    fits = b"#" * (EXPERIMENT_BYTES - len(GOOD) - 1) + b"\n" + GOOD
    assert visitor.act("start?name=..", fits).status == 409  # read as a whole
    answer = visitor.act("start?name=fresh", b"#" * (EXPERIMENT_BYTES + 1))
    assert (answer.status, answer.text) == (413, "expected a text of at most 65,536 bytes\n")
    answer = visitor.act("start?name=fresh", b"\xff")
    assert answer.status == 400 and answer.text.startswith("not UTF-8 text")


def test_a_server_without_a_superlink_says_so_in_a_line(visitor: Visitor) -> None:
    answer = visitor.act("start?name=fresh", GOOD)
    assert answer.status == 409 and answer.text.startswith("no SuperLink")
    assert answer.text.count("\n") == 1 and runs(visitor) == []


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Cookie": ""}, 401),
        ({"Cookie": "fedpeft-1=wrong"}, 401),
        ({"Host": "evil.example"}, 403),
        ({"Origin": "https://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": ""}, 403),
        ({"Sec-Fetch-Site": "same-site"}, 403),
        ({"X-Fedpeft-Act": ""}, 403),
        ({"X-Fedpeft-Act": "wrong"}, 403),
    ],
)
def test_nobody_else_starts_a_run(visitor: Visitor, headers: dict[str, str], status: int) -> None:
    assert visitor.act("start?name=fresh", GOOD, **headers).status == status
    tokens = {page_token(visitor.state.connection()), visitor.state.connection().token}
    for token in tokens:
        assert visitor.act("start?name=fresh", GOOD, **{"X-Fedpeft-Act": token}).status == 403
    assert runs(visitor) == []


def test_a_get_starts_nothing(visitor: Visitor) -> None:
    assert visitor.get("act/start?name=fresh").status in (404, 405)
