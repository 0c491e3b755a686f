"""GLUE (Wang et al. 2019, arXiv 1804.07461), from local files or the Hugging Face hub.

Class indices and names are those of the hub's ``nyu-mll/glue``; metrics are those of Gupta et al.
2023, table 1. GLUE's test labels are not public, so its dev set is evaluated.
"""

from __future__ import annotations

from pathlib import Path

from fedpeft.backbones.hub import hub_dataset
from fedpeft.errors import UserError
from fedpeft.experiment.settings import TaskSection
from fedpeft.tasks.base import Examples, Kind, Task, TaskInfo
from fedpeft.tasks.readers import (
    EXTENSIONS,
    Columns,
    check_columns,
    first_present,
    label_texts,
    only_file,
    read_table,
    to_examples,
)

_NLI = ("entailment", "neutral", "contradiction")
_TWO = ("entailment", "not_entailment")
_SAME = ("not_duplicate", "duplicate")


def _info(
    name: str, folder: str, labels: tuple[str, ...], metric: str, pair: bool, description: str
) -> TaskInfo:
    kind: Kind = "classes" if labels else "score"
    return TaskInfo(name, kind, labels, pair, metric, None, description, folder)


TASKS = (
    _info("cola", "CoLA", ("unacceptable", "acceptable"), "matthews", False, "is it good English?"),
    _info("sst2", "SST-2", ("negative", "positive"), "accuracy", False, "mood of a film review"),
    _info(
        "mrpc", "MRPC", ("not_equivalent", "equivalent"), "f1", True, "do two news sentences agree?"
    ),
    _info("stsb", "STS-B", (), "pearson", True, "how alike are two sentences, 0 to 5"),
    _info("qqp", "QQP", _SAME, "f1", True, "are two questions the same?"),
    _info("mnli", "MNLI", _NLI, "accuracy", True, "inference; evaluated on matched genres"),
    _info(
        "mnli_mismatched", "MNLI", _NLI, "accuracy", True, "inference; evaluated on other genres"
    ),
    _info("qnli", "QNLI", _TWO, "accuracy", True, "does the sentence answer the question?"),
    _info("rte", "RTE", _TWO, "accuracy", True, "does one text follow from the other?"),
    _info("wnli", "WNLI", _TWO[::-1], "accuracy", True, "is the pronoun resolved rightly?"),
)

HUB = "nyu-mll/glue"  # name of the data on the hub
#: Column names on the hub that differ from sentence1 and sentence2.
_HUB_COLUMNS = {
    "QNLI": ("question", "sentence"),
    "MNLI": ("premise", "hypothesis"),
    "QQP": ("question1", "question2"),
}


def load(info: TaskInfo, section: TaskSection, seed: int, owner_column: str) -> Task:
    """Load a GLUE task from the folder ``section.path``, or from the hub if that is empty.

    Raises:
        UserError: a file is missing or invalid, or the hub is needed and cannot be reached.
    """
    train, dev = files(info, section)
    return Task(info, _read(train, info, owner_column), _read(dev, info, ""))


def files(info: TaskInfo, section: TaskSection) -> tuple[Path, Path]:
    """Return the files of the training and dev sets; download them if ``section.path`` is empty.

    Raises:
        UserError: a file is missing, or the hub is needed and cannot be reached.
    """
    suffix = {"mnli": "_matched", "mnli_mismatched": "_mismatched"}.get(info.name, "")
    if not section.path:
        return _hub_files(info, f"validation{suffix}")
    folder = Path(section.path)
    return _local_file(folder, info, "train"), _local_file(folder, info, f"dev{suffix}")


def text_columns(info: TaskInfo) -> list[tuple[str, str]]:
    """Return the possible names of the text columns, of the first and the second text or ""."""
    usual = ("sentence1", "sentence2")
    return [_HUB_COLUMNS.get(info.folder, usual), usual] if info.pair else [("sentence", "")]


def _local_file(path: Path, info: TaskInfo, stem: str) -> Path:
    folders = (path / info.folder, path)
    for folder in folders:
        if file := only_file(folder, stem):
            return file
    looked = " and ".join(f"{folder}/{stem}" for folder in folders)
    raise UserError(
        f"task.path = '{path}': no file for task '{info.name}'; looked for {looked} with "
        f"{', '.join(EXTENSIONS)}"
    )


def _hub_files(info: TaskInfo, dev_split: str) -> tuple[Path, Path]:
    """Return the Parquet files of two splits.

    Unlike datasets.load_dataset, this works offline from the cache and writes no second copy.
    """
    config = info.folder.replace("-", "").lower()
    # Test splits are not downloaded: their labels are all -1.
    patterns = [f"{config}/train-*.parquet", f"{config}/{dev_split}-*.parquet"]
    folder = hub_dataset(HUB, patterns)
    files = [] if folder is None else [sorted(folder.glob(pattern)) for pattern in patterns]
    if [len(shards) for shards in files] != [1, 1]:
        raise UserError(
            f"task '{info.name}' is not here and the hub cannot be reached: give a local folder "
            "with task.path=..., or use a synthetic/* task"
        )
    return files[0][0], files[1][0]


def _read(path: Path, info: TaskInfo, owner_column: str) -> Examples:
    candidates = text_columns(info)
    table = read_table(path, {"label", owner_column}.union(*candidates))
    text, pair = first_present(table, candidates) or candidates[-1]
    columns = Columns(text, "label", pair, owner_column)
    check_columns(table, path, columns)
    # the hub marks a row without a label by -1
    labels = enumerate(label_texts(table, path, "label"))
    table = table.select([row for row, label in labels if label != "-1"])
    if not len(table):
        raise UserError(f"{path}: no row has a label, all are -1; is it a test set?")
    if info.kind == "score":
        return to_examples(table, path, columns, None)
    codes = {label: index for index, label in enumerate(info.labels)}
    codes |= {str(index): index for index in codes.values()}
    return to_examples(table, path, columns, codes)
