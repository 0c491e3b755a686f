"""The kit of a site: its command fits the experiment, and nothing in it is secret."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path

import pytest
import typer
from servers import server_folder

from clients.described import require_described
from clients.folder import NodeSettings
from fedpeft.cli import node
from fedpeft.errors import UserError
from fedpeft.experiment.config import Experiment
from server.host.kit import write_kit

TASKS = [
    "task.labels=['bad', 'very good']",
    "task.labels=['a', 'b']|task.text=my text|task.text_pair=other|task.label=stars",
    "task.kind=score|task.label=x'y",
    "task.kind=text|task.source=question|task.target=answer|backbone=gpt2",
    "task.name=sst2",
]


def command_of(readme: str) -> list[str]:
    """Return the words of the command that starts the node."""
    code = re.sub(r"\\\n\s*", "", readme)
    [line] = [line for line in code.splitlines() if line.strip().startswith("fedpeft node up")]
    return shlex.split(line)


@pytest.mark.parametrize("given", TASKS)
def test_a_node_that_starts_by_its_kit_accepts_the_experiment(tmp_path: Path, given: str) -> None:
    state, kit = server_folder(tmp_path), tmp_path / "kit"
    settings = given.split("|")
    settings += [] if "task.name" in given else ["task.name=custom"]
    experiment = Experiment.load("", settings)
    write_kit(state, "north", kit, experiment)
    words = command_of((kit / "README.md").read_text())
    up = typer.main.get_command(node.app).commands["up"]  # type: ignore[attr-defined]
    options = up.make_context("up", words[3:]).params
    described = node._described(
        *(options[key] for key in ("task", "text", "text_pair", "label", "source", "target")),
        options["kind"],
        options["labels"],
    )
    require_described(NodeSettings("", **described), experiment.task)
    assert [*options["backbone"]] == [experiment.backbone]
    assert options["superlink"] == f"localhost:{state.ports['public']}" and options["wait"]
    assert [Path(options[key]).name for key in ("key", "ca")] == ["north", "ca.crt"]


def test_a_kit_has_the_certificate_and_no_secret(tmp_path: Path) -> None:
    state, kit = server_folder(tmp_path), tmp_path / "kit"
    write_kit(state, "north", kit, None)
    assert {path.name for path in kit.iterdir()} == {"ca.crt", "README.md"}
    assert (kit / "ca.crt").read_bytes() == state.ca.read_bytes()
    text = (kit / "README.md").read_text()
    assert "PRIVATE" not in text and str(tmp_path) not in text
    assert state.connection().token not in text
    assert "--labels A,B" in text and "roster" not in text
    with pytest.raises(UserError, match="exists already"):
        write_kit(state, "north", kit, None)
    with pytest.raises(UserError, match="not a valid name"):
        write_kit(state, "../north", tmp_path / "other", None)
    assert not (tmp_path / "other").exists()


def test_a_kit_for_masked_sums_asks_for_a_roster(tmp_path: Path) -> None:
    settings = ["federation.secure=true", "federation.clients=3", "task.name=sst2"]
    write_kit(server_folder(tmp_path), "north", tmp_path, Experiment.load("", settings))
    text = (tmp_path / "README.md").read_text()
    assert "cat *.pub > roster" in text and command_of(text).index("--roster") > 0


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        (["task.name=custom"], "task.labels is empty"),
        (["task.name=custom", "task.labels=['a, b', 'c']"], "label 'a, b' has a comma"),
        (["task.name=synthetic/sentiment"], "is made up"),
    ],
)
def test_an_experiment_that_no_node_can_name_gets_no_kit(
    tmp_path: Path, settings: list[str], reason: str
) -> None:
    state, kit = server_folder(tmp_path), tmp_path / "kit"
    with pytest.raises(UserError, match=reason):
        write_kit(state, "north", kit, Experiment.load("", settings))
    assert not kit.exists()


def test_the_command_prints_the_fingerprint_that_openssl_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from fedpeft.cli import main

    state = server_folder(tmp_path)
    monkeypatch.chdir(tmp_path)
    main(["server", "kit", "north", "--state", str(state.path)])
    check = ["openssl", "x509", "-in", "north-kit/ca.crt", "-noout", "-fingerprint", "-sha256"]
    shown = subprocess.run(check, capture_output=True, text=True, check=True).stdout
    printed = capsys.readouterr().out
    assert shown.split("=")[1].strip() in printed
    assert f"fedpeft server add-node north.pub --state {state.path}" in printed
