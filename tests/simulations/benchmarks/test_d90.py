"""d90: the bisection, and a study of which only some cells run."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from small_studies import BASE, here

from fedpeft.errors import UserError
from simulations.benchmarks.d90 import main
from simulations.benchmarks.parts.ladder import first_passing
from simulations.study.cell_process import Job, Outcome

SIZES = [2, 4, 8, 16, 32]
STUDY = "\n".join(
    [
        BASE.replace("rounds = 2", "rounds = 1") + "local.lr = 0.03",
        "[axes]",
        "seed = [0, 1]",
        "run = [",
        '    { label = { method = "full", size = "all" }, method.name = "full" },',
        *(
            f'    {{ label = {{ method = "SLaSh", size = "{d}" }}, method.name = "slash", '
            f"method.d = {d} }},"
            for d in SIZES
        ),
        '    { label = { method = "LoRA", size = "1" }, method.name = "lora" },',
        "]",
    ]
)


@pytest.mark.parametrize("count", range(8))
def test_bisection_finds_the_first_that_passes(count: int) -> None:
    for first in range(count + 1):
        asked: list[int] = []

        def passes(index: int, first: int = first, asked: list[int] = asked) -> bool:
            asked.append(index)
            return index >= first

        found = first_passing(count, passes)
        assert found == (first if first < count else None)
        assert len(asked) == len(set(asked)) <= count.bit_length()


@pytest.fixture
def study(tmp_path: Path) -> Path:
    path = tmp_path / "small.toml"
    path.write_text(STUDY)
    return path


def counted(names: list[str]) -> Callable[..., Iterator[tuple[Job, Outcome]]]:
    """A pool in this process that notes the names of its jobs."""

    def pool(jobs: Sequence[Job], started: Callable[[Job], None]) -> Iterator[tuple[Job, Outcome]]:
        names.extend(job.name for job in jobs)
        return here(jobs, started)

    return pool


@pytest.mark.parametrize(("share", "size"), [(0.01, "2"), (5.0, None)])
def test_only_the_cells_of_the_bisection_run_and_only_once(
    study: Path, tmp_path: Path, share: float, size: str | None
) -> None:
    """With a share that all reach the bisection goes down, with one that none reaches up."""
    options = [str(study), "--share", str(share), "--methods", "SLaSh", "--results", str(tmp_path)]
    options += ["--out", str(tmp_path / "study")]
    names: list[str] = []
    report = main(options, counted(names))
    asked = ["2", "4", "8"] if size else ["8", "32"]
    tried = [row["size"] for row in report.table if row["method"] == "SLaSh"]
    assert tried == asked
    assert len(names) == 2 * (1 + len(tried))
    rows = {row["size"]: row for row in report.table}
    assert [name for name, row in rows.items() if row["d90"]] == ([size] if size else [])
    assert rows["all"]["method"] == "full"
    tried_numbers = [rows[name]["numbers"] for name in tried]
    assert tried_numbers == sorted(tried_numbers) == [int(name) for name in tried]
    expected = sum(report.raw["full all"]) / 2
    assert report.facts["score of the reference"] == pytest.approx(expected, abs=1e-4)
    assert report.facts["target"] == pytest.approx(share * expected, abs=1e-4)
    assert report.facts["not run"] == "LoRA"
    said = "SLaSh at most 2" if size else "SLaSh more than 32"
    assert report.facts["d90"] == said
    page = json.loads((tmp_path / "d90.json").read_text())
    assert page["small"]["table"] == report.table
    figure = (tmp_path / "d90-small.svg").read_text()
    assert "SLaSh" in figure
    table = (tmp_path / "study" / "table.csv").read_text()
    assert all(name in table for name in names)
    again: list[str] = []
    assert main(options, counted(again)).table == report.table
    assert again == []


def test_wrong_names_are_refused(study: Path, tmp_path: Path) -> None:
    options = [str(study), "--results", str(tmp_path), "--out", str(tmp_path / "study")]
    with pytest.raises(UserError, match="--reference 'all': expected a method of the study: full"):
        main([*options, "--reference", "all"], here)
    with pytest.raises(UserError, match="--methods 'lora': expected some of SLaSh, LoRA"):
        main([*options, "--methods", "lora"], here)
    unlabelled = STUDY.replace("size =", "length =")
    study.write_text(unlabelled)
    with pytest.raises(UserError, match="expected labels 'method' and 'size', got seed, method"):
        main([str(study), "--results", str(tmp_path), "--out", str(tmp_path / "other")], here)


def test_a_searched_study_takes_the_best_trial_of_each_size(study: Path, tmp_path: Path) -> None:
    """Only the sizes that the bisection asks for are searched."""
    study.write_text(f"{STUDY}\n[search]\nover.local.lr = [1e-9, 0.05]\n")
    options = [str(study), "--share", "0.01", "--methods", "SLaSh", "--results", str(tmp_path)]
    names: list[str] = []
    report = main([*options, "--out", str(tmp_path / "study")], counted(names))
    best = json.loads((tmp_path / "study" / "best.json").read_text())
    assert len(best) == len(report.table) == 4
    assert len(names) == 4 * 2 + 4 * 2  # two trials and two seeds of four sizes
    chosen = {row["size"]: row["lr"] for row in report.table}
    for one in best:
        size = one["axes"]["run"].split(" · ")[1]
        assert chosen[size] == one["values"]["local.lr"]
    highest: dict[int, float] = {}  # of the trials of each size
    for path in (tmp_path / "study" / "trials").glob("*/result.json"):
        trial = json.loads(path.read_text())
        size, score = trial["vector_size"], trial["score"]
        highest[size] = max(score, highest.get(size, 0))
    assert sorted(highest.values()) == sorted(one["score"] for one in best)
