"""CoNLL-2003 (Tjong Kim Sang and De Meulder 2003): named entities in the news.

Class indices are those of the hub's ``eriktks/conll2003``. Both common tagging schemes are read:
an entity starts with B-, or with I- after a word of another type. As for GLUE, the development set
is evaluated and test.txt is not read.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from fedpeft.errors import UserError
from fedpeft.experiment.settings import TaskSection
from fedpeft.files import USERS_TEXT
from fedpeft.tasks.base import Examples, Task, TaskInfo, tag_column
from fedpeft.tasks.readers import code_of

_LABELS = ("O", "B-PER", "I-PER", "B-ORG", "I-ORG", "B-LOC", "I-LOC", "B-MISC", "I-MISC")

HUB = "eriktks/conll2003"  # name of the data on the hub
TASKS = (
    TaskInfo(
        "conll2003", "tags", _LABELS, False, "f1", None, "names in the news", folder="conll2003"
    ),
)


def load(info: TaskInfo, section: TaskSection, seed: int, owner_column: str) -> Task:
    """Load train.txt and valid.txt from the folder ``section.path``.

    Raises:
        UserError: no folder is given, a file is missing or invalid, or an owner column is given.
    """
    if owner_column:
        raise UserError(f"partition.column = '{owner_column}': task '{info.name}' has no columns")
    train, dev = files(info, section)
    return Task(info, read(train, info.labels), read(dev, info.labels))


def files(info: TaskInfo, section: TaskSection) -> tuple[Path, Path]:
    """Return the paths of train.txt and valid.txt.

    Raises:
        UserError: no folder is given, or a file is missing.
    """
    if not section.path:
        # The hub has a script instead of files, and datasets does not run scripts since version 4.
        raise UserError(
            f"task '{info.name}' cannot be fetched from the hub: give the folder of train.txt and "
            "valid.txt with task.path=..., or use synthetic/entities"
        )
    folder = Path(section.path)
    return _file(folder, info, "train.txt"), _file(folder, info, "valid.txt")


def read(path: Path, labels: tuple[str, ...]) -> Examples:
    """Read the sentences of a file: each line has a word, two unused columns and a tag.

    Raises:
        UserError: not UTF-8, a line without four columns or with an unknown tag, no sentences.
    """
    codes = {label: index for index, label in enumerate(labels)}
    try:
        sentences = [*_sentences(path)]
    except UnicodeDecodeError:
        raise UserError(f"{path}: not UTF-8; save it as UTF-8") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from None
    if not sentences:
        raise UserError(f"{path}: has no sentences")
    tags = (
        [code_of(tag, codes, f"{path} line {number}: tag") for number, _, tag in sentence]
        for sentence in sentences
    )
    return Examples(
        [[word for _, word, _ in sentence] for sentence in sentences], None, tag_column(tags)
    )


def _file(path: Path, info: TaskInfo, name: str) -> Path:
    folders = (path / info.folder, path)
    for folder in folders:
        if (folder / name).is_file():
            return folder / name
    looked = " and ".join(f"{folder / name}" for folder in folders)
    raise UserError(f"task.path = '{path}': no file for task '{info.name}'; looked for {looked}")


def _sentences(path: Path) -> Iterator[list[tuple[int, str, str]]]:
    """Yield the words of every sentence as (line number, word, tag)."""
    sentence: list[tuple[int, str, str]] = []
    with open(path, encoding=USERS_TEXT) as file:
        for number, line in enumerate(file, start=1):
            # Not split(): a word may contain characters that it treats as white space.
            columns = re.split("[ \t]+", line.strip(" \t\n"))
            if columns[0] in ("", "-DOCSTART-"):  # end of a sentence or document
                if sentence:
                    yield sentence
                sentence = []
            elif len(columns) != 4:
                raise UserError(f"{path} line {number}: {len(columns)} columns, expected 4")
            else:
                sentence.append((number, columns[0], columns[3]))
    if sentence:
        yield sentence
