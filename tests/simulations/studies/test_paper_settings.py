"""The tables' studies have the paper's settings, all that it publishes and no others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from simulations.study.cells import Cell, Choice
from simulations.study.file import StudyFile
from simulations.study.plan import Plan

Cells = Callable[[str], list[Cell]]
Reference = Callable[[str], dict[str, Any]]
TASKS = {
    "MNLI": "mnli",
    "QQP": "qqp",
    "QNLI": "qnli",
    "SST-2": "sst2",
    "CoLA": "cola",
    "STS-B": "stsb",
    "MRPC": "mrpc",
    "RTE": "rte",
    "CoNLL-2003": "conll2003",
}


def essence(cell: Cell) -> dict[str, Any]:
    """What a row of the paper's tables of settings says, as a cell has it."""
    experiment = cell.experiment
    local, private = experiment.local, experiment.privacy
    method = experiment.method.model_dump()
    essences = {
        "task": experiment.task.name,
        "model": experiment.backbone,
        "lr": local.lr,
        "batch_size": local.batch_size,
        "clip": private.clip if private.examples else local.max_grad_norm,
        "method": method["name"],
        "d": method["d"],
        "init": method["init"],
    }
    if private.examples:
        return essences | {"noise_multiplier": private.noise_multiplier}
    return essences | {"epochs": local.epochs}


def wanted(row: dict[str, Any]) -> dict[str, Any]:
    """A row of hparams.json in the same form."""
    keys = ["model", "method", "d", "init", "lr", "batch_size", "clip"]
    keys.append("noise_multiplier" if row["setting"] == "private" else "epochs")
    return {"task": TASKS[row["task"]], **{key: row[key] for key in keys}}


def first_seeds(cells: list[Cell]) -> list[Cell]:
    return [cell for cell in cells if cell.experiment.seed == 0]


def sorted_rows(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(rows, key=lambda row: sorted((key, str(each)) for key, each in row.items()))


def test_every_row_of_settings_is_a_cell_and_every_cell_a_row(
    cells: Cells, reference: Reference
) -> None:
    rows = reference("hparams.json")["rows"]
    plain = [wanted(row) for row in rows if row["setting"] == "non-private"]
    private = [wanted(row) for row in rows if row["setting"] == "private"]
    assert (len(plain), len(private), len(rows)) == (56, 16, 74)  # and the two of NER, below
    essences = [essence(cell) for name in ("table2", "table3") for cell in first_seeds(cells(name))]
    assert sorted_rows(essences) == sorted_rows(plain)
    sixth = [(cell.experiment.privacy.examples, essence(cell)) for cell in cells("table6")]
    assert sorted_rows([row for is_private, row in sixth if is_private]) == sorted_rows(private)
    for is_private, row in sixth:
        assert is_private or row in plain


def test_conll2003_has_the_settings_of_appendix_c(cells: Cells, reference: Reference) -> None:
    rows = [row for row in reference("hparams.json")["rows"] if row["setting"] == "ner"]
    by_method = {row["method"]: wanted(row) for row in rows}
    essences = [essence(cell) for cell in cells("table4")]
    assert [(row["method"], row["d"]) for row in essences] == [
        ("slash", 1024),
        ("slash", 5000),
        ("jr_warp", 5000),
    ]
    for row in essences:
        assert row == by_method[row["method"]] | {"d": row["d"]}


@pytest.mark.parametrize("name", ["table7", "table8", "table9"])
def test_ablations_take_the_nearest_row(name: str, cells: Cells, reference: Reference) -> None:
    rows = [wanted(row) for row in reference("hparams.json")["rows"] if row["method"] == "slash"]
    for cell in cells(name):
        essences = essence(cell)
        if essences["init"] in ("zeros", "identity"):  # what table 8 varies
            essences = {key: each for key, each in essences.items() if key != "init"}
        assert any(essences.items() <= row.items() for row in rows), cell.name


@pytest.mark.parametrize("name", ["table2", "table3", "table6", "table7", "table8", "table9"])
def test_settings_common_to_all_glue_runs(name: str, cells: Cells, reference: Reference) -> None:
    common = reference("hparams.json")["common"]
    glue, private = common["glue"], common["private"]
    read = {"table7": {"cls"}, "table9": {"mask", "cls"}}.get(name, {"mask"})
    assert {cell.experiment.representation for cell in cells(name)} == read
    for experiment in (cell.experiment for cell in cells(name)):
        local = experiment.local
        assert (local.optimizer, local.weight_decay) == ("adamw", glue["weight_decay"])
        assert experiment.task.max_length == glue["max_length"]
        is_private = experiment.privacy.examples
        schedule = ("constant", 0.0) if is_private else ("linear", glue["warmup_ratio"])
        assert (local.schedule, local.warmup) == schedule
        if is_private:
            sizes = reference("results.json")["_train_sizes"]
            examples = next(sizes[task] for task in sizes if TASKS[task] == experiment.task.name)
            steps = private["epochs"] * (examples // private["batch_size"])
            assert local.steps == steps
            assert experiment.privacy.delta == private["delta"]


@pytest.mark.parametrize("number", [2, 3, 4, 6, 7, 8, 9])
def test_a_training_is_one_round_and_fits_the_timeout(
    number: int, study: Callable[..., StudyFile], cells: Cells, reference: Reference
) -> None:
    """Adam begins anew with each round, so there is one; and what comes too late is lost."""
    results = reference("results.json")
    slowest = max(
        row["seconds"]
        for row in results["table5_time_memory_qnli_1epoch_bs8_rtx8000"]["roberta-large"]
    )
    sizes = results["_train_sizes"]
    longest = 20 * slowest * sizes["MNLI"] / sizes["QNLI"]  # seconds on the paper's GPU
    trials = [trial.cell for trial in Plan(study(f"table{number}")).trials]
    for cell in (*cells(f"table{number}"), *trials):
        federation = cell.experiment.federation
        assert (federation.clients, federation.rounds) == (1, 1)
        assert federation.timeout > 2 * longest


@pytest.mark.parametrize("number", [2, 3, 4])
def test_searches_go_over_the_papers_grid(
    number: int, study: Callable[..., StudyFile], reference: Reference
) -> None:
    common = reference("hparams.json")["common"]
    grid = common["glue" if number < 4 else "ner_conll2003"]
    essences = study(f"table{number}")
    trials = Plan(essences).trials
    assert essences.search and essences.search.seed == common["glue"]["seed_for_search"]
    for trial in trials:
        local = trial.cell.experiment.local
        settings = (local.batch_size, local.warmup, local.max_grad_norm)
        assert settings == (grid["batch_size"], grid["warmup_ratio"], grid["max_grad_norm"])
    keys = {"local.lr": "lr_grid"}
    if number < 4:
        keys["local.epochs"] = "epochs_grid"
    for key in {trial.key for trial in trials}:
        values = [trial.values for trial in trials if trial.key == key]
        mine = keys | ({"method.init": "init_grid"} if "SLaSh max" in key[0] else {})
        assert set(values[0]) == set(mine)
        for name, of_paper in mine.items():
            tried = {each[name] for each in values}
            if "full" in key[0] and name == "local.lr":
                assert max(tried) < max(grid[of_paper])
            else:
                assert tried == set(grid[of_paper])


def test_numbers_in_labels_are_settings_of_their_cells(study: Callable[..., StudyFile]) -> None:
    """A number in a label is one of the cell's settings, or the label lies."""
    for name in ("table2", "table3", "table7", "table9", "table6"):
        for chosen in study(name).cells:
            labels, method = Choice(chosen["label"], {}).labels, chosen["method"]
            said = labels["method"].split()[-1].split("=")[-1]
            sizes = [method.get(key) for key in ("d", "rank", "bottleneck", "length")]
            assert said in map(str, sizes) or said.lower() == method["name"]
            assert TASKS[labels["task"]] == chosen["task"]["name"]
            assert labels.get("backbone") == chosen.get("backbone")
            assert labels.get("position") == chosen["method"].get("position")
