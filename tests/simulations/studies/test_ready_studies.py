"""Every ready study can be planned, without a network, and the README tells its size."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from fedpeft.errors import UserError
from simulations.study.file import StudyFile
from simulations.study.plan import Plan

FOLDER = Path(__file__).resolve().parents[3] / "simulations" / "studies"
NAMES = sorted(path.stem for path in FOLDER.glob("*.toml"))
#: Published rows of which no cell is: other papers' methods, a mean over tasks.
ELSEWHERE = {"full", "RGP", "Houlsby", "Compacter", "LoRA", "mean of all six"}
#: Backbones of small studies of text, written by ``simulations.benchmarks.pretrain.sample``.
SAMPLES = {
    "xsum-small": "build/sample/bart",
    "enro-small": "build/sample/mbart",
    "instructions-small": "build/sample/llama",
}
#: The one method of tables 2 to 4 that is not run.
NOT_RUN = {"WARP n=20 after MNLI"}


@pytest.fixture(scope="module", params=NAMES)
def name(request: pytest.FixtureRequest) -> str:
    """The name of a study. Of the module's scope: the tests of one study follow each other."""
    return str(request.param)


@pytest.fixture(scope="module")
def found(name: str, plan: Callable[[str], Plan]) -> Plan:
    """The plan of the study."""
    return plan(name)


@pytest.fixture(scope="module")
def sizes() -> dict[str, tuple[int, int]]:
    """Numbers of cells and trials of each study, as the README says."""
    text = (FOLDER / "README.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `([^`]+)\.toml` \|[^|]*\| ([\d,]+)(?: \+ ([\d,]+))? \|", text, re.M)
    return {name: (number(cells), number(trials)) for name, cells, trials in rows}


def number(text: str) -> int:
    return int(text.replace(",", "") or 0)


def test_every_file_is_a_plan_without_a_network(name: str, found: Plan, tables: Path) -> None:
    """A plan checks every cell's settings, and refuses two cells with the same ones."""
    assert found.study.title and found.study.about.strip().endswith(".")
    assert found.size > 1 or name == "record"
    runs = (*found.first_cells, *(trial.cell for trial in found.trials))
    experiments = [cell.experiment for cell in runs]
    assert {experiment.task.path for experiment in experiments} <= {"", str(tables)}
    small = name.endswith("-small")
    for experiment in experiments if small else ():
        backbone = SAMPLES.get(name, "minilm")
        assert (experiment.backbone, experiment.engine.threads) == (backbone, 1)
        whole = name == "communication-small"  # its dev sets
        assert experiment.task.train_limit and (experiment.task.eval_limit or whole)


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
        "intents",
        "frozen",
        "around",
        "scores",
        "slower",
        "before",
        "rates",
    }  # are small themselves
    large = {name for name in NAMES if not name.endswith("-small")} - alone
    assert {f"{name}-small" for name in large} == {name for name in NAMES if "-small" in name}
    tables = {f"table{number}" for number in (2, 3, 4, 6, 7, 8, 9)}
    federated = {"communication", "noniid", "clients", "privacy", "fedpetuning", "rgp"}
    assert large == tables | federated | {"xsum", "enro", "instructions"}


def test_the_readme_names_a_file_with_its_cells_and_trials(
    name: str, found: Plan, sizes: dict[str, tuple[int, int]]
) -> None:
    assert sizes[name] == (found.size, len(found.trials))


def test_the_readme_names_no_other_file(sizes: dict[str, tuple[int, int]]) -> None:
    assert sorted(sizes) == NAMES


def test_published_figures_belong_to_existing_cells(name: str, found: Plan) -> None:
    """And are fractions with a source; two of one cell would contradict each other."""
    labels = [cell.labels for cell in found.first_cells]
    places = [tuple(sorted(row.where.items())) for row in found.study.published]
    assert len(places) == len(set(places))
    for row in found.study.published:
        assert 0 < row.score < 1 and (row.deviation is None or 0 < row.deviation < 0.1)
        assert re.match(r"(Gupta|Zhang) et al\. 2023|He et al\. 2022", row.source)
        elsewhere = NOT_RUN if name in ("table2", "table3", "table4") else ELSEWHERE
        if not elsewhere & set(row.where.values()):
            assert any(row.where.items() <= cell_labels.items() for cell_labels in labels), (
                row.where
            )


def test_a_wrong_setting_in_a_ready_study_is_detected(study: Callable[..., StudyFile]) -> None:
    with pytest.raises(UserError, match=r"cell with .*SLaSh 1024.*unknown key 'local\.rl'"):
        Plan(study("table7"), ("local.rl=1",))
    with pytest.raises(UserError, match="two cells with the same settings"):
        axes = {"seed": [0], "copy": [{"label": "one"}, {"label": "two"}]}
        Plan(study("table9").model_copy(update={"axes": axes}))
