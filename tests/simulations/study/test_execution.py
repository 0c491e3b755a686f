"""A study from its file to its table, and what can go wrong on the way."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pandas as pd
import pytest
from small_studies import BASE, GRID, Watched, here

from fedpeft.errors import UserError
from fedpeft.experiment.config import Experiment
from simulations.study.cell_process import Job, Outcome
from simulations.study.execution import Outcomes, Pool, run_study
from simulations.study.folder import StudyFolder
from simulations.study.status import printed, status_of
from simulations.study.table import COLUMNS

FolderOf = Callable[..., StudyFolder]
TABLES = ("table.csv", "table.parquet")


def run(folder: StudyFolder, pool: Pool = here) -> tuple[Outcomes, Watched]:
    watch = Watched()
    return run_study(folder, folder.plan(), pool, watch), watch


def tables(folder: StudyFolder) -> list[bytes]:
    return [(folder.path / name).read_bytes() for name in TABLES]


def test_a_study_makes_one_tidy_table_of_ordinary_runs(folder_of: FolderOf) -> None:
    folder = folder_of(GRID)
    outcomes, watch = run(folder)
    plan = folder.plan()
    cells = plan.cells({})
    assert [*outcomes.finished] == watch.begun == [cell.name for cell in cells]
    assert not outcomes.failed
    assert watch.phases == [("cells", 4, 0)]

    table = pd.read_parquet(folder.path / "table.parquet")
    pd.testing.assert_frame_equal(
        table, pd.read_csv(folder.path / "table.csv", dtype=dict(table.dtypes))
    )
    assert [*table.columns[:2]] == ["axis.seed", "axis.method"]
    assert {*COLUMNS} <= {*table.columns}
    assert [*zip(table["cell"], table["round"], strict=True)] == [
        (cell.name, number) for cell in cells for number in (1, 2)
    ]
    for cell in cells:
        kept = folder.run_of(cell)
        rows = table[table["cell"] == cell.name]
        result = json.loads((kept.path / "result.json").read_text())
        assert [*rows["score"]] == [line["score"] for line in kept.rounds()]
        assert [*rows["metric.f1"]] == [line["metrics"]["f1"] for line in kept.rounds()]
        last = rows.iloc[-1]
        assert bool(last["last"]) and last["vector"] == result["digests"]["vector"]
        for way in ("up", "down"):
            assert last[f"sent_{way}_message"] == result["bytes"][way]["message"]
        assert (
            last["sent_up_payload"] == 2 * 3 * 4 * last["vector_size"]
        )  # rounds, clients, float32
        assert last["client_up_payload"] == 4 * last["vector_size"]


def test_finished_cells_are_not_run_again(finished: StudyFolder, folder_of: FolderOf) -> None:
    before = tables(finished)
    more = GRID.replace("seed = [0, 1]", "seed = [0, 1, 2]")
    _, watch = run(folder_of(GRID, True))
    assert watch.phases == [("cells", 4, 4)] and not watch.begun
    assert tables(finished) == before
    _, watch = run(folder_of(more, True))  # a seed more: the two new cells only
    assert [name.partition("-")[0] for name in watch.begun] == ["2", "2"]
    assert len(pd.read_csv(finished.path / "table.csv")) == 12


@pytest.mark.usefixtures("finished")
def test_runs_of_an_earlier_form_of_the_study_are_named(folder_of: FolderOf) -> None:
    folder = folder_of(GRID.replace("seed = [0, 1]", "seed = [1]"), True)
    _, watch = run(folder)
    assert watch.lines[0].startswith("2 runs in ") and not watch.begun
    assert pd.read_csv(folder.path / "table.csv")["cell"].nunique() == 2
    assert len([*(folder.path / "cells").iterdir()]) == 4


def test_an_interrupted_study_has_a_table_and_continues_to_the_same_one(
    folder_of: FolderOf, grid: StudyFolder
) -> None:
    def stopped(
        jobs: Sequence[Job], started: Callable[[Job], None]
    ) -> Iterator[tuple[Job, Outcome]]:
        for number, done in enumerate(here(jobs, started)):
            if number == 2:
                raise KeyboardInterrupt
            yield done

    folder = folder_of(GRID)
    with pytest.raises(KeyboardInterrupt):
        run(folder, stopped)
    assert pd.read_csv(folder.path / "table.csv")["cell"].nunique() == 3
    run(folder)
    assert tables(folder) == tables(grid)


def test_a_cell_that_fails_is_listed_and_does_not_stop_the_rest(
    folder_of: FolderOf, tmp_path: Path
) -> None:
    text = BASE + (
        '[axes]\ntask = [{ label = "bad", task.name = "sst2", task.path = "PATH", '
        'method.name = "bitfit" }, { label = "good", method.name = "linear" }]'
    ).replace("PATH", str(tmp_path / "glue"))
    folder = folder_of(text)
    outcomes, watch = run(folder)
    (bad,) = outcomes.failed
    assert "no file for task 'sst2'" in outcomes.failed[bad] == watch.outcomes[bad]
    assert [name.partition("-")[0] for name in outcomes.finished] == ["good"]
    status = status_of(folder)
    assert status["cells"] == {"failed": 1, "finished": 1}
    assert [*status["failed"]] == [bad] and "no file for task" in printed(status)

    glue = tmp_path / "glue" / "SST-2"
    glue.mkdir(parents=True)
    for name in ("train.tsv", "dev.tsv"):
        (glue / name).write_text("sentence\tlabel\n" + "fine words\t1\nbad words\t0\n" * 5)
    outcomes, watch = run(folder)
    assert len(outcomes.finished) == 2 and not outcomes.failed
    assert watch.begun == [bad]
    assert status_of(folder)["failed"] == {}


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:50])


def swap(path: Path) -> None:
    result = json.loads(path.read_text())
    result["digests"]["experiment"] = "0" * 64
    path.write_text(json.dumps(result))


def lose(path: Path) -> None:
    result = json.loads(path.read_text())
    del result["vector_size"]
    path.write_text(json.dumps(result))


def shorten(path: Path) -> None:
    path.write_text(path.read_text().splitlines(keepends=True)[0])


@pytest.mark.parametrize(
    ("name", "harm", "said"),
    [
        ("result.json", cut, "JSONDecodeError"),
        ("result.json", swap, "the result of another run"),
        ("result.json", lose, "KeyError: 'vector_size'"),
        ("rounds.jsonl", shorten, "1 of 2 rounds"),
        ("rounds.jsonl", lambda path: path.write_text("{]\n"), "rounds.jsonl' line 1 is damaged"),
    ],
)
def test_a_damaged_result_is_named_set_aside_and_run_again(
    finished: StudyFolder, name: str, harm: Callable[[Path], None], said: str
) -> None:
    folder = finished
    before, cell = tables(folder), folder.plan().cells({})[1]
    harm(folder.run_of(cell).path / name)
    _, watch = run(folder)
    (line,) = watch.lines
    assert line.startswith("damaged: ") and said in line and str(folder.run_of(cell).path) in line
    assert watch.begun == [cell.name]
    assert (folder.path / "damaged" / cell.name / name).exists()
    assert tables(folder) == before


def test_a_damaged_checkpoint_of_an_unfinished_cell_is_set_aside_too(
    finished: StudyFolder,
) -> None:
    folder = finished
    before, cell = tables(folder), folder.plan().cells({})[0]
    for number in (1, 2):  # the second time the first one's place is taken
        (folder.run_of(cell).path / "result.json").unlink()
        cut(folder.run_of(cell).path / "checkpoint.safetensors")
        _, watch = run(folder)
        assert "checkpoint.safetensors' is damaged" in watch.lines[0]
        assert len([*(folder.path / "damaged").iterdir()]) == number
    assert tables(folder) == before


def test_the_search_comes_first_and_its_best_is_used(folder_of: FolderOf) -> None:
    folder = folder_of(GRID + "[search]\nover.local.lr = [1e-9, 0.3]\nset.federation.rounds = 1")
    _, watch = run(folder)
    assert watch.phases == [("search", 4, 0), ("cells", 4, 0)]
    found = json.loads((folder.path / "best.json").read_text())
    best = {each["axes"]["method"]: each for each in found}
    plan = folder.plan()
    for label, found in best.items():
        scores = {
            trial.values["local.lr"]: folder.read(trial.cell).result["score"]
            for trial in plan.trials
            if trial.key == (label,)
        }
        assert found["score"] == max(scores.values())
        assert scores[found["values"]["local.lr"]] == found["score"]
    for path in (folder.path / "cells").iterdir():
        experiment = Experiment.read(path / "experiment.toml")
        label = {"linear": "linear", "slash": "SLaSh 16"}[experiment.method.name]
        assert experiment.local.lr == best[label]["values"]["local.lr"]
        assert experiment.federation.rounds == 2 and experiment.task.validation == 0
    assert "best of linear: local.lr = " in printed(status_of(folder))


def test_an_axis_may_be_named_score(folder_of: FolderOf) -> None:
    axes = '[axes]\nscore = [{ label = "flat", method.name = "linear" }]\n'
    folder = folder_of(BASE + axes + "[search]\nover.local.lr = [1e-9, 0.3]")
    run(folder)
    (found,) = json.loads((folder.path / "best.json").read_text())
    assert found["axes"] == {"score": "flat"} and isinstance(found["score"], float)
    assert "best of flat: local.lr = " in printed(status_of(folder))


def test_a_search_without_axes_chooses_for_all_cells(folder_of: FolderOf) -> None:
    axes = "[axes]\nseed = [0]\n[search]\nover.local.lr = [1e-9, 0.3]"
    folder = folder_of(BASE + 'method.name = "linear"\n' + axes)
    run(folder)
    assert "best of all: local.lr = " in printed(status_of(folder))


def test_a_damaged_private_run_is_not_run_again_automatically(folder_of: FolderOf) -> None:
    """Its ledgers would begin anew at nothing, on the same examples."""
    private = 'privacy.unit = "example"\nprivacy.noise_multiplier = 1.0\n[axes]'
    folder = folder_of(GRID.replace("[axes]", private).replace("seed = [0, 1]", "seed = [0]"))
    run(folder)
    (cell, *others) = folder.plan().cells({})
    cut(folder.run_of(cell).path / "result.json")
    outcomes, watch = run(folder)
    assert "its privacy ledgers have charges" in outcomes.failed[cell.name]
    assert [*outcomes.finished] == [each.name for each in others] and not watch.begun
    table = pd.read_csv(folder.path / "table.csv")
    assert set(table["cell"]) == {each.name for each in others}
    assert set(table["privacy"]) == {"example"} and table["target_epsilon"].isna().all()


def test_overrides_of_the_command_line_are_kept_on_resume(tmp_path: Path) -> None:
    path = tmp_path / "study"
    StudyFolder.create(path, GRID, False, "my study.toml", ["backbone=tiny", "federation.rounds=1"])
    folder = StudyFolder.create(path, GRID + "\n", True, "my study.toml")
    assert folder.asked()["set"] == ["backbone=tiny", "federation.rounds=1"]
    assert (
        folder.command()
        == "fedpeft study run 'my study.toml' -s backbone=tiny -s federation.rounds=1"
    )
    assert {c.experiment.federation.rounds for c in folder.plan().cells({})} == {1}
    with folder.locked(), pytest.raises(UserError, match="in use by another process"):
        StudyFolder.create(path, "[axes]\nseed = [1]", True)
    assert (path / "study.toml").read_text() == GRID + "\n"
    (path / "asked.json").write_text("{}")
    with pytest.raises(UserError, match=r"asked\.json' is missing or damaged"):
        folder.plan()


def test_a_kill_during_creation_does_not_prevent_a_new_study(tmp_path: Path) -> None:
    path = tmp_path / "study"
    path.mkdir()
    for name in (".study.toml.tmp", "study.lock", "asked.json"):
        (path / name).write_text("{")
    StudyFolder.create(path, GRID, False)
    assert StudyFolder.open(path).asked() == {"file": "study.toml", "set": []}


def test_folders_without_a_study_are_refused(tmp_path: Path, folder_of: FolderOf) -> None:
    with pytest.raises(UserError, match=r"nothing to resume in .*: it holds no study\.toml"):
        folder_of(GRID, True)
    folder = folder_of(GRID)
    with pytest.raises(UserError, match="holds a study; add --resume"):
        folder_of(GRID)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").touch()
    with pytest.raises(UserError, match="is not empty and holds no study"):
        StudyFolder.create(tmp_path / "other", GRID, False)
    with pytest.raises(UserError, match="holds no study"):
        StudyFolder.open(tmp_path / "other")
    (tmp_path / "other" / "study.toml").write_text(GRID)  # a study file, not a study's folder
    with pytest.raises(UserError, match="nothing to resume"):
        StudyFolder.create(tmp_path / "other", GRID, True)
    with (
        folder.locked(),
        pytest.raises(UserError, match="in use by another process"),
        StudyFolder.open(folder.path).locked(),
    ):
        pass
    (folder.path / "study.toml").write_text("[axes]\n")
    with pytest.raises(UserError, match=r"study\.toml: no cells"):
        folder.plan()
