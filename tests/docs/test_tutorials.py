"""The commands of the tutorials work as written."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest
from pages import ROOT, Reader

TUTORIALS = ROOT / "docs" / "tutorials"


def read(name: str, folder: Path) -> list[str]:
    """Run the commands of a tutorial in a folder; return what they printed."""
    reader = Reader(folder)
    reader.read(TUTORIALS / f"{name}.md")
    return reader.outputs


@pytest.mark.long
@pytest.mark.parametrize("name", ["first-run", "own-data", "private-run"])
def test_commands_of_tutorial_succeed(name: str, tmp_path: Path) -> None:
    assert read(name, tmp_path)


@pytest.mark.long
def test_guide_to_text_writes_texts_and_predicts_classes(tmp_path: Path) -> None:
    """The small random model learns to copy the color."""
    reader = Reader(tmp_path)
    reader.read(ROOT / "docs" / "how-to" / "text.md")
    lines = (tmp_path / "written.jsonl").read_text("utf-8").splitlines()
    assert len(lines) == 120
    result = json.loads((tmp_path / "runs" / "colours" / "result.json").read_text("utf-8"))
    assert result["metric"] == "rougeL" and result["score"] > 0.7
    assert (tmp_path / "model" / "model.safetensors").is_file()
    classes = [json.loads(line) for line in (tmp_path / "classes.jsonl").read_text().splitlines()]
    assert len(classes) == 120 and len(classes[0]["probabilities"]) == 6
    result = json.loads((tmp_path / "runs" / "classes" / "result.json").read_text("utf-8"))
    assert result["metric"] == "accuracy" and result["score"] > 0.9 and result["head_size"] == 0
    assert (tmp_path / "classifier" / "model.safetensors").is_file()


@pytest.mark.long
def test_study_tutorial_draws_a_report_without_texts(tmp_path: Path) -> None:
    outputs = "".join(read("study", tmp_path))
    assert "[8/8]" in outputs and "slash: accuracy " in outputs and "over 2 seeds" in outputs
    page = (tmp_path / "runs" / "studies" / "reviews" / "report.html").read_text("utf-8")
    assert "Which method for my reviews?" in page and "bitfit" in page
    assert "They called it" not in page


@pytest.fixture
def port_is_free() -> None:
    """Skip a test of a deployment if something else uses its port."""
    with socket.socket() as server:
        if server.connect_ex(("127.0.0.1", 9092)) == 0:
            pytest.skip("port 9092, which the tutorials of deployments use, is taken")


@pytest.mark.long
@pytest.mark.usefixtures("port_is_free")
def test_deployment_tutorial_ends_with_a_run_of_three_nodes(tmp_path: Path) -> None:
    status = read("deployment", tmp_path)[-1]
    assert all(name in status for name in ("north", "south", "east", "second"))
    assert status.count("online") == 3 and status.count("3 of 3") == 3
    result = json.loads((tmp_path / "runs" / "second" / "result.json").read_text("utf-8"))
    assert result["clients"] == 3 and result["score"] > 0.8


@pytest.mark.long
@pytest.mark.usefixtures("port_is_free")
def test_secure_tutorial_loses_a_node_and_ends_with_its_privacy(tmp_path: Path) -> None:
    spent = read("secure", tmp_path)[-1]
    assert "epsilon" in spent and "client" in spent
    rounds = {}
    for name in ("sums", "lost", "noise"):
        lines = (tmp_path / "runs" / name / "rounds.jsonl").read_text("utf-8").splitlines()
        rounds[name] = [json.loads(line) for line in lines]
    assert [len(lines) for lines in rounds.values()] == [3, 3, 3]
    assert [line["clients"] for line in rounds["lost"]] in ([5, 4, 4], [5, 5, 4])
    assert [line["clients"] for line in rounds["sums"] + rounds["noise"]] == [5] * 6
    assert rounds["sums"][-1]["score"] > 0.8 and 7 < rounds["noise"][-1]["epsilon"] < 8
