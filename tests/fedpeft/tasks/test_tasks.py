import subprocess
import sys

import numpy as np
import pytest

from fedpeft.errors import UserError
from fedpeft.experiment.settings import TaskSection
from fedpeft.randomness import generator
from fedpeft.tasks import Examples, available_tasks, load_task

METRICS = {"cola": "matthews", "stsb": "pearson", "mrpc": "f1", "qqp": "f1"}


def test_available_tasks_have_the_papers_metrics():
    tasks = {info.name: info for info in available_tasks()}
    glue = ["cola", "sst2", "mrpc", "stsb", "qqp"]
    glue += ["mnli", "mnli_mismatched", "qnli", "rte", "wnli"]
    made = [
        f"synthetic/{name}"
        for name in ("sentiment", "inference", "similarity", "crowd", "entities")
    ]
    assert list(tasks) == [*made, *glue, "conll2003", "custom"]
    assert {name: tasks[name].metric for name in glue} == dict.fromkeys(glue, "accuracy") | METRICS
    for info in tasks.values():
        assert (info.best == 1.0) == info.name.startswith("synthetic/")
        assert bool(info.labels) == (info.kind != "score" and info.name != "custom")
        assert (info.kind == "tags") == (info.name in ("synthetic/entities", "conll2003"))
        assert info.description and "\n" not in info.description


def test_unknown_task_suggests_the_nearest_name():
    with pytest.raises(UserError) as caught:
        load_task(TaskSection(name="sst3"))
    assert str(caught.value).startswith("task.name = 'sst3': unknown task; did you mean 'sst2'")


def write_custom(folder, count):
    rows = "".join(f"text {i},{i % 3},owner {i}\n" for i in range(count))
    (folder / "all.csv").write_text("text,label,who\n" + rows)
    return {"name": "custom", "path": str(folder), "train": "all.csv", "dev": "all.csv"}


def test_limits_take_a_seeded_subset_in_the_order_of_the_file(tmp_path):
    keys = write_custom(tmp_path, 50)
    section = TaskSection(**keys, train_limit=10, eval_limit=20)
    task = load_task(section, seed=3, owner_column="who")
    rows = [int(text.split()[1]) for text in task.train.text]
    assert rows == sorted(rows) and len(set(rows)) == 10
    expected = generator(3, "train-limit").choice(50, 10, replace=False)
    assert rows == sorted(expected.tolist())
    assert task.train.labels.tolist() == [row % 3 for row in rows]
    assert task.train.owners == [f"owner {row}" for row in rows]
    assert len(task.dev) == 20
    assert load_task(section, seed=3).train.text == task.train.text
    assert load_task(section, seed=4).train.text != task.train.text


def test_validation_examples_are_held_out_of_train_and_replace_dev(tmp_path):
    keys = write_custom(tmp_path, 50)
    whole = load_task(TaskSection(**keys, train_limit=20), seed=3)
    section = TaskSection(**keys, train_limit=20, validation=0.3)
    task = load_task(section, seed=3, owner_column="who")
    assert (len(task.train), len(task.dev)) == (14, 6)
    together = sorted([*task.train.text, *task.dev.text], key=lambda text: int(text.split()[1]))
    assert together == whole.train.text
    assert task.train.text == [text for text in whole.train.text if text in task.train.text]
    assert load_task(section, seed=3).dev.text == task.dev.text
    assert load_task(section, seed=4).dev.text != task.dev.text
    limited = TaskSection(**keys, train_limit=20, validation=0.3, eval_limit=2)
    assert set(load_task(limited, seed=3).dev.text) < set(task.dev.text)


def test_validation_that_leaves_no_training_examples_is_refused(tmp_path):
    keys = write_custom(tmp_path, 50)
    with pytest.raises(UserError, match=r"task.validation = 0.9: leaves none of the 2 training"):
        load_task(TaskSection(**keys, train_limit=2, validation=0.9))


def test_limit_above_the_size_keeps_all(tmp_path):
    keys = write_custom(tmp_path, 12)
    task = load_task(TaskSection(**keys, train_limit=13, eval_limit=12))
    assert (len(task.train), len(task.dev)) == (12, 12)


def test_examples_select_keeps_columns_aligned():
    examples = Examples(["a", "b", "c"], ["x", "y", "z"], np.array([0, 1, 2]), ["p", "q", "r"])
    chosen = examples.select(np.array([2, 0]))
    assert (chosen.text, chosen.text_pair, chosen.owners) == (["c", "a"], ["z", "x"], ["r", "p"])
    assert chosen.labels.tolist() == [2, 0]
    assert examples.select(np.array([], dtype=np.int64)).text == []


def test_importing_the_tasks_is_cheap():
    program = (
        "import sys, fedpeft.tasks, fedpeft.tasks.encoding, fedpeft.tasks.metrics\n"
        "import fedpeft.backbones.hub\n"
        "heavy = {'torch', 'transformers', 'pandas', 'pyarrow', 'datasets', 'scipy',\n"
        "         'huggingface_hub', 'sklearn', 'seqeval'}\n"
        "print(sorted(heavy & sys.modules.keys()))"
    )
    reply = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert reply.stdout == "[]\n", reply.stderr
