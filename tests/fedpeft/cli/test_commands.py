"""The command line as a person uses it: output, exit codes, and what is not overwritten."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
import typer

from fedpeft.cli.app import command_line
from fedpeft.experiment.config import Experiment

QUICK = """
backbone = "tiny"
[task]
train_limit = 60
eval_limit = 20
[method]
name = "slash"
d = 8
[federation]
clients = 2
rounds = 2
[engine]
threads = 1
[output]
plots = false
"""


@pytest.fixture
def experiment(tmp_path: Path) -> Path:
    """A quick experiment's file."""
    path = tmp_path / "quick.toml"
    path.write_text(QUICK)
    return path


def test_simulate_prints_every_round_and_writes_the_run(
    fedpeft, experiment: Path, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    code, printed, errors = fedpeft("simulate", experiment, "-s", "output.plots=true", "--out", out)
    assert (code, errors) == (0, "")
    assert [f"round {n}/2" in printed for n in (1, 2)] == [True, True]
    result = json.loads((out / "result.json").read_text())
    assert f"{result['score']:.4f}" in printed
    assert (out / "plots" / "curves.png").stat().st_size > 10_000
    assert (out / "plots" / "partition.png").stat().st_size > 5_000


def test_a_finished_run_is_not_overwritten_and_resuming_it_is_no_error(
    fedpeft, experiment: Path, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    fedpeft("simulate", experiment, "--out", out)
    before = {path.name: path.read_bytes() for path in out.iterdir() if path.is_file()}
    code, _, errors = fedpeft("simulate", experiment, "--out", out)
    assert code == 2 and "holds this run, finished" in errors
    code, _, errors = fedpeft("simulate", experiment, "-s", "method.d=9", "--out", out, "--resume")
    assert code == 2 and "method.d (8 and 9)" in errors
    assert {path.name: path.read_bytes() for path in out.iterdir() if path.is_file()} == before
    digest = json.loads((out / "result.json").read_text())["digests"]["vector"]
    code, _, errors = fedpeft("simulate", "--out", out, "--resume")  # the folder's experiment
    assert (code, errors) == (0, "")
    assert json.loads((out / "result.json").read_text())["digests"]["vector"] == digest


def test_a_run_continues_from_the_round_before_the_last_to_the_same_bits(
    fedpeft, experiment: Path, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    fedpeft("simulate", experiment, "-s", "federation.rounds=3", "--out", out)
    digest = json.loads((out / "result.json").read_text())["digests"]["vector"]
    code, _, errors = fedpeft("simulate", "--out", out, "--resume", "--from-round", "1")
    assert code == 2 and errors.count("\n") == 1
    assert f"--from-round 1: '{out}' keeps the state after rounds 2 and 3 only" in errors
    code, _, errors = fedpeft("simulate", "--out", out, "--resume", "--from-round", "2")
    assert (code, errors) == (0, "")
    assert json.loads((out / "result.json").read_text())["digests"]["vector"] == digest
    for name in ("rounds.jsonl", "bytes.jsonl"):
        rounds = [json.loads(line)["round"] for line in (out / name).read_text().splitlines()]
        expected = {1, 2, 3} if name == "rounds.jsonl" else {0, 1, 2, 3}  # 0: the start
        assert set(rounds) == expected and rounds == sorted(rounds)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["simulate", "--resume"], "--resume needs --out"),
        (["simulate", "--out", "run", "--from-round", "2"], "--from-round 2 needs --resume"),
        (["simulate", "--from-round", "x"], "x"),
        (["run", "--on", "x", "--from-round", "2"], "--from-round 2 needs --resume"),
        (["simulate", "nowhere.toml"], "no experiment file 'nowhere.toml'"),
        (["simulate", "-s", "task.name=sst3"], "did you mean 'sst2'"),
        (["simulate", "-s", "method.name=slsh"], "did you mean 'slash'"),
        (["simulate", "-s", "backbone=minilmm"], "did you mean 'minilm'"),
        (
            ["simulate", "-s", "federation.clients=500", "-s", "task.train_limit=100"],
            "federation.clients = 500",
        ),
        (["simulate", "-s", "task.name=sst2", "-s", "task.path=/nowhere"], "/nowhere"),
        (["simulate", "-s", "task.max_length=600"], "task.max_length = 600"),
        (["simulate", "--nonsense"], "--nonsense"),
        (["simulat"], "error: No such command 'simulat'. Did you mean 'simulate'?; see "),
        (["keys", "nod"], "error: No such command 'nod'. Did you mean 'node'?; see "),
        (["methods", "-s", "method.nonsense=1"], "no method has this setting"),
        (["methods", "--backbone", "./nowhere"], "no such folder"),
    ],
)
def test_mistakes_end_with_code_2_and_one_line(
    fedpeft, arguments: list[str], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    code, _, errors = fedpeft(*arguments)
    assert code == 2 and words in errors
    assert errors.count("\n") == 1
    assert not list(tmp_path.iterdir()), "nothing may be written"


def test_config_prints_a_complete_experiment(fedpeft) -> None:
    code, printed, _ = fedpeft("config", "-s", "method.name=lora")
    assert code == 0
    assert Experiment.load(printed) == Experiment.load("", ["method.name=lora"])


def test_methods_table_as_json(fedpeft) -> None:
    code, printed, _ = fedpeft(
        "methods", "--backbone", "roberta-large", "--classes", "3", "-s", "method.d=2048", "--json"
    )
    rows = {row["method"]: row for row in json.loads(printed)}
    assert code == 0
    assert rows["slash"]["parameters"] == 2048 and rows["slash"]["head"] == 3075
    assert rows["slash"]["payload_bytes"] == 4 * 5123
    assert rows["slash"]["settings"]["d"] == rows["jr_warp"]["settings"]["d"] == 2048
    assert rows["lora"]["parameters"] == 98_304


def test_methods_and_tasks_as_tables(fedpeft) -> None:
    for command in ("methods", "tasks"):
        code, printed, _ = fedpeft(command)
        assert code == 0 and len(printed.splitlines()) > 4
    code, printed, _ = fedpeft("tasks", "--json")
    assert {"name", "kind", "metric", "best"} <= set(json.loads(printed)[0])


def every_command(command: click.Command, *names: str) -> Iterator[tuple[str, ...]]:
    """Yield the names of all commands that are not groups."""
    if not isinstance(command, click.Group):
        yield names
        return
    for name, child in command.commands.items():
        yield from every_command(child, *names, name)


def leaves_of(command: click.Command) -> Iterator[click.Command]:
    """Yield all commands that are not groups."""
    for child in command.commands.values() if isinstance(command, click.Group) else ():
        yield from leaves_of(child)
    if not isinstance(command, click.Group):
        yield command


def test_every_command_has_help_with_an_example(fedpeft) -> None:
    for command in every_command(typer.main.get_command(command_line())):
        code, printed, _ = fedpeft(*command, "--help")
        assert code == 0 and f"Example: fedpeft {' '.join(command)}" in printed


def test_no_two_pages_or_servers_have_one_port_by_default() -> None:
    commands = [*leaves_of(typer.main.get_command(command_line()))]
    options = [option for command in commands for option in command.params]
    ports = [option.default for option in options if option.name == "port" and option.default]
    assert len(ports) == len({*ports}) >= 3


def test_help_says_what_arguments_are(fedpeft) -> None:
    for command, words in (
        ("simulate", "Experiment file"),
        ("server remove-node", "Name of the node, its id"),
    ):
        code, printed, _ = fedpeft(*command.split(), "--help")
        assert code == 0 and words in printed


def test_help_needs_no_torch() -> None:
    code = (
        "import sys; from fedpeft.cli.app import main\n"
        "try: main(['--help'])\n"
        "except SystemExit: pass\n"
        "heavy = {'torch', 'transformers', 'flwr', 'datasets', 'pandas'} & set(sys.modules)\n"
        "sys.exit(f'imported {heavy}' if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.long
def test_a_run_and_its_predictions_need_no_pandas(tmp_path: Path) -> None:
    """pandas and pyarrow take 70 MB of memory."""
    (tmp_path / "a.tsv").write_text("text\tlabel\n" + "good\tyes\nbad\tno\n" * 8)
    settings = (
        *("backbone=tiny", "task.name=custom", f"task.path={tmp_path}", "task.train=a.tsv"),
        *("method.d=8", "federation.clients=2", "federation.rounds=1", "output.plots=false"),
    )
    run = str(tmp_path / "run")
    simulate = ["simulate", "--out", run, *(part for one in settings for part in ("-s", one))]
    code = (
        "import sys, deployment.node.worker; from fedpeft.cli.app import main\n"
        f"for command in ({simulate}, ['predict', {run!r}, {str(tmp_path / 'a.tsv')!r}]):\n"
        "    try: main(command)\n"
        "    except SystemExit as end: assert not end.code\n"
        "heavy = {'pandas', 'pyarrow', 'datasets', 'matplotlib'} & set(sys.modules)\n"
        "sys.exit(f'imported {heavy}' if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
