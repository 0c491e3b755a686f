"""Tagged words of custom files, from JSONL and Parquet."""

import json

import numpy as np
import pandas as pd
import pytest

from fedpeft.errors import UserError
from fedpeft.experiment.settings import TaskSection
from fedpeft.tasks import load_task

ROWS = [
    {"text": ["Ann", "Lee", "ran"], "label": ["B-PER", "I-PER", "O"], "who": "x"},
    {"text": ["in", "Rome"], "label": ["O", "B-LOC"], "who": "y"},
]


def written(folder, name, rows):
    path = folder / name
    if path.suffix == ".parquet":
        pd.DataFrame(rows).to_parquet(path)
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return name


def custom(folder, train, dev=None, extension="jsonl", owner="", **keys):
    section = TaskSection(
        name="custom",
        kind="tags",
        path=str(folder),
        train=written(folder, f"train.{extension}", train),
        dev=written(folder, f"dev.{extension}", train if dev is None else dev),
        **keys,
    )
    return load_task(section, owner_column=owner)


NUMBERED = [{"text": ["Ann", "ran"], "label": [1, 0]}, {"text": ["Rome"], "label": [2]}]
NAMES = ("O", "B-PER", "B-LOC")


@pytest.mark.parametrize("extension", ["jsonl", "parquet"])
def test_integer_tags_take_their_names_from_the_labels(tmp_path, extension):
    task = custom(tmp_path, NUMBERED, extension=extension, labels=NAMES)
    assert (task.info.labels, task.info.metric) == (NAMES, "f1")
    assert [tags.tolist() for tags in task.dev.labels] == [[1, 0], [2]]
    numbers = custom(tmp_path, NUMBERED, extension=extension, labels=("2", "1", "0"))
    assert [tags.tolist() for tags in numbers.dev.labels] == [[1, 2], [0]]
    with pytest.raises(UserError, match=r"row 2: a tag .* is 2, without a name: task.labels has 2"):
        custom(tmp_path, NUMBERED, extension=extension, labels=NAMES[:2])


@pytest.mark.parametrize("feature", ["List", "Sequence", "old"])
def test_integer_tags_take_their_names_from_the_files_class_label(tmp_path, feature):
    """As ``datasets`` writes them now, and as earlier versions did."""
    import pyarrow.parquet as pq
    from datasets import ClassLabel, Dataset, Features, List, Value

    names = ["O", "B-LOC", "B-PER", "I-PER"]  # the file's own order; I-PER does not occur
    features = Features({"text": List(Value("string")), "label": List(ClassLabel(names=names))})
    rows = [
        {"text": row["text"], "label": [int(2 / k) if k else 0 for k in row["label"]]}
        for row in NUMBERED
    ]
    path = tmp_path / "train.parquet"
    Dataset.from_list(rows, features=features).to_parquet(path)
    if feature != "List":
        table = pq.read_table(path)
        about = json.loads(table.schema.metadata[b"huggingface"])
        column = about["info"]["features"]["label"]
        inner = column["feature"]
        about["info"]["features"]["label"] = (
            [inner] if feature == "old" else {"feature": inner, "_type": "Sequence"}
        )
        metadata = {b"huggingface": json.dumps(about).encode()}
        pq.write_table(table.replace_schema_metadata(metadata), path)
    section = TaskSection(name="custom", kind="tags", train=str(path), dev=str(path))
    task = load_task(section)
    assert task.info.labels == tuple(names)
    assert [tags.tolist() for tags in task.train.labels] == [[2, 0], [1]]
    chosen = load_task(section.model_copy(update={"labels": ("B-PER", "B-LOC", "O")}))
    assert [tags.tolist() for tags in chosen.dev.labels] == [[0, 2], [1]]


@pytest.mark.parametrize("extension", ["jsonl", "parquet"])
def test_both_formats_give_words_and_tags(tmp_path, extension):
    task = custom(tmp_path, ROWS, extension=extension, owner="who")
    assert task.info.labels == ("O", "B-LOC", "B-PER", "I-PER")  # sorted, but O first
    assert (task.info.kind, task.info.metric, task.info.classes) == ("tags", "f1", 4)
    assert task.train.text == [["Ann", "Lee", "ran"], ["in", "Rome"]]
    assert [tags.tolist() for tags in task.train.labels] == [[2, 3, 0], [0, 1]]
    assert [tags.dtype for tags in task.dev.labels] == [np.int64] * 2
    assert task.train.owners == ["x", "y"]
    assert task.train.tagged


def test_rows_of_equal_length_stay_rows(tmp_path):
    rows = [{"text": ["a", "b"], "label": ["O", "X"]}] * 3
    train = custom(tmp_path, rows).train
    assert train.labels.shape == (3,)
    assert train.select(np.array([2, 0])).labels[0].tolist() == [0, 1]


def test_metric_without_tag_o_is_accuracy(tmp_path):
    rows = [{"words": ["time", "flies"], "pos": ["NOUN", "VERB"]}]
    task = custom(tmp_path, rows, text="words", label="pos")
    assert (task.info.labels, task.info.metric) == (("NOUN", "VERB"), "accuracy")


def test_integers_are_accepted_as_tags(tmp_path):
    task = custom(tmp_path, [{"text": ["a", "b", "c"], "label": [10, 9, 10]}])
    assert task.info.labels == ("9", "10")
    assert task.train.labels[0].tolist() == [1, 0, 1]


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ({"text": "a b", "label": ["O", "X"]}, "column 'text' is str, expected a list"),
        ({"text": ["a"], "label": "O"}, "column 'label' is str, expected a list"),
        ({"text": ["secret", "a"], "label": ["O"]}, "2 words but 1 tags"),
        ({"text": [], "label": []}, "column 'label' is an empty list"),
        ({"text": None, "label": ["O"]}, "column 'text' is empty"),
        ({"text": ["a", 7], "label": ["O", "X"]}, "column 'text' holds what is no text"),
        ({"text": ["a"], "label": [1.5]}, "a tag in column 'label' is float, expected its name"),
        ({"text": ["a"], "label": [True]}, "a tag in column 'label' is bool, expected its name"),
        ({"text": ["a"], "label": [""]}, "a tag in column 'label' is empty, expected its name"),
        (
            {"text": ["a"], "label": ["B-X"]},
            "tag 1 = 'B-X' is none of the 4 in training",
        ),
    ],
)
def test_a_bad_row_is_refused_by_number_without_its_text(tmp_path, row, expected):
    with pytest.raises(UserError) as caught:
        custom(tmp_path, ROWS, [ROWS[0], row])
    assert str(caught.value) == f"{tmp_path}/dev.jsonl row 2: {expected}"


@pytest.mark.parametrize("extension", ["csv", "tsv"])
def test_formats_without_lists_are_refused(tmp_path, extension):
    (tmp_path / f"a.{extension}").write_text("text,label\na,O\n")
    file = f"a.{extension}"
    section = TaskSection(name="custom", kind="tags", path=str(tmp_path), train=file, dev=file)
    with pytest.raises(UserError) as caught:
        load_task(section)
    assert str(caught.value) == (
        f"{tmp_path}/{file}: tags need lists of words, which only .jsonl and .parquet files have"
    )


def test_pairs_missing_columns_and_a_single_tag_are_refused(tmp_path):
    with pytest.raises(UserError, match=r"task.text_pair = 'who': tags have one text, not two"):
        custom(tmp_path, ROWS, text_pair="who")
    with pytest.raises(UserError, match=r"train.jsonl: no column 'tags'"):
        custom(tmp_path, ROWS, label="tags")
    with pytest.raises(UserError, match=r"train.jsonl: column 'label' has one label; expected two"):
        custom(tmp_path, [{"text": ["a", "b"], "label": ["O", "O"]}])
