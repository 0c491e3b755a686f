"""The folder of a run: refusals, crashes, and that nothing is overwritten."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from fedpeft.errors import UserError
from fedpeft.experiment.config import Experiment
from fedpeft.runs.checkpoints import CHECKPOINT, PREVIOUS, Checkpoint, read_checkpoint
from fedpeft.runs.folder import RunFolder

Quick = Callable[..., Experiment]


def contents(path: Path) -> dict[str, bytes]:
    """Return the bytes of every file under a folder."""
    return {str(file): file.read_bytes() for file in sorted(path.rglob("*")) if file.is_file()}


def save_rounds(folder: RunFolder, rounds: int) -> None:
    """Write rounds 1 to ``rounds`` with two ledger lines each."""
    for number in range(1, rounds + 1):
        ledger = [{"round": number, "client": client} for client in (0, 1)]
        state = Checkpoint(number, np.full(4, number, np.float32), {}, 1.5 * number)
        folder.save_round({"round": number, "score": number / 10}, ledger, state)


@pytest.fixture
def folder(quick: Quick, tmp_path: Path) -> RunFolder:
    """The folder of a run that has done two rounds."""
    made = RunFolder.create(tmp_path / "run", quick())
    save_rounds(made, 2)
    return made


def test_a_new_folder_holds_the_whole_experiment(quick: Quick, tmp_path: Path) -> None:
    experiment = quick("local.lr=0.5")
    made = RunFolder.create(tmp_path / "deep" / "run", experiment)
    kept = Experiment.load((made.path / "experiment.toml").read_text())
    assert kept == experiment
    assert kept.digest == experiment.digest


def test_an_empty_folder_can_become_a_run_folder(quick: Quick, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    RunFolder.create(tmp_path / "run", quick())
    assert (tmp_path / "run" / "experiment.toml").is_file()


def test_a_temporary_file_of_a_crash_does_not_prevent_a_new_run(
    quick: Quick, tmp_path: Path
) -> None:
    (tmp_path / ".experiment.toml.tmp").write_text("seed = ")
    made = RunFolder.create(tmp_path, quick())
    assert [file.name for file in made.path.iterdir()] == ["experiment.toml"]


@pytest.mark.parametrize("resume", [False, True])
def test_another_runs_folder_is_refused_naming_what_differs(
    quick: Quick, folder: RunFolder, resume: bool
) -> None:
    before = contents(folder.path)
    with pytest.raises(UserError) as refused:
        RunFolder.create(folder.path, quick("local.lr=0.5", "seed=9"), resume)
    assert "seed (0 and 9)" in str(refused.value)
    assert "local.lr (" in str(refused.value)
    assert "and 0.5)" in str(refused.value)
    assert "method.d" not in str(refused.value)
    assert contents(folder.path) == before


@pytest.mark.parametrize(("finished", "state"), [(False, "unfinished"), (True, "finished")])
def test_the_same_run_needs_resume(
    quick: Quick, folder: RunFolder, finished: bool, state: str
) -> None:
    if finished:
        folder.finish({"score": 1}, np.zeros(4, np.float32), {})
    before = contents(folder.path)
    with pytest.raises(UserError, match=rf"holds this run, {state}; add --resume"):
        RunFolder.create(folder.path, quick())
    assert contents(folder.path) == before
    assert RunFolder.create(folder.path, quick(), resume=True) == folder
    assert contents(folder.path) == before


def test_foreign_files_are_refused_and_kept(quick: Quick, tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("chapter 1")
    before = contents(tmp_path)
    with pytest.raises(UserError, match="is not empty and holds no run"):
        RunFolder.create(tmp_path, quick())
    with pytest.raises(UserError, match=r"nothing to resume in .*: it holds no experiment.toml"):
        RunFolder.create(tmp_path, quick(), resume=True)
    for resume in (False, True):
        with pytest.raises(UserError, match=r"^--out '.*thesis.tex': is a file; expected a folder"):
            RunFolder.create(tmp_path / "thesis.tex", quick(), resume)
    assert contents(tmp_path) == before


def test_a_missing_folder_cannot_be_resumed(quick: Quick, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="nothing to resume"):
        RunFolder.create(tmp_path / "run", quick(), resume=True)
    assert not (tmp_path / "run").exists()


def test_an_experiment_file_that_cannot_be_read_is_refused(quick: Quick, tmp_path: Path) -> None:
    (tmp_path / "experiment.toml").write_text("seed = ")
    with pytest.raises(UserError, match="not valid TOML"):
        RunFolder.create(tmp_path, quick(), resume=True)


def test_a_checkpoint_is_read_as_it_was_written(folder: RunFolder) -> None:
    memory = {"m_t": np.arange(4, dtype=np.float64), "v_t": np.ones(4, np.float32)}
    folder.save_round({"round": 3}, [], Checkpoint(3, np.zeros(4, np.float64), memory, 7.25))
    kept = folder.checkpoint()
    assert kept is not None
    assert (kept.round, kept.seconds) == (3, 7.25)
    assert kept.vector.dtype == np.float64
    assert kept.memory.keys() == memory.keys()
    for name, array in memory.items():
        assert np.array_equal(kept.memory[name], array)
        assert kept.memory[name].dtype == array.dtype


def test_a_new_run_has_no_checkpoint(quick: Quick, tmp_path: Path) -> None:
    assert RunFolder.create(tmp_path / "run", quick()).checkpoint() is None


@pytest.mark.parametrize("name", ["rounds.jsonl", "bytes.jsonl"])
@pytest.mark.parametrize(
    "left", ['{"round": 3, "sco', '{"round": 3}\n{"round": 3', '{"round": 3}\n', "\x00\x00", "{"]
)
def test_lines_after_the_checkpoint_are_dropped_even_if_incomplete(
    folder: RunFolder, name: str, left: str
) -> None:
    before = (folder.path / name).read_text()
    with open(folder.path / name, "a") as file:
        file.write(left)
    kept = folder.checkpoint()
    assert kept is not None
    assert kept.round == 2
    assert (folder.path / name).read_text() == before
    save_rounds(folder, 0)
    folder.save_round({"round": 3}, [], Checkpoint(3, kept.vector))
    assert [line["round"] for line in folder.rounds()] == [1, 2, 3]


@pytest.mark.parametrize("name", ["rounds.jsonl", "bytes.jsonl"])
def test_a_round_whose_lines_cannot_be_written_gets_no_checkpoint(
    quick: Quick, tmp_path: Path, name: str
) -> None:
    """A round whose lines could not be written does not count."""
    made = RunFolder.create(tmp_path / "run", quick())
    (made.path / name).mkdir()
    with pytest.raises(IsADirectoryError):
        save_rounds(made, 1)
    assert not (made.path / CHECKPOINT).exists()


def test_without_a_checkpoint_no_round_counts(folder: RunFolder) -> None:
    for name in (CHECKPOINT, PREVIOUS):
        (folder.path / name).unlink()
    assert folder.checkpoint() is None
    assert folder.rounds() == []
    assert (folder.path / "bytes.jsonl").read_text() == ""


def test_the_states_after_the_last_two_rounds_are_kept(folder: RunFolder) -> None:
    save_rounds(folder, 4)
    rounds = [read_checkpoint(folder.path / name)[0].round for name in (PREVIOUS, CHECKPOINT)]
    assert rounds == [3, 4]


def test_a_crash_between_the_two_names_of_a_checkpoint_loses_no_round(folder: RunFolder) -> None:
    """The new checkpoint is not written yet; the last one has the name of the previous one."""
    (folder.path / CHECKPOINT).replace(folder.path / PREVIOUS)
    kept = folder.checkpoint()
    assert kept is not None
    assert kept.round == 2
    assert [line["round"] for line in folder.rounds()] == [1, 2]
    folder.save_round({"round": 3}, [{"round": 3}], Checkpoint(3, kept.vector))
    rounds = [read_checkpoint(folder.path / name)[0].round for name in (PREVIOUS, CHECKPOINT)]
    assert rounds == [2, 3]


def test_a_rewound_run_has_no_later_lines_and_no_result(folder: RunFolder) -> None:
    folder.note("refused a")  # in round 3
    (folder.path / "result.json").write_text("{}")
    folder.rewind(1)
    assert [line["round"] for line in folder.rounds()] == [1]
    assert [line["round"] for line in folder.sent()] == [1, 1]
    assert folder.noted() == []
    assert not (folder.path / "result.json").exists()
    kept = folder.checkpoint()
    assert kept is not None
    assert (kept.round, kept.vector.tolist()) == (1, [1.0] * 4)
    with pytest.raises(UserError, match=r"^--from-round 2: .* keeps the state after round 1 only"):
        folder.rewind(2)


def test_a_damaged_last_checkpoint_can_be_skipped(folder: RunFolder) -> None:
    (folder.path / CHECKPOINT).write_bytes(b"half a fi")
    folder.rewind(1)
    assert [line["round"] for line in folder.rounds()] == [1]


def test_a_run_without_rounds_cannot_be_rewound(quick: Quick, tmp_path: Path) -> None:
    made = RunFolder.create(tmp_path / "run", quick())
    with pytest.raises(UserError, match=r"--from-round 1: .* keeps the state after no round only"):
        made.rewind(1)


def test_an_incomplete_last_line_is_left_out(folder: RunFolder) -> None:
    with open(folder.path / "rounds.jsonl", "a") as file:
        file.write('{"round": 3, "score": 0.')
    assert [line["round"] for line in folder.rounds()] == [1, 2]


@pytest.mark.parametrize("name", [CHECKPOINT, "rounds.jsonl", "bytes.jsonl", "partition.json"])
def test_temporary_files_of_a_crash_change_nothing(folder: RunFolder, name: str) -> None:
    (folder.path / f".{name}.tmp").write_bytes(b"half a fi")
    kept = folder.checkpoint()
    assert kept is not None
    assert (kept.round, kept.vector.tolist()) == (2, [2.0] * 4)
    folder.save_round({"round": 3}, [{"round": 3}], Checkpoint(3, kept.vector))
    assert [line["round"] for line in folder.rounds()] == [1, 2, 3]


@pytest.mark.parametrize("keep", [0, 4, 100, -1])
def test_a_damaged_checkpoint_is_an_error_and_stays_as_it_is(folder: RunFolder, keep: int) -> None:
    path = folder.path / CHECKPOINT
    path.write_bytes(path.read_bytes()[:keep])
    before = contents(folder.path)
    with pytest.raises(UserError, match=r"checkpoint.safetensors' is damaged .*--from-round 1 "):
        folder.checkpoint()
    assert contents(folder.path) == before
    folder.rewind(1)
    assert [line["round"] for line in folder.rounds()] == [1]


def test_without_a_whole_checkpoint_a_run_starts_again_elsewhere(folder: RunFolder) -> None:
    (folder.path / CHECKPOINT).write_bytes(b"half a fi")
    (folder.path / PREVIOUS).write_bytes(b"half a fi")
    with pytest.raises(UserError, match=r"is damaged .*; start again in another --out$"):
        folder.checkpoint()
    (folder.path / PREVIOUS).unlink()
    with pytest.raises(UserError, match=r"is damaged .*; start again in another --out$"):
        folder.checkpoint()


@pytest.mark.parametrize(
    "state", [None, {}, {"state": "no"}, {"state": "{}"}, {"state": '{"round": 1}'}]
)
def test_a_checkpoint_without_a_state_is_an_error(
    folder: RunFolder, state: dict[str, str] | None
) -> None:
    from safetensors.numpy import save_file

    save_file({"vector": np.zeros(4)}, folder.path / CHECKPOINT, state)
    with pytest.raises(UserError, match="is damaged"):
        folder.checkpoint()


def test_a_checkpoint_without_a_vector_is_an_error(folder: RunFolder) -> None:
    from safetensors.numpy import save_file

    state = {"state": '{"round": 1, "seconds": 0}'}
    save_file({"weights": np.zeros(4)}, folder.path / CHECKPOINT, state)
    with pytest.raises(UserError, match="is damaged"):
        folder.checkpoint()


def test_a_damaged_line_in_the_middle_is_an_error_that_names_file_and_line(
    folder: RunFolder,
) -> None:
    path = folder.path / "rounds.jsonl"
    first, second = path.read_text().splitlines()
    path.write_text(f"{first[:-4]}\n{second}\n")
    with pytest.raises(UserError, match=r"rounds.jsonl' line 1 is damaged"):
        folder.checkpoint()


def test_a_run_begun_with_another_backbone_is_not_continued(folder: RunFolder) -> None:
    folder.pin({"backbone": "a", "version": "1"})
    folder.pin({"backbone": "a", "version": "1"})
    with pytest.raises(UserError, match="begun with another backbone"):
        folder.pin({"backbone": "b", "version": "1"})
    folder.pin({"data": "c"})
    with pytest.raises(UserError, match="begun with other data, another backbone; continuing"):
        folder.pin({"data": "d", "backbone": "b"})


def test_progress_is_valid_json_and_not_written_for_every_reply(folder: RunFolder) -> None:
    seen = []
    for done in range(101):
        folder.report(phase="train", number=1, done=done, total=100)
        seen.append(json.loads((folder.path / "progress.json").read_text())["done"])
    assert (seen[0], seen[-1]) == (0, 100)
    assert len(set(seen)) < 30


def test_progress_names_missing_nodes_at_once(folder: RunFolder) -> None:
    for names in (["a", "b"], ["b"]):
        folder.report("wait", 1, 1, 3, names)
        assert json.loads((folder.path / "progress.json").read_text())["missing"] == names
    folder.report("train", 1, 0, 2)
    assert "missing" not in json.loads((folder.path / "progress.json").read_text())


def test_a_refusal_is_recorded_once_and_dropped_with_its_round(folder: RunFolder) -> None:
    for line in ("refused a", "refused b", "refused a"):
        folder.note(line)
    assert folder.noted() == ["refused a", "refused b"]
    save_rounds(RunFolder(folder.path), 3)  # the third is now done
    folder.note("refused c")
    folder.checkpoint()
    assert folder.noted() == ["refused a", "refused b"]  # round 4 begins anew


def test_a_folder_is_in_use_while_a_process_runs_in_it(folder: RunFolder) -> None:
    assert not folder.in_use()
    with folder.locked():
        assert folder.in_use()
    assert not folder.in_use()
