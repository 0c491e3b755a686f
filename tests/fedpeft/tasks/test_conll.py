import collections

import numpy as np
import pytest

from fedpeft.errors import UserError
from fedpeft.experiment.settings import TaskSection
from fedpeft.tasks import load_task
from fedpeft.tasks.conll import TASKS

LABELS = TASKS[0].labels
FILE = """-DOCSTART- -X- -X- O

Ann NNP B-NP B-PER
Lee NNP I-NP I-PER
ran VBD B-VP O

-DOCSTART- -X- O O


in IN B-PP O
New\xa0York NNP B-NP I-LOC
"""


def conll(folder, train=FILE, valid=FILE, path=None, owner="", **keys):
    for name, content in (("train.txt", train), ("valid.txt", valid)):
        if content is not None:
            (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    section = TaskSection(name="conll2003", path=str(path or folder), **keys)
    return load_task(section, owner_column=owner)


def names(examples):
    return [[LABELS[tag] for tag in tags] for tags in examples.labels]


# sentences, words and entities as published in the data's SOURCES.md
@pytest.mark.parametrize(
    ("split", "counts"), [("train", (14041, 203621, 23499)), ("dev", (3250, 51362, 5942))]
)
def test_real_files_have_the_published_counts(conll2003, split, counts):
    part = getattr(load_task(TaskSection(name="conll2003", path=str(conll2003))), split)
    assert part.tagged
    assert len(part) == counts[0]
    assert sum(map(len, part.text)) == sum(map(len, part.labels)) == counts[1]
    begin = collections.Counter(name[0] for tags in names(part) for name in tags)["B"]
    assert begin == counts[2]
    assert not any(word == "-DOCSTART-" for words in part.text for word in words)


def test_conll_accepts_the_parent_folder_and_limits(conll2003):
    section = TaskSection(name="conll2003", path=str(conll2003.parent), train_limit=7, eval_limit=3)
    task = load_task(section, seed=1)
    assert (len(task.train), len(task.dev), task.info.classes) == (7, 3, 9)
    assert [len(words) for words in task.train.text] == [len(tags) for tags in task.train.labels]


@pytest.mark.parametrize("first", ["", "\n", "Ann NNP B-NP B-PER\n"])
def test_a_byte_order_mark_is_no_part_of_the_first_line(tmp_path, first):
    plain = conll(tmp_path, train=first + FILE)
    marked = conll(tmp_path, train=b"\xef\xbb\xbf" + (first + FILE).encode())
    assert (marked.train.text, names(marked.train)) == (plain.train.text, names(plain.train))


def test_sentences_end_at_blank_lines_and_documents(tmp_path):
    task = conll(tmp_path)
    assert task.train.text == [["Ann", "Lee", "ran"], ["in", "New\xa0York"]]
    assert names(task.train) == [["B-PER", "I-PER", "O"], ["O", "I-LOC"]]
    assert (task.info.kind, task.info.metric, task.info.classes) == ("tags", "f1", 9)
    assert all(tags.dtype == np.int64 for tags in task.dev.labels)


def test_conll_reads_tabs_windows_lines_and_a_missing_final_blank_line(tmp_path):
    task = conll(tmp_path, FILE.replace(" ", "\t").replace("\n", "\r\n"), FILE.strip())
    assert task.train.text == task.dev.text == [["Ann", "Lee", "ran"], ["in", "New\xa0York"]]


def test_conll_labels_equal_those_of_the_hub():
    names = ("O", "B-PER", "I-PER", "B-ORG", "I-ORG", "B-LOC", "I-LOC", "B-MISC", "I-MISC")
    assert names == LABELS


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("a b c O\nsecret word O\n", "{}/train.txt line 2: 3 columns, expected 4"),
        ("a b c O\n\nsecret b c d O\n", "{}/train.txt line 3: 5 columns, expected 4"),
        (
            "a b c O\nsecret b c B-SUM\n",
            "{}/train.txt line 2: tag = 'B-SUM' is none of the labels; valid: " + ", ".join(LABELS),
        ),
        ("-DOCSTART- -X- O O\n\n", "{}/train.txt: has no sentences"),
        ("", "{}/train.txt: has no sentences"),
        ("Über b c O\n".encode("latin-1"), "{}/train.txt: not UTF-8; save it as UTF-8"),
    ],
)
def test_a_bad_file_is_refused_by_line_without_its_text(tmp_path, content, expected):
    with pytest.raises(UserError) as caught:
        conll(tmp_path, content)
    assert str(caught.value) == expected.format(tmp_path)


def test_missing_file_names_the_searched_folders(tmp_path):
    with pytest.raises(UserError) as caught:
        conll(tmp_path, valid=None)
    assert str(caught.value) == (
        f"task.path = '{tmp_path}': no file for task 'conll2003'; looked for "
        f"{tmp_path}/conll2003/valid.txt and {tmp_path}/valid.txt"
    )


def test_missing_path_says_what_to_do():
    with pytest.raises(UserError, match=r"cannot be fetched from the hub: .* task.path=\.\.\., or"):
        load_task(TaskSection(name="conll2003"))


def test_an_owner_column_is_refused(tmp_path):
    with pytest.raises(UserError, match=r"partition.column = 'who': .* has no columns"):
        conll(tmp_path, owner="who")
