"""``fedpeft methods``: list the methods with their sizes on a backbone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedpeft.cli.options import AsJson, Overrides
from fedpeft.cli.printing import plain_console, plain_table, print_json
from fedpeft.errors import UserError, nearest
from fedpeft.experiment.config import Experiment

if TYPE_CHECKING:
    from fedpeft.backbones.shapes import BackboneShape

_WIDE, _BYTES_WIDE = 250, 120  # columns of the tables without a terminal
_ALL, _UNCUT = 150, 80  # columns for everything, and for numbers in one line each
#: Codecs in the table of bytes, with their titles.
_CODECS = {
    "float32": "float32",
    "eden4": "4 bits",
    "eden2": "2 bits",
    "eden1": "1 bit",
    "eden0.2": "0.2 bits",
}
_NUMBERS = ("numbers", "+ head", "bytes", "share")


def methods(
    backbone: Annotated[str, typer.Option(help="Name or folder of the backbone.")] = "minilm",
    classes: Annotated[int, typer.Option(min=1, help="Number of outputs of the head.")] = 2,
    overrides: Overrides = None,
    as_json: AsJson = False,
    as_bytes: Annotated[
        bool, typer.Option("--bytes", help="Print the bytes of a message for each codec.")
    ] = False,
) -> None:
    """List the methods with their numbers of parameters and bytes on a backbone.

    Prints a table with one row per method. With --bytes, its columns are the most bytes that a
    client sends in a round, Flower's framing included, at 32 to 0.2 bits per number (wire.up).
    From 100 classes on, the head's numbers travel in fewer bits in the first three (wire.head). A
    setting (-s method.KEY=VALUE, -s head.KEY=VALUE) applies to the methods that have it;
    -s method.name=NAME lists only this method.

    Example: fedpeft methods --backbone roberta-large --classes 3 -s method.d=2048
    """
    rows = describe_methods(backbone, classes, overrides or ())
    if as_json:
        print_json(rows)
    elif as_bytes:
        _print_bytes(f"{backbone}, {classes} outputs: bytes up per client and round", rows)
    else:
        _print_table(f"{backbone}, {classes} outputs", rows)


def _print_table(title: str, rows: Sequence[dict[str, Any]]) -> None:
    from rich.text import Text

    console = plain_console(_WIDE)
    about = ("sites", "source") if console.width >= _ALL else ()
    columns, wrapped = ("method", *_NUMBERS, "fusable", *about), ("method", *about)
    table = plain_table(
        columns,
        right=_NUMBERS,
        wrapped=wrapped if console.width >= _UNCUT else None,  # a number is never cut
        title=title,
    )
    failed = []
    for row in rows:
        name = _sized(row)
        if "error" in row:
            failed.append(Text(f"{row['method']}: {row['error']}", style="dim"))
            continue
        cells = [
            name,
            f"{row['parameters']:,}",
            f"{row['head']:,}",
            f"{row['payload_bytes']:,}",
            f"{row['share']:.4%}",
            "yes" if row["fusable"] else "no",
            " ".join(row["sites"]) or "-",
            row["source"],
        ]
        table.add_row(*cells[: len(columns)])
    console.print(table, *failed, sep="\n")
    if not about:
        console.print(f"sites and sources: in {_ALL} columns or more, or with --json", style="dim")


def _print_bytes(title: str, rows: Sequence[dict[str, Any]]) -> None:
    """Print numbers and bytes of a message, in at most 120 columns."""
    from rich.text import Text

    numbers = ("numbers", "+ head", *_CODECS.values())
    table = plain_table(("method", *numbers), right=numbers, wrapped=("method",), title=title)
    failed = []
    for row in rows:
        if "error" in row:
            failed.append(Text(f"{row['method']}: {row['error']}", style="dim"))
            continue
        counts = [row["parameters"], row["head"], *row["message_bytes"].values()]
        table.add_row(_sized(row), *(f"{count:,}" for count in counts))
    plain_console(_BYTES_WIDE).print(table, *failed, sep="\n")


def _sized(row: dict[str, Any]) -> str:
    """Return a method with the settings that decide its size; --json has all settings."""
    sizes = [f"{key}={value}" for key, value in row["settings"].items() if type(value) is int]
    return " ".join([row["method"], *sizes])


def describe_methods(
    backbone: str, classes: int, overrides: Sequence[str] = ()
) -> list[dict[str, Any]]:
    """Return a row for each method; overrides apply to the methods that have the setting.

    A method that does not fit the backbone, or has a setting out of range, has an ``error``
    instead of numbers.

    Raises:
        UserError: the backbone is unknown, no method has an override's setting, or an override is
            invalid for all methods that have it.
    """
    from fedpeft.backbones.checkpoints import backbone_shape

    shape = backbone_shape(backbone)
    names, settings = _chosen(overrides)
    rows = {name: _describe(name, shape, classes, settings) for name in names}
    for setting in settings:
        affected = [name for name in names if _applies(setting, name)]
        if not affected:
            keys = {key for name in names for key in _keys(name)}
            hint = nearest(setting.partition("=")[0], keys)
            raise UserError(f"-s {setting}: no method has this setting{hint}")
        if all("error" in rows[name] for name in affected):
            raise UserError(rows[affected[0]]["error"])
    return list(rows.values())


def _chosen(overrides: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the methods to list, and the overrides besides ``method.name``."""
    from fedpeft.methods import REGISTRY, method_class

    names, others = list(REGISTRY), []
    for override in overrides:
        key, _, value = (part.strip() for part in override.partition("="))
        if key == "method.name":
            method_class(value)  # raises for an unknown method
            names = [value]
        else:
            others.append(override)
    return names, others


def _keys(name: str) -> set[str]:
    """Return the settings that affect a method's row."""
    from fedpeft.methods import method_class

    fields = method_class(name).Settings.model_fields
    return {
        "head.d",
        "head.rank",
        "head.labels",
        *(f"method.{key}" for key in fields if key != "name"),
    }


def _applies(override: str, name: str) -> bool:
    """Return whether an override is a setting of a method or of the head."""
    return override.partition("=")[0].strip() in _keys(name)


def _describe(
    name: str, shape: BackboneShape, classes: int, overrides: Sequence[str]
) -> dict[str, Any]:
    from fedpeft.heads import build_head
    from fedpeft.methods import build_method, method_class, settings_for
    from fedpeft.parameters import layout_of
    from fedpeft.tasks import TaskInfo
    from fedpeft.wire.codecs import head_codec, update_size
    from fedpeft.wire.framing import train_reply_bytes

    settings = settings_for({"name": name})
    try:
        fitting = [override for override in overrides if _applies(override, name)]
        experiment = Experiment.load("", [f"method.name={name}", *fitting])
        settings = experiment.method
        method = build_method(settings, shape, seed=0)
        info = TaskInfo("", "classes", ("name",) * classes, False, "", None, "")
        head = build_head(info, shape.width, experiment.head, 0, "mean")
        layout = layout_of(method, head)
        numbers = {
            "parameters": layout.size - layout.head_size,
            "head": layout.head_size,
            "payload_bytes": 4 * layout.size,
            "message_bytes": {
                codec: train_reply_bytes(
                    update_size(layout.size, layout.head_size, codec, head_codec(codec, classes))
                )
                for codec in _CODECS
            },
            "share": layout.size / (shape.parameters + layout.head_size),
            "sites": method.sites,
            "fusable": method.fusable,
        }
    except UserError as error:
        numbers = dict.fromkeys(("parameters", "head", "payload_bytes", "message_bytes", "share"))
        numbers |= {"sites": (), "fusable": False, "error": str(error)}
    about = method_class(name)
    return {
        "method": name,
        "settings": settings.model_dump(exclude={"name"}),
        **numbers,
        "grouped": about.grouped,
        "source": about.source,
    }
