"""Every ready study can be planned, without a network, and the README tells its size."""

from __future__ import annotations

import re
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fedpeft.errors import UserError
from simulations.study.file import StudyFile
from simulations.study.plan import Plan

FOLDER = Path(__file__).resolve().parents[3] / "simulations" / "studies"
NAMES = sorted(path.stem for path in FOLDER.glob("*.toml"))
#: Published rows of which no cell is: other papers' methods, a mean over tasks.
ELSEWHERE = {"full", "RGP", "Houlsby", "Compacter", "LoRA", "mean of all six"}
#: Backbones of small studies of text, written by ``simulations.pretrain.sample``.
SAMPLES = {
    "xsum-small": "build/sample/bart",
    "enro-small": "build/sample/mbart",
    "instructions-small": "build/sample/llama",
}
#: The one method of tables 2 to 4 that is not run.
NOT_RUN = {"WARP n=20 after MNLI"}


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: socket.socket, address: Any) -> None:
        raise AssertionError(f"a plan asked {address}")

    monkeypatch.setattr(socket.socket, "connect", refuse)


@pytest.mark.parametrize("name", NAMES)
def test_every_file_is_a_plan_without_a_network(
    name: str, study: Callable[..., StudyFile], no_network: None
) -> None:
    """A plan checks every cell's settings, and refuses two cells with the same ones."""
    found = study(name)
    plan = Plan(found)
    assert found.title and found.about.strip().endswith(".")
    assert plan.size > 1 or name == "record"
    experiments = [cell.experiment for cell in (*plan.cells({}), *(t.cell for t in plan.trials))]
    assert not any(experiment.task.path for experiment in experiments)
    small = name.endswith("-small")
    for experiment in experiments if small else ():
        backbone = SAMPLES.get(name, "minilm")
        assert (experiment.backbone, experiment.engine.threads) == (backbone, 1)
        assert experiment.task.train_limit and experiment.task.eval_limit


def test_every_study_has_a_small_variant() -> None:
    alone = {
        "record",
        "bits",
        "bits-between",
        "sms",
        "reach",
        "nested",
        "d90",
        "stragglers",
        "strangers",
        "turns",
        "secure-noise",
        "precision",
        "questions",
        "sentiment",
    }  # are small themselves
    large = {name for name in NAMES if not name.endswith("-small")} - alone
    assert {f"{name}-small" for name in large} == {name for name in NAMES if "-small" in name}
    tables = {f"table{number}" for number in (2, 3, 4, 6, 7, 8, 9)}
    federated = {"communication", "noniid", "clients", "privacy", "fedpetuning", "rgp"}
    assert large == tables | federated | {"xsum", "enro", "instructions"}


def test_the_readme_names_every_file_with_its_cells_and_trials(
    study: Callable[..., StudyFile],
) -> None:
    text = (FOLDER / "README.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `([^`]+)\.toml` \|[^|]*\| ([\d,]+)(?: \+ ([\d,]+))? \|", text, re.M)
    said = {name: (number(cells), number(trials)) for name, cells, trials in rows}
    for name in NAMES:
        plan = Plan(study(name))
        assert said.pop(name, None) == (plan.size, len(plan.trials)), name
    assert not said


def number(text: str) -> int:
    return int(text.replace(",", "") or 0)


@pytest.mark.parametrize("name", NAMES)
def test_published_figures_belong_to_existing_cells(
    name: str, study: Callable[..., StudyFile]
) -> None:
    """And are fractions with a source; two of one cell would contradict each other."""
    found = study(name)
    plan = Plan(found)
    labels = [
        {cell_labels: label for choice in chosen for cell_labels, label in choice.labels.items()}
        for chosen in _chosen(plan)
    ]
    places = [tuple(sorted(row.where.items())) for row in found.published]
    assert len(places) == len(set(places))
    for row in found.published:
        assert 0 < row.score < 1 and (row.deviation is None or 0 < row.deviation < 0.1)
        assert re.match(r"(Gupta|Zhang) et al\. 2023|He et al\. 2022", row.source)
        elsewhere = NOT_RUN if name in ("table2", "table3", "table4") else ELSEWHERE
        if not elsewhere & set(row.where.values()):
            assert any(row.where.items() <= cell_labels.items() for cell_labels in labels), (
                row.where
            )


def _chosen(plan: Plan) -> list[tuple[Any, ...]]:
    from simulations.study.cells import combinations

    return [tuple(chosen.values()) for chosen in combinations(plan.axes)]


def test_a_wrong_setting_in_a_ready_study_is_detected(study: Callable[..., StudyFile]) -> None:
    with pytest.raises(UserError, match=r"cell with .*SLaSh 1024.*unknown key 'local\.rl'"):
        Plan(study("table7"), ("local.rl=1",))
    with pytest.raises(UserError, match="two cells with the same settings"):
        axes = {"seed": [0], "copy": [{"label": "one"}, {"label": "two"}]}
        Plan(study("table9").model_copy(update={"axes": axes}))
