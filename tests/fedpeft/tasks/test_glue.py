import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from fedpeft.errors import UserError
from fedpeft.experiment.settings import TaskSection
from fedpeft.tasks import load_task
from fedpeft.tasks.glue import TASKS

GLUE = Path(__file__).resolve().parents[3].parent / "shared/data/glue"
with_glue = pytest.mark.skipif(not GLUE.is_dir(), reason=f"no GLUE files in {GLUE}")

# rows of dev and how many of each class, as published in the data's SOURCES.md
DEV = {
    "cola": [322, 721],
    "sst2": [428, 444],
    "mrpc": [129, 279],
    "qqp": [4871, 2729],
    "mnli": [3479, 3123, 3213],
    "mnli_mismatched": [344, 319, 335],
    "qnli": [2702, 2761],
    "rte": [146, 131],
    "wnli": [40, 31],
}


def local(name, path, **keys):
    return load_task(TaskSection(name=name, path=str(path), **keys))


@with_glue
@pytest.mark.parametrize("name", DEV)
def test_real_files_have_the_published_counts(name):
    task = local(name, GLUE, train_limit=50)
    assert np.bincount(task.dev.labels).tolist() == DEV[name]
    assert len(task.train) == 50
    assert task.info.classes == len(DEV[name])
    assert (task.dev.text_pair is not None) == task.info.pair
    assert task.train.owners is None


@with_glue
def test_stsb_labels_are_scores():
    task = local("stsb", GLUE)
    assert (task.info.classes, task.info.labels, task.info.metric) == (1, (), "pearson")
    assert (len(task.train), len(task.dev)) == (5749, 1500)
    assert task.dev.labels.dtype == np.float64
    assert (task.dev.labels.min(), task.dev.labels.max()) == (0.0, 5.0)


@with_glue
def test_path_of_the_task_folder_or_its_parent_gives_the_same_task():
    one, other = local("rte", GLUE), local("rte", GLUE / "RTE")
    assert one.train.text == other.train.text
    assert one.dev.text_pair == other.dev.text_pair


def hub_frame(folder):
    """Rows as the hub names and codes them, a row without label (-1) among them."""
    label = [1, 0, -1, 1]
    texts = [f"text {i}" for i in range(4)]
    names = {
        "QNLI": ["question", "sentence"],
        "MNLI": ["premise", "hypothesis"],
        "QQP": ["question1", "question2"],
        "CoLA": ["sentence"],
        "SST-2": ["sentence"],
    }.get(folder, ["sentence1", "sentence2"])
    return pd.DataFrame({**dict.fromkeys(names, texts), "label": label, "idx": range(4)})


@pytest.mark.parametrize("info", TASKS, ids=lambda info: info.name)
def test_hub_columns_codes_and_parquet_are_read(tmp_path, info):
    suffix = {"mnli": "_matched", "mnli_mismatched": "_mismatched"}.get(info.name, "")
    for stem in ("train", f"dev{suffix}"):
        hub_frame(info.folder).to_parquet(tmp_path / f"{stem}.parquet")
    task = local(info.name, tmp_path)
    assert task.train.text == ["text 0", "text 1", "text 3"]
    assert task.train.labels.tolist() == [1, 0, 1]
    assert task.info is info


@pytest.mark.parametrize(
    "info", [info for info in TASKS if info.kind == "classes"], ids=lambda info: info.name
)
def test_label_names_and_digits_are_the_same_classes(tmp_path, info):
    suffix = {"mnli": "_matched", "mnli_mismatched": "_mismatched"}.get(info.name, "")
    columns = ["sentence1", "sentence2"] if info.pair else ["sentence"]
    digits = [str(code) for code in range(len(info.labels))]
    for stem, labels in (("train", info.labels), (f"dev{suffix}", digits)):
        frame = pd.DataFrame({**dict.fromkeys(columns, "a"), "label": labels})
        frame.to_csv(tmp_path / f"{stem}.tsv", sep="\t", index=False)
    task = local(info.name, tmp_path)
    assert task.train.labels.tolist() == task.dev.labels.tolist() == list(range(len(info.labels)))


def test_missing_file_names_the_searched_folders(tmp_path):
    with pytest.raises(UserError) as caught:
        local("sst2", tmp_path)
    assert str(caught.value) == (
        f"task.path = '{tmp_path}': no file for task 'sst2'; looked for {tmp_path}/SST-2/train and "
        f"{tmp_path}/train with .tsv, .csv, .jsonl, .parquet"
    )


def test_a_row_is_named_by_its_number_in_the_file(tmp_path):
    """Also behind rows without label, which are not read."""
    frame = pd.DataFrame({"sentence": ["a", "b", " "], "label": [0, -1, 1]})
    frame.to_csv(tmp_path / "train.csv", index=False)
    with pytest.raises(UserError) as caught:
        shutil.copy(tmp_path / "train.csv", tmp_path / "dev.csv")
        local("cola", tmp_path)
    assert str(caught.value) == f"{tmp_path}/train.csv row 3: column 'sentence' is empty"


def test_a_file_without_labels_is_refused(tmp_path):
    frame = pd.DataFrame({"sentence": ["a", "b"], "label": [-1, -1]})
    for stem in ("train", "dev"):
        frame.to_csv(tmp_path / f"{stem}.csv", index=False)
    with pytest.raises(UserError, match=r"train.csv: no row has a label, all are -1"):
        local("sst2", tmp_path)


@pytest.fixture
def offline_cache(tmp_path, monkeypatch):
    """An empty cache of the hub, and no way to the hub."""
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    return tmp_path


def test_missing_path_without_hub_says_what_to_do(offline_cache):
    expected = (
        "task 'sst2' is not here and the hub cannot be reached: give a local folder with "
        "task.path=..., or use a synthetic/* task"
    )
    with pytest.raises(UserError) as caught:
        load_task(TaskSection(name="sst2"))
    assert str(caught.value) == expected


def test_hub_cache_is_used_offline(offline_cache):
    commit = "0123456789abcdef0123456789abcdef01234567"
    repository = offline_cache / "datasets--nyu-mll--glue"
    folder = repository / "snapshots" / commit / "sst2"
    folder.mkdir(parents=True)
    (repository / "refs").mkdir()
    (repository / "refs/main").write_text(commit)
    for split in ("train", "validation"):
        hub_frame("SST-2").to_parquet(folder / f"{split}-00000-of-00001.parquet")
    task = load_task(TaskSection(name="sst2"))
    assert task.dev.labels.tolist() == [1, 0, 1]
    with pytest.raises(UserError, match="task 'cola' is not here"):
        load_task(TaskSection(name="cola"))  # the same repository, other files
