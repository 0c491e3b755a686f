import numpy as np
import pytest

from fedpeft.errors import UserError
from fedpeft.experiment.settings import TaskSection
from fedpeft.tasks import described, load_task
from fedpeft.tasks.custom import sort_labels


def custom(folder, train, dev=None, owner="", **keys):
    (folder / "train.csv").write_text(train)
    (folder / "dev.csv").write_text(train if dev is None else dev)
    section = TaskSection(name="custom", path=str(folder), train="train.csv", dev="dev.csv", **keys)
    return load_task(section, owner_column=owner)


def test_classes_default_to_those_in_the_training_file(tmp_path):
    train = "text,label,who\na,spam,x\nb,ham,y\nc,news,x\n"
    task = custom(tmp_path, train, "text,label,who\nd,news,z\n", owner="who")
    assert task.info.labels == ("ham", "news", "spam")
    assert (task.info.name, task.info.kind, task.info.metric) == ("custom", "classes", "accuracy")
    assert task.train.labels.tolist() == [2, 0, 1]
    assert task.dev.labels.tolist() == [1]
    assert task.train.owners == ["x", "y", "x"]
    assert task.info.classes == 3


def test_custom_column_names_and_pairs(tmp_path):
    columns = {"text": "q", "text_pair": "a", "label": "good"}
    task = custom(tmp_path, "a,good,q\nyes,10,why\nno,9,how\n", **columns)
    assert task.info.pair
    assert (task.train.text, task.train.text_pair) == (["why", "how"], ["yes", "no"])
    assert task.info.labels == ("9", "10")


def test_custom_score(tmp_path):
    task = custom(tmp_path, "text,label\na,0.5\nb,-2\n", kind="score")
    assert (task.info.kind, task.info.labels, task.info.metric) == ("score", (), "pearson")
    assert task.train.labels.tolist() == [0.5, -2.0]
    assert task.train.labels.dtype == np.float64
    assert task.info.classes == 1


def test_absolute_files_need_no_path(tmp_path):
    file = tmp_path / "all.jsonl"
    file.write_text('{"text": "a", "label": true}\n{"text": "b", "label": false}\n')
    task = load_task(TaskSection(name="custom", train=str(file), dev=str(file)))
    assert task.info.labels == ("False", "True")
    assert task.dev.labels.tolist() == [1, 0]


def test_dev_label_missing_in_train_is_refused(tmp_path):
    with pytest.raises(UserError) as caught:
        custom(tmp_path, "text,label\na,0\nb,1\n", "text,label\na,0\nb,2\n")
    expected = f"{tmp_path}/dev.csv row 2: label = '2' is none of the labels; valid: 0, 1"
    assert str(caught.value) == expected


@pytest.mark.parametrize(
    ("train", "expected"),
    [
        ("text,label\na,x\nb,x\n", "train.csv: column 'label' has one label; expected two or more"),
        (
            "text,lable\na,x\n",
            r"train.csv: no column 'label'; did you mean 'lable'\? "
            r"\(task.label = '...' names another column\)$",
        ),
        ("review,label\na,x\n", r"valid: label, review \(task.text = '...' names another column"),
        ("text,label\na,x\nb,\n", "train.csv row 2: column 'label' is empty"),
    ],
)
def test_training_file_that_cannot_be_learned_is_refused(tmp_path, train, expected):
    with pytest.raises(UserError, match=expected):
        custom(tmp_path, train)


def test_a_missing_column_of_owners_names_its_setting(tmp_path):
    with pytest.raises(UserError, match=r"no column 'who'; .* \(partition.column = '...' names an"):
        custom(tmp_path, "text,label\na,x\nb,y\n", owner="who")


def test_missing_training_file_setting_is_refused(tmp_path):
    with pytest.raises(UserError, match=r"task.train is empty: task 'custom' needs a file"):
        load_task(TaskSection(name="custom"))


def test_what_is_no_file_is_refused_with_its_setting(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    (tmp_path / "all.csv").write_text("text,label\na,x\nb,y\n")
    below = f"; the path is relative to the current folder, '{tmp_path}'"
    for keys, expected in (
        ({"train": "a.csv"}, f"task.train = 'a.csv': no such file{below}"),
        ({"train": "all.csv", "dev": "a.csv"}, f"task.dev = 'a.csv': no such file{below}"),
        ({"train": "/none/a.csv"}, "task.train = '/none/a.csv': no such file"),
        (
            {"train": "all.csv", "path": "folder"},
            "task.train = 'all.csv': no such file; the path is relative to task.path = 'folder'",
        ),
        ({"train": "folder"}, "task.train = 'folder': is no file; datasets cannot read it: "),
    ):
        with pytest.raises(UserError) as caught:
            load_task(TaskSection(name="custom", **keys))
        assert str(caught.value).startswith(expected)


def one_file(folder, rows, seed=0, **keys):
    lines = [f"text {row},{'abc'[row % 3]}" for row in range(rows)]
    (folder / "all.csv").write_text("\n".join(["text,label", *lines]) + "\n")
    return load_task(TaskSection(name="custom", path=str(folder), train="all.csv", **keys), seed)


def test_without_a_dev_file_a_share_of_the_rows_is_held_out(tmp_path):
    task = one_file(tmp_path, 30, held_out=0.2)
    assert (len(task.train), len(task.dev)) == (24, 6)
    assert sorted(task.train.text + task.dev.text) == sorted(f"text {row}" for row in range(30))
    assert task.train.text == sorted(task.train.text, key=lambda text: int(text.split()[1]))
    assert task.dev.labels.tolist() == [int(text.split()[1]) % 3 for text in task.dev.text]
    assert one_file(tmp_path, 30, held_out=0.2).dev.text == task.dev.text
    assert one_file(tmp_path, 30, seed=1, held_out=0.2).dev.text != task.dev.text
    with pytest.raises(UserError, match=r"all.csv: has 1 rows; expected at least 2"):
        one_file(tmp_path, 1, labels=("a", "b"))


def test_given_labels_apply_to_every_file(tmp_path):
    train = "text,label\na,ham\nb,spam\n"
    task = custom(tmp_path, train, labels=("spam", "ham", "news"))
    assert task.info.labels == ("spam", "ham", "news")
    assert task.train.labels.tolist() == [1, 0]
    assert custom(tmp_path, "text,label\na,ham\n", labels=("ham", "spam")).info.classes == 2
    with pytest.raises(UserError, match="label = 'ham' is none of the labels; valid: spam, news"):
        custom(tmp_path, train, labels=("spam", "news"))


@pytest.mark.parametrize("given", ["1,2", "1.0,2.0", (1, 2.0), ("+1.00", " 2")])
def test_whole_numbers_are_the_same_labels_in_settings_and_files(tmp_path, given):
    section = TaskSection(name="custom", labels=given)
    expected = ("+1", "2") if "+1.00" in given else ("1", "2")
    assert section.labels == described(section).labels == expected
    if expected == ("1", "2"):
        task = custom(tmp_path, "text,label\na,1.0\nb,2\n", labels=given)
        assert task.train.labels.tolist() == [0, 1]


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({"labels": ("x", "y"), "text_pair": "b"}, ("classes", ("x", "y"), True, "accuracy")),
        ({"kind": "score"}, ("score", (), False, "pearson")),
        ({"kind": "tags", "labels": ("O", "B-x")}, ("tags", ("O", "B-x"), False, "f1")),
        ({"kind": "tags", "labels": ("n", "v")}, ("tags", ("n", "v"), False, "accuracy")),
    ],
)
def test_settings_alone_describe_a_custom_task(keys, expected):
    info = described(TaskSection(name="custom", **keys))
    assert (info.kind, info.labels, info.pair, info.metric) == expected


def test_described_task_equals_the_loaded_task(tmp_path):
    (tmp_path / "tagged.jsonl").write_text('{"text": ["a", "b"], "label": ["B-x", "O"]}\n' * 3)
    tags = {"kind": "tags", "labels": ("O", "B-x"), "train": "tagged.jsonl"}
    section = TaskSection(name="custom", path=str(tmp_path), **tags)
    assert load_task(section).info == described(section)
    assert described(TaskSection(name="custom")) is None
    assert described(TaskSection(name="sst2")).labels == ("negative", "positive")


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        (["10", "9", "-1", "9"], ("-1", "9", "10")),
        (["1.5", "0.25"], ("0.25", "1.5")),
        (["10", "9", "x"], ("10", "9", "x")),
        (["nan", "1", "02"], ("02", "1", "nan")),
    ],
)
def test_numeric_labels_are_sorted_by_value(labels, expected):
    assert sort_labels(labels) == expected
