"""Pictures are there, open, and show something."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from clients.partition import Partition
from fedpeft.experiment.config import Experiment
from fedpeft.tasks import Examples, Task, TaskInfo
from server.runfolder import RunFolder
from simulations import plots
from simulations.simulation import prepare, simulate
from simulations.spread import called, names_of

Quick = Callable[..., Experiment]


def picture(path: Path) -> np.ndarray:
    """Return the pixels of a PNG file, [height, width, 3]."""
    from matplotlib import image

    return image.imread(path)[:, :, :3]


def colours(pixels: np.ndarray) -> int:
    return len(np.unique((pixels * 255).astype(np.uint8).reshape(-1, 3), axis=0))


def assert_shows(pixels: np.ndarray, colour: tuple[int, int, int]) -> None:
    """Check that a colour is there, and that the picture is not filled with it."""
    near = np.abs(pixels * 255 - np.array(colour)).max(axis=2) < 8
    assert 20 < near.sum() < near.size / 2


BLUE, ORANGE = (31, 119, 180), (255, 127, 14)  # matplotlib's tab:blue and tab:orange


@pytest.mark.parametrize(
    "settings", [("partition.kind=dirichlet",), ("task.name=synthetic/similarity",)]
)
def test_a_run_is_drawn(quick: Quick, tmp_path: Path, settings: tuple[str, ...]) -> None:
    experiment = quick("federation.rounds=3", "output.eval_every=2", *settings)
    folder, runtime = prepare(experiment, tmp_path / "run")
    simulate(folder, experiment)
    plots.draw_run(folder, runtime)
    curves = picture(folder.path / "plots" / "curves.png")
    partition = picture(folder.path / "plots" / "partition.png")
    assert_shows(curves, BLUE)
    assert_shows(curves, ORANGE)
    assert colours(partition) > 3


def task_of(labels: np.ndarray, *names: str) -> Task:
    """A task of so many classes; its texts are not looked at."""
    info = TaskInfo("some", "classes", names, False, "accuracy", None, "")
    examples = Examples([""] * len(labels), None, labels)
    return Task(info, examples, examples)


def test_a_class_is_a_colour(tmp_path: Path) -> None:
    rows = Partition.of([np.arange(10), np.arange(10, 30)])
    labels = np.arange(30) % 2
    plots.draw_partition(tmp_path / "two.png", rows, task_of(labels, "no", "yes"))
    assert_shows(picture(tmp_path / "two.png"), BLUE)
    assert_shows(picture(tmp_path / "two.png"), ORANGE)
    plots.draw_partition(tmp_path / "one.png", rows, task_of(labels * 0, "no"))
    assert_shows(picture(tmp_path / "one.png"), BLUE)
    with pytest.raises(AssertionError):
        assert_shows(picture(tmp_path / "one.png"), ORANGE)


def test_many_clients_still_fit(tmp_path: Path) -> None:
    rows = Partition.of(list(np.arange(600).reshape(300, 2)))
    plots.draw_partition(tmp_path / "many.png", rows, task_of(np.arange(600) % 2, "no", "yes"))
    height, width, _ = picture(tmp_path / "many.png").shape
    assert width < 10 * height


@pytest.mark.filterwarnings("error")  # of matplotlib, if the legend leaves no room
def test_many_classes_still_fit(tmp_path: Path) -> None:
    rows = Partition.of(list(np.arange(60).reshape(2, 30)))
    names = [f"class number {number}" for number in range(60)]
    plots.draw_partition(tmp_path / "many.png", rows, task_of(np.arange(60), *names))
    assert_shows(picture(tmp_path / "many.png"), BLUE)


def test_one_round_without_a_score_can_be_drawn(tmp_path: Path) -> None:
    sizes = {"payload": 1, "message": 2}
    line = {"round": 1, "score": None, "loss": 0.5, "bytes": {"up": sizes, "down": sizes}}
    (tmp_path / "rounds.jsonl").write_text(json.dumps(line) + "\n")
    plots.draw_curves(RunFolder(tmp_path), Experiment(), "accuracy")
    assert_shows(picture(tmp_path / "plots" / "curves.png"), ORANGE)


@pytest.mark.parametrize("name", ["$\\frac{", "$5$ to $10$", "标签", "a\nb", "_hidden", "\\"])
def test_names_of_any_kind_are_drawn(
    name: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    rows = replace(Partition.of([np.arange(3), np.arange(3, 8)]), names=(name, "other"))
    with plots.isolated("it"):
        plots.draw_partition(tmp_path / "p.png", rows, task_of(np.arange(8) % 2, name, "b"))
    assert colours(picture(tmp_path / "p.png")) > 3
    assert capfd.readouterr().err == ""


def test_a_failed_picture_costs_one_line(
    quick: Quick, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    experiment = quick("federation.rounds=1")
    folder, runtime = prepare(experiment, tmp_path / "run")
    simulate(folder, experiment)
    (folder.path / "plots").write_text("in the way")
    plots.draw_run(folder, runtime)
    lines = capfd.readouterr().err.splitlines()
    assert [line.split(" was not drawn (")[0] for line in lines] == [
        f"warning: {folder.path}/plots/curves.png",
        f"warning: {folder.path}/plots/partition.png",
    ]


def test_clients_of_a_column_have_its_values_as_names(quick: Quick, tmp_path: Path) -> None:
    """In the files of the run, in the text of failures, and for the pages."""
    rows = "".join(f"text {n},{n % 2},{'north' if n < 7 else 'so$u$th'}\n" for n in range(20))
    (tmp_path / "a.csv").write_text(f"text,label,store\n{rows}")
    experiment = quick(
        "task.name=custom",
        f"task.train={tmp_path / 'a.csv'}",
        "task.train_limit=0",
        "task.eval_limit=0",
        "partition.kind=natural",
        "partition.column=store",
        "federation.clients=2",
        "federation.rounds=1",
    )
    folder, runtime = prepare(experiment, tmp_path / "run")
    kept = json.loads((folder.path / "partition.json").read_text())
    assert kept["names"] == ["so$u$th", "north"]
    texts = [{runtime.task.train.owners[row] for row in rows} for rows in kept["clients"]]
    assert texts == [{"so$u$th"}, {"north"}]
    assert names_of(folder.path) == kept["names"]
    assert called({"client": 1, "reason": ""}, kept["names"]) == "client 1 (north)"
    assert called({"client": 1, "name": "site", "reason": ""}, ()) == "client 1 (site)"
    assert called({"client": 7, "reason": ""}, kept["names"]) == "client 7"
