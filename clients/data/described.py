"""The options of ``fedpeft node up`` that fix how a node's data are read.

The operator fixes task, columns, kind and names of labels. If the server chose them, whether the
data can be read would answer questions about them, such as whether a value occurs in a column.
"""

from __future__ import annotations

from clients.errors import Refusal
from clients.folder import NodeSettings
from fedpeft.errors import UserError, nearest
from fedpeft.experiment.settings import TaskSection
from fedpeft.tasks import available_tasks

#: Keys of [task] that describe the files of task "custom"; the options have the same names.
_COLUMNS = ("text", "text_pair", "label", "source", "target", "kind", "labels")
_KINDS = ("classes", "score", "tags", "text")


def described(settings: NodeSettings) -> TaskSection:
    """Return the [task] section that describes the node's data; it names no files."""
    custom = {key: getattr(settings, key) for key in _COLUMNS if settings.task == "custom"}
    return TaskSection.model_validate({"name": settings.task, **custom})


def require_described(settings: NodeSettings, section: TaskSection) -> None:
    """Refuse an experiment whose task section reads the node's data in another way.

    The text is the same for all values of the experiment, and does not depend on the data.

    Raises:
        Refusal: a setting differs; the text names the operator's value.
    """
    expected = described(settings)
    for key in ("name", *(_COLUMNS if expected.name == "custom" else ())):
        value = getattr(expected, key)
        if getattr(section, key) != value:
            shown = ",".join(value) if isinstance(value, tuple) else value
            raise Refusal(f"task.{key} differs from this node's data; expected '{shown}'")


def check_described(settings: NodeSettings) -> None:
    """Check the options that describe the data, without reading them.

    Raises:
        UserError: an option is wrong or missing.
    """
    changed = [key for key in _COLUMNS if getattr(settings, key) != getattr(NodeSettings(""), key)]
    given = f"--{changed[0].replace('_', '-')}" if changed else ""
    if not settings.data:
        if settings.partition is None:
            raise UserError("--data is missing: the file or folder with this node's examples")
        if changed or settings.task != "custom":
            raise UserError(f"{given or '--task'}: describes the files of --data, which is missing")
        return
    if settings.partition is not None and settings.max_epsilon is not None:
        raise UserError(
            f"--partition {settings.partition}: the server chooses how data are divided; with "
            f"--max-epsilon leave it out"
        )
    if settings.task == "custom":
        _check_custom(settings)
        return
    names = [info.name for info in available_tasks() if not info.name.startswith("synthetic/")]
    if settings.task not in names:
        hint = nearest(settings.task, names)
        raise UserError(f"--task {settings.task}: unknown task, or one that has no files{hint}")
    if changed:
        raise UserError(f"{given}: is for --task custom, not {settings.task}; leave it out")


def _check_written(settings: NodeSettings) -> None:
    """Check the columns of texts and of the texts to write for them."""
    if not (settings.source and settings.target):
        empty = "target" if settings.source else "source"
        raise UserError(f"--{empty} is empty: expected a column")
    for key in ("text_pair", "labels"):
        if value := getattr(settings, key):
            shown = value if isinstance(value, str) else ",".join(value)
            raise UserError(
                f"--{key.replace('_', '-')} {shown}: --kind text has none; leave it out"
            )


def _check_custom(settings: NodeSettings) -> None:
    kind, labels = settings.kind, settings.labels
    if kind not in _KINDS:
        raise UserError(f"--kind {kind}: expected one of {', '.join(_KINDS)}")
    if kind == "text":
        _check_written(settings)
        return
    if not (settings.text and settings.label):
        raise UserError(f"--{'label' if settings.text else 'text'} is empty: expected a column")
    if kind == "tags" and settings.text_pair:
        raise UserError(f"--text-pair {settings.text_pair}: tags have one text; leave it out")
    if kind == "score" and labels:
        raise UserError(f"--labels {','.join(labels)}: a score has no classes; leave it out")
    if kind != "score" and not labels:
        raise UserError(
            f"--labels is missing: the names of the classes in column '{settings.label}', in "
            f"order, such as --labels negative,positive; for files of a known task: --task NAME"
        )
    if labels and (len(labels) < 2 or len({*labels}) < len(labels) or "" in labels):
        raise UserError(f"--labels {','.join(labels)}: expected two or more different names")
