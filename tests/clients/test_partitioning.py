"""Every kind of partition: complete, reproducible, and with the promised distribution."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from datasets import Dataset
from flwr_datasets.partitioner import ContinuousPartitioner
from hypothesis import given
from hypothesis import strategies as st

from clients.partition import Partition, label_counts, save
from clients.partitioning import fill_up, partition
from fedpeft.errors import UserError
from fedpeft.experiment.config import Experiment
from fedpeft.experiment.settings import TaskSection
from fedpeft.randomness import generator
from fedpeft.tasks import Examples, Task, TaskInfo, load_task

Quick = Callable[..., Experiment]

#: Every kind with a task it fits.
KINDS = {
    "iid": ("synthetic/sentiment",),
    "quantity": ("synthetic/similarity",),
    "dirichlet": ("synthetic/inference",),
    "pathological": ("synthetic/inference", "partition.classes=2"),
    "bins": ("synthetic/similarity",),
}


def task_of(experiment: Experiment) -> Task:
    return load_task(experiment.task, experiment.seed)


def made_up(labels: np.ndarray, classes: int = 2, owners: list[str] | None = None) -> Task:
    """Return a task with the given labels and arbitrary texts."""
    names = tuple(f"class {label}" for label in range(classes))
    kind = "classes" if classes > 1 else "score"
    info = TaskInfo("made up", kind, names if classes > 1 else (), False, "accuracy", None, "")
    examples = Examples([""] * len(labels), None, labels, owners)
    return Task(info, examples, examples)


def assert_partition(rows: list[np.ndarray], examples: int, minimum: int = 1) -> None:
    """Check that the clients' rows are disjoint, complete, sorted, and at least the minimum."""
    together = np.concatenate(rows)
    assert np.array_equal(np.sort(together), np.arange(examples))
    assert all(np.array_equal(part, np.sort(part)) for part in rows)
    assert min(map(len, rows)) >= minimum


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("clients", [1, 3, 7, 40])
@pytest.mark.parametrize("seed", [0, 1])
def test_every_example_belongs_to_one_client(
    quick: Quick, kind: str, clients: int, seed: int
) -> None:
    task, *more = KINDS[kind]
    if kind == "pathological" and clients == 1:
        more = ["partition.classes=3"]
    experiment = quick(
        f"task.name={task}",
        "task.train_limit=120",
        f"partition.kind={kind}",
        "partition.min_examples=2",
        f"federation.clients={clients}",
        f"seed={seed}",
        *more,
    )
    rows = partition(task_of(experiment), experiment)
    assert len(rows) == clients
    assert_partition(rows, 120, minimum=2)


@pytest.mark.parametrize("kind", KINDS)
def test_the_seed_determines_the_partition(quick: Quick, kind: str) -> None:
    task, *more = KINDS[kind]
    labels = task_of(quick(f"task.name={task}"))

    def rows(seed: int) -> list[list[int]]:
        settings = (f"partition.kind={kind}", f"task.name={task}", f"seed={seed}", *more)
        return [part.tolist() for part in partition(labels, quick(*settings))]

    assert rows(4) == rows(4)
    assert rows(4) != rows(5)


def test_iid_shares_are_equal_and_shuffled(quick: Quick) -> None:
    """Flower's partitioner would return consecutive blocks, here of one class."""
    task = made_up(np.repeat([0, 1], 60))
    rows = partition(task, quick("federation.clients=4"))
    assert [len(part) for part in rows] == [30] * 4
    for part in rows:
        assert 5 < task.train.labels[part].sum() < 25


@pytest.mark.parametrize("seed", range(5))
def test_dirichlet_works_where_flowers_partitioner_fails(quick: Quick, seed: int) -> None:
    """alpha 0.1, 20 clients, 200 binary examples: "max attempts" in flwr-datasets 0.6.1."""
    task = made_up(np.arange(200) % 2)
    settings = ("partition.kind=dirichlet", "partition.alpha=0.1", "federation.clients=20")
    assert_partition(partition(task, quick(*settings, f"seed={seed}")), 200)


def test_a_smaller_alpha_is_less_even(quick: Quick) -> None:
    task = made_up(np.arange(2000) % 2)

    def unevenness(kind: str, alpha: float) -> float:
        settings = (f"partition.kind={kind}", f"partition.alpha={alpha}", "federation.clients=10")
        rows = partition(task, quick(*settings))
        counts = np.array([np.bincount(task.train.labels[part], minlength=2) for part in rows])
        return float(counts.std(axis=0).mean())

    for kind in ("dirichlet", "quantity"):
        assert unevenness(kind, 0.1) > unevenness(kind, 1) > unevenness(kind, 100)


def test_quantity_changes_sizes_not_labels(quick: Quick) -> None:
    task = made_up(np.arange(4000) % 2)
    rows = partition(task, quick("partition.kind=quantity", "federation.clients=5"))
    assert max(map(len, rows)) > 2 * min(map(len, rows))
    for part in (part for part in rows if len(part) > 100):
        share = task.train.labels[part].mean()
        assert abs(share - 0.5) < 5 * 0.5 / np.sqrt(len(part))


@pytest.mark.parametrize("alpha", [1e-3, 1e3])
def test_dirichlet_works_with_extreme_alphas(quick: Quick, alpha: float) -> None:
    task = made_up(np.arange(300) % 3, classes=3)
    for kind in ("dirichlet", "quantity"):
        settings = (f"partition.kind={kind}", f"partition.alpha={alpha}", "federation.clients=30")
        assert_partition(partition(task, quick(*settings)), 300)


@pytest.mark.parametrize("classes", [1, 2, 3])
@pytest.mark.parametrize("clients", [5, 12])
def test_pathological_clients_have_so_many_classes(
    quick: Quick, classes: int, clients: int
) -> None:
    task = made_up(np.arange(600) % 5, classes=5)
    settings = ("partition.kind=pathological", f"partition.classes={classes}")
    rows = partition(task, quick(*settings, f"federation.clients={clients}"))
    assert [len(np.unique(task.train.labels[part])) for part in rows] == [classes] * clients
    assert_partition(rows, 600)


def test_pathological_clients_with_all_classes_may_be_few(quick: Quick) -> None:
    task = made_up(np.arange(60) % 3, classes=3)
    settings = ("partition.kind=pathological", "partition.classes=3", "federation.clients=2")
    rows = partition(task, quick(*settings))
    assert_partition(rows, 60)
    assert all(len(np.unique(task.train.labels[part])) == 3 for part in rows)


def test_strict_bins_are_ranges_of_the_score_in_order(quick: Quick) -> None:
    scores = np.random.default_rng(0).permutation(np.linspace(0, 5, 90))
    settings = ("partition.kind=bins", "partition.strictness=1")
    rows = partition(made_up(scores, classes=1), quick(*settings))
    ranges = [(scores[part].min(), scores[part].max()) for part in rows]
    assert [len(part) for part in rows] == [30] * 3
    assert ranges[0][1] < ranges[1][0]
    assert ranges[1][1] < ranges[2][0]


@pytest.mark.parametrize("strictness", [0, 0.3, 0.8, 1])
@pytest.mark.parametrize("clients", [3, 10])
def test_bins_equal_those_of_flower(quick: Quick, strictness: float, clients: int) -> None:
    scores = np.random.default_rng(5).uniform(0, 5, 501)  # no two are equal
    settings = ["partition.kind=bins", f"partition.strictness={strictness}"]
    experiment = quick(*settings, f"federation.clients={clients}")
    draw = generator(experiment.seed, "partition")
    flower = ContinuousPartitioner(
        clients, "label", strictness, shuffle=False, seed=int(draw.integers(2**31))
    )
    order = draw.permutation(len(scores))
    flower.dataset = Dataset.from_dict({"row": order, "label": scores[order]})
    expected = [np.sort(flower.load_partition(client)["row"]) for client in range(clients)]
    rows = partition(made_up(scores, classes=1), experiment)
    assert all(np.array_equal(ours, theirs) for ours, theirs in zip(rows, expected, strict=True))


@given(
    st.sampled_from([-1e15, 0.0, 1.7e9, 1e300]),
    st.sampled_from([1e-9, 1.0, 3600.0, 1e290]),
    st.integers(2, 40),
)
def test_strict_bins_are_ranges_of_any_scores(offset: float, scale: float, count: int) -> None:
    """Time stamps are one case: float32 has steps of 128 s there."""
    numbers = np.random.default_rng(count).permutation(count).astype(float)
    scores = offset + scale * numbers
    settings = ["partition.kind=bins", "partition.strictness=1", "federation.clients=2"]
    experiment = Experiment.load("", settings)
    if not np.ptp(scores):
        with pytest.raises(UserError, match="all scores are"):
            partition(made_up(scores, classes=1), experiment)
        return
    low, high = partition(made_up(scores, classes=1), experiment)
    assert scores[low].max() <= scores[high].min()


def test_equal_scores_are_iid_without_strictness(quick: Quick) -> None:
    settings = ("partition.kind=bins", "partition.strictness=0")
    rows = partition(made_up(np.full(30, 2.5), classes=1), quick(*settings))  # no warning
    assert [len(part) for part in rows] == [10] * 3


def test_bins_of_no_strictness_are_iid(quick: Quick) -> None:
    scores = np.linspace(0, 5, 900)
    settings = ("partition.kind=bins", "partition.strictness=0")
    rows = partition(made_up(scores, classes=1), quick(*settings))
    assert max(abs(scores[part].mean() - 2.5) for part in rows) < 0.4  # 5 standard errors


def test_natural_follows_the_column(quick: Quick, tmp_path: Path) -> None:
    owners = ["ann", "bob", "bob", "cem", "bob", "cem"]
    lines = [f"{owner} wrote this,{n % 2},{owner}" for n, owner in enumerate(owners)]
    (tmp_path / "data.csv").write_text("\n".join(["text,label,who", *lines]) + "\n")
    experiment = quick(
        "task.name=custom",
        f"task.path={tmp_path}",
        "task.train=data.csv",
        "task.dev=data.csv",
        "task.train_limit=0",
        "partition.kind=natural",
        "partition.column=who",
    )
    task = load_task(experiment.task, 0, "who")
    rows = partition(task, experiment)
    assert [part.tolist() for part in rows] == [[1, 2, 4], [3, 5], [0]]  # bob, cem, ann


@pytest.mark.parametrize("kind", ["iid", "quantity"])
def test_tagged_texts_are_partitioned_whole(quick: Quick, kind: str) -> None:
    experiment = quick("task.name=synthetic/entities", f"partition.kind={kind}")
    task = task_of(experiment)
    rows = partition(task, experiment)
    assert_partition(rows, 60)
    parts = [task.train.select(part) for part in rows]
    assert sum(len(tags) for part in parts for tags in part.labels) == sum(
        map(len, task.train.text)
    )


OWNERS = ["a", "b", "b", "c", "c", "c"]
TAGGED = load_task(TaskSection(name="synthetic/entities", train_limit=10, eval_limit=1))


@pytest.mark.parametrize(
    ("task", "settings", "message"),
    [
        (
            made_up(np.arange(10) % 2),
            ["federation.clients=4", "partition.min_examples=3"],
            r"federation.clients = 4 with partition.min_examples = 3: .* only 10 training",
        ),
        (
            made_up(np.arange(10.0), 1),
            ["partition.kind=dirichlet"],
            r"partition.kind = 'dirichlet' needs classes; 'made up' is a score",
        ),
        (
            made_up(np.arange(10.0), 1),
            ["partition.kind=pathological"],
            "partition.kind = 'pathological' needs classes",
        ),
        (
            made_up(np.arange(10) % 2),
            ["partition.kind=bins"],
            r"partition.kind = 'bins' is for scores; 'made up' has classes",
        ),
        (
            made_up(np.full(10, 2.5), 1),
            ["partition.kind=bins"],
            "partition.kind = 'bins': all scores are 2.5; expected different ones",
        ),
        (
            made_up(np.arange(10) % 2),
            ["partition.kind=pathological", "partition.classes=3"],
            r"partition.classes = 3: task 'made up' has 2",
        ),
        (
            made_up(np.arange(50) % 5, 5),
            ["partition.kind=pathological", "partition.classes=2", "federation.clients=4"],
            r"federation.clients = 4 with 2 classes each need not hold all 5 .* at least 5",
        ),
        (
            made_up(np.array([0] * 19 + [1]), 2),
            ["partition.kind=pathological", "federation.clients=6"],
            "cannot be partitioned this way: Label: 1 is needed",
        ),
        (made_up(np.arange(6) % 2), ["partition.kind=natural"], "needs partition.column"),
        (TAGGED, ["partition.kind=natural"], "needs partition.column"),
        (
            TAGGED,
            ["partition.kind=bins"],
            "partition.kind = 'bins' is for scores; 'synthetic/entities' has tags$",
        ),
        (
            TAGGED,
            ["partition.kind=dirichlet"],
            "'dirichlet' needs classes; 'synthetic/entities' has tags: use 'iid' or 'quantity'$",
        ),
        (TAGGED, ["partition.kind=pathological"], "'pathological' needs classes; .* has tags"),
        (
            made_up(np.arange(6) % 2, owners=OWNERS),
            ["partition.kind=natural", "partition.column=who", "federation.clients=2"],
            r"federation.clients = 2: column 'who' has 3 different values; .*clients = 3",
        ),
        (
            made_up(np.arange(6) % 2, owners=OWNERS),
            ["partition.kind=natural", "partition.column=who", "partition.min_examples=2"],
            r"partition.min_examples = 2: .*'natural' a client has only 1",
        ),
    ],
)
def test_impossible_partitions_are_refused_with_the_values(
    quick: Quick, task: Task, settings: list[str], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        partition(task, quick(*settings))


def test_filling_up_takes_from_the_largest() -> None:
    rows = [np.array([], dtype=int), np.arange(10), np.arange(10, 14)]
    filled = fill_up(rows, 3, generator(0, "test"))
    assert [len(part) for part in filled] == [3, 7, 4]
    assert set(filled[0]) | set(filled[1]) == set(range(10))
    assert [len(part) for part in rows] == [0, 10, 4]  # what was given is not changed


def test_filling_up_takes_what_a_search_for_the_largest_takes() -> None:
    sizes = np.random.default_rng(0).integers(0, 9, 60)
    rows = Partition.of([100 * client + np.arange(size) for client, size in enumerate(sizes)])
    expected, draw = [*rows], generator(0, "test")
    for client in range(60):
        while len(expected[client]) < 3:
            largest = max(range(60), key=lambda other: len(expected[other]))
            taken = draw.integers(len(expected[largest]))
            expected[client] = np.append(expected[client], expected[largest][taken])
            expected[largest] = np.delete(expected[largest], taken)
    assert all(map(np.array_equal, fill_up(rows, 3, generator(0, "test")), expected))


def test_filling_up_keeps_clients_with_enough_examples() -> None:
    rows = [np.arange(2), np.arange(2, 9)]
    assert all(map(np.array_equal, fill_up(rows, 2, generator(0, "test")), rows))


def test_a_saved_partition_holds_rows_digest_and_counts(tmp_path: Path) -> None:
    rows = Partition.of([np.array([0, 3]), np.array([1, 2, 4])])
    path = tmp_path / "partition.json"
    task = made_up(np.arange(5) % 2)
    save(path, rows, "iid", task)
    digest = rows.digest
    kept = json.loads(path.read_text())
    assert kept == {
        "kind": "iid",
        "digest": digest,
        "clients": [[0, 3], [1, 2, 4]],
        "labels": [*task.info.labels],
        "counts": [[1, 1], [2, 1]],
    }
    assert digest == hashlib.sha256(json.dumps(kept["clients"]).encode()).hexdigest()
    assert Partition.of([rows[1], rows[0]]).digest != digest


def test_label_counts_of_tags_and_scores() -> None:
    rows = Partition.of([np.array([0, 1]), np.arange(2, 10)])
    counts = label_counts(rows, TAGGED)
    assert counts.shape == (2, len(TAGGED.info.labels))
    assert [*counts.sum(axis=1)] == [sum(len(TAGGED.train.text[at]) for at in r) for r in rows]
    assert label_counts(rows, made_up(np.arange(10.0), 1)).shape == (2, 0)


def test_a_run_keeps_the_partition_it_was_made_with(quick: Quick, tmp_path: Path) -> None:
    from simulations.simulation import prepare

    experiment = quick("partition.kind=dirichlet", "federation.clients=5")
    folder, runtime = prepare(experiment, tmp_path / "run")
    kept = json.loads((folder.path / "partition.json").read_text())
    assert kept["kind"] == "dirichlet"
    assert kept["clients"] == [part.tolist() for part in partition(runtime.task, experiment)]
    assert kept["digest"] == hashlib.sha256(json.dumps(kept["clients"]).encode()).hexdigest()
