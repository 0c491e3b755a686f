"""The search: trials on validation examples, the best of each combination."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedpeft.errors import UserError
from fedpeft.tasks import load_task
from simulations.study.file import parse
from simulations.study.plan import Plan
from simulations.study.search import best_of

AXES = """
[base]
backbone = "tiny"
task.train_limit = 50
[axes]
seed = [3, 4]
method = [
    { label = "A", method.name = "linear" },
    { label = "B", method.name = "lora", over.local.lr = [7.0] },
]
"""


def plan_of(search: str) -> Plan:
    return Plan(parse(f"{AXES}\n[search]\n{search}"))


def test_trials_are_all_values_for_every_combination_except_seeds() -> None:
    plan = plan_of("over.local.lr = [0.1, 0.2]\nover.local.batch_size = [4, 8]\nseed = 9")
    tried = [
        (trial.key, e.local.lr, e.local.batch_size, e.seed, e.task.validation)
        for trial in plan.trials
        for e in [trial.cell.experiment]
    ]
    assert tried == [
        (("A",), 0.1, 4, 9, 0.2),
        (("A",), 0.1, 8, 9, 0.2),
        (("A",), 0.2, 4, 9, 0.2),
        (("A",), 0.2, 8, 9, 0.2),
        (("B",), 7.0, 4, 9, 0.2),  # its own learning rates
        (("B",), 7.0, 8, 9, 0.2),
    ]


def test_the_best_settings_go_into_the_cells_and_nothing_else_does() -> None:
    plan = plan_of("over.local.lr = [0.1, 0.2, 0.3]\nset.federation.rounds = 1")
    scores = {
        trial.cell.name: {0.1: 0.5, 0.2: 0.8, 0.3: 0.8}.get(trial.values["local.lr"])
        for trial in plan.trials
    }
    best = best_of(plan.trials, scores)
    assert best[("A",)].values == {"local.lr": 0.2}  # of equal ones the first
    assert best[("A",)].edges == ()
    assert ("B",) not in best  # its trial has no score
    cells = plan.cells(best)
    assert [(c.labels["method"], c.experiment.seed) for c in cells] == [("A", 3), ("A", 4)]
    for cell in cells:
        assert cell.experiment.local.lr == 0.2
        assert cell.experiment.federation.rounds == 10
        assert cell.experiment.task.validation == 0


def test_trials_without_a_score_are_counted() -> None:
    plan = plan_of("over.local.lr = [0.1, 0.2, 0.3]")
    first = plan.trials[0].cell.name
    best = best_of(plan.trials, {first: 0.5})
    assert best[("A",)].failed == 2


def test_equal_settings_chosen_by_a_search_give_separate_runs() -> None:
    axes = AXES.replace(
        'method.name = "lora", over.local.lr = [7.0]',
        'method.name = "linear", over.local.lr = [0.01, 0.2]',
    ).replace(
        'label = "A", method.name = "linear"',
        'label = "A", method.name = "linear", local.lr = 0.01',
    )
    plan = Plan(parse(f"{axes}[search]"))
    best = best_of(plan.trials, {plan.trials[0].cell.name: 0.5})
    cells = plan.cells(best)  # now A and B differ in their labels only
    assert cells[0].experiment.digest == cells[1].experiment.digest
    assert cells[0].name != cells[1].name


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            '[axes]\nm = [{ label = "a", seed = 1, over.local.lr = [1.0] }]',
            "`over` at a choice needs",
        ),
        (
            AXES + '[search]\nby = ["seed"]\nover.local.lr = [1.0]',
            "axes.method: has `over`, and search.by does not name it",
        ),
        ("[axes]\nseed = [1]\n[report]\ntargets.sst3 = 0.5", "report.targets: 'sst3' is no task"),
        (
            '[axes]\nseed = [1]\n[[published]]\nsource = "x"\nwhere.sead = "1"\nscore = 0.5',
            "published 1: where.sead: no axis of the study; did you mean 'seed'?",
        ),
        (
            '[base]\nprivacy.unit = "example"\nprivacy.epsilon = 1.0\nprivacy.ledger = "x"\n'
            "[axes]\nseed = [1]",
            "privacy.ledger = 'x': the runs of a study would spend one budget",
        ),
        (
            '[base]\ntask.name = "custom"\ntask.train = "a.csv"\n[axes]\nseed = [0, 1]\n'
            "[search]\nover.local.lr = [1.0]",
            "search: without task.dev each seed holds out other rows",
        ),
    ],
)
def test_searches_that_are_wrong_or_have_no_effect_are_refused(
    text: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.csv").write_text("text,label\n" + 20 * "good,1\nbad,0\n")
    with pytest.raises(UserError) as caught:
        Plan(parse(text))
    assert str(caught.value).startswith(said)


def test_a_best_value_at_the_end_of_its_grid_is_marked() -> None:
    plan = plan_of("over.local.lr = [0.2, 0.3, 0.1]\nover.local.batch_size = [4, 8]")
    best = best_of(plan.trials, {t.cell.name: t.values["local.lr"] for t in plan.trials})
    assert best[("A",)].edges == ("local.lr",)  # a grid of two has nothing but ends
    assert best[("B",)].edges == ()


def test_a_nan_score_never_wins() -> None:
    plan = plan_of("over.local.lr = [0.1, 0.2]")
    scores = dict(zip([t.cell.name for t in plan.trials], [float("nan"), 0.1], strict=False))
    assert best_of(plan.trials, scores)[("A",)].values == {"local.lr": 0.2}


def test_random_trials_are_drawn_from_the_seed_within_their_ranges() -> None:
    text = "trials = 40\nover.local.lr = { low = 1e-4, high = 1e-1, log = true }\nseed = "
    axes = AXES.replace(", over.local.lr = [7.0]", "")
    draws = {
        seed: [t.values["local.lr"] for t in Plan(parse(f"{axes}[search]\n{text}{seed}")).trials]
        for seed in (0, 1)
    }
    assert all(1e-4 <= lr <= 1e-1 for lr in draws[0])
    assert sum(lr < 3.2e-3 for lr in draws[0][:40]) in range(10, 31)  # half of them in log scale
    assert draws[0] != draws[1]
    assert draws[0][:40] == draws[0][40:]  # both methods are given the same tries


def test_axes_outside_search_by_stay_at_their_first_choice() -> None:
    axes = AXES.replace(", over.local.lr = [7.0]", "")
    plan = Plan(parse(f"{axes}[search]\nby = []\nover.local.lr = [0.1, 0.2]"))
    assert {trial.cell.experiment.method.name for trial in plan.trials} == {"linear"}
    best = best_of(plan.trials, {t.cell.name: t.values["local.lr"] for t in plan.trials})
    assert [cell.experiment.local.lr for cell in plan.cells(best)] == [0.2] * 4


@pytest.mark.parametrize(
    ("search", "said"),
    [
        ("", "search.over: names no key"),
        ("over.local.lr = []", "search.over.local.lr = []: expected a list of values, or a range"),
        ("over.local.lr = 3", "search.over.local.lr = 3: expected a list of values, or a range"),
        ("over.local.lr = { low = 1, high = 2 }", "search.over.local.lr: a range needs search.tri"),
        (
            'by = ["tusk"]\nover.seed = [1]',
            "search.by: 'tusk' is no axis; expected of seed, method",
        ),
        ("over.local.lr = { low = 2, high = 1 }", "search.over.local.lr = {"),
        ("over.local.lr = { low = 0, high = 1, log = true }", "search.over.local.lr = {"),
        ("over.local.lr = { low = 'a', high = 1 }", "search.over.local.lr = {"),
        ("over.seed = [1, 2]", "search.over.seed: the search sets it; see search.seed"),
        ("over.seed = [1]\nset.task.validation = 0.0", "search.set.task.validation: the search se"),
        ("local.lr = [1.0]", "unknown key 'search.local'; settings to try stand below over"),
        ("over.local.rate = [1]", "cell with method 'A', trial 'rate=1': unknown key"),
        (
            "over.local.lr = [0.1]\nset.local.steps = 'x'",
            "cell with method 'A', trial 'lr=0.1': local.steps",
        ),
    ],
)
def test_a_wrong_search_is_one_clear_line(search: str, said: str) -> None:
    axes = AXES.replace(", over.local.lr = [7.0]", "")
    with pytest.raises(UserError) as caught:
        Plan(parse(f"{axes}\n[search]\n{search}"))
    assert str(caught.value).startswith(said), str(caught.value)


def test_a_trial_never_sees_the_dev_set() -> None:
    """Its evaluation examples are some of the cell's training examples, and not trained on."""
    plan = plan_of("over.local.lr = [0.1]\nvalidation = 0.3")
    trial = plan.trials[0].cell.experiment
    whole = load_task(trial.task.model_copy(update={"validation": 0.0}), trial.seed)
    task = load_task(trial.task, trial.seed)
    assert (len(task.train), len(task.dev)) == (35, 15)
    assert sorted([*task.train.text, *task.dev.text]) == sorted(whole.train.text)
    assert not set(task.dev.text) & set(whole.dev.text)


def test_a_combination_with_nothing_to_try_keeps_its_settings() -> None:
    plan = plan_of("")  # only B has something to try
    assert {trial.key for trial in plan.trials} == plan.searched == {("B",)}
    assert [cell.labels["method"] for cell in plan.cells({})] == ["A", "A"]
    assert plan.cells({})[0].experiment.local.lr == 0.01  # the method's default
