import numpy as np
import pytest

from fedpeft.errors import UserError
from fedpeft.settings import TaskSection
from fedpeft.tasks import load_task
from fedpeft.tasks.custom import sort_labels


def custom(folder, train, dev=None, owner="", **keys):
    (folder / "train.csv").write_text(train)
    (folder / "dev.csv").write_text(train if dev is None else dev)
    section = TaskSection(name="custom", path=str(folder), train="train.csv", dev="dev.csv", **keys)
    return load_task(section, owner_column=owner)


def test_classes_are_found_in_train(tmp_path):
    train = "text,label,who\na,spam,x\nb,ham,y\nc,news,x\n"
    task = custom(tmp_path, train, "text,label,who\nd,news,z\n", owner="who")
    assert task.info.labels == ("ham", "news", "spam")
    assert (task.info.name, task.info.kind, task.info.metric) == ("custom", "classes", "accuracy")
    assert task.train.labels.tolist() == [2, 0, 1]
    assert task.dev.labels.tolist() == [1]
    assert task.train.owners == ["x", "y", "x"]
    assert task.classes == 3


def test_own_column_names_and_pairs(tmp_path):
    columns = {"text": "q", "text_pair": "a", "label": "good"}
    task = custom(tmp_path, "a,good,q\nyes,10,why\nno,9,how\n", **columns)
    assert task.info.pair
    assert (task.train.text, task.train.text_pair) == (["why", "how"], ["yes", "no"])
    assert task.info.labels == ("9", "10")


def test_a_score(tmp_path):
    task = custom(tmp_path, "text,label\na,0.5\nb,-2\n", kind="score")
    assert (task.info.kind, task.info.labels, task.info.metric) == ("score", (), "pearson")
    assert task.train.labels.tolist() == [0.5, -2.0]
    assert task.train.labels.dtype == np.float64
    assert task.classes == 1


def test_files_may_stand_anywhere_without_a_path(tmp_path):
    file = tmp_path / "all.jsonl"
    file.write_text('{"text": "a", "label": true}\n{"text": "b", "label": false}\n')
    task = load_task(TaskSection(name="custom", train=str(file), dev=str(file)))
    assert task.info.labels == ("False", "True")
    assert task.dev.labels.tolist() == [1, 0]


def test_a_label_that_train_lacks_is_refused(tmp_path):
    with pytest.raises(UserError) as caught:
        custom(tmp_path, "text,label\na,0\nb,1\n", "text,label\na,0\nb,2\n")
    expected = f"{tmp_path}/dev.csv row 2: label = '2' is none of the labels; valid: 0, 1"
    assert str(caught.value) == expected


@pytest.mark.parametrize(
    ("train", "expected"),
    [
        ("text,label\na,x\nb,x\n", "train.csv: column 'label' has one label; expected two or more"),
        ("text,lable\na,x\n", "train.csv: no column 'label'; did you mean 'lable'"),
        ("text,label\na,x\nb,\n", "train.csv row 2: column 'label' is empty"),
    ],
)
def test_what_cannot_be_learned_is_refused(tmp_path, train, expected):
    with pytest.raises(UserError, match=expected):
        custom(tmp_path, train)


def test_files_that_are_not_named_are_asked_for(tmp_path):
    with pytest.raises(UserError, match=r"task.train is empty: task 'custom' needs a file"):
        load_task(TaskSection(name="custom"))
    with pytest.raises(UserError, match=r"task.dev is empty: task 'custom' needs a file"):
        load_task(TaskSection(name="custom", train="a.csv"))


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        (["10", "9", "-1", "9"], ("-1", "9", "10")),
        (["1.5", "0.25"], ("0.25", "1.5")),
        (["10", "9", "x"], ("10", "9", "x")),
        (["nan", "1", "02"], ("02", "1", "nan")),
    ],
)
def test_numbers_are_sorted_as_numbers(labels, expected):
    assert sort_labels(labels) == expected
