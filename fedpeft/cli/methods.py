"""``fedpeft methods``: what each method costs on a backbone."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedpeft.cli.options import AsJson, Overrides
from fedpeft.config import Experiment
from fedpeft.errors import UserError, nearest

if TYPE_CHECKING:
    from fedpeft.sites import BackboneShape

_WIDE = 250  # columns of the table where there is no terminal to fit
_NUMBERS = ("numbers", "+ head", "bytes", "share")


def methods(
    backbone: Annotated[str, typer.Option(help="Name or folder of a backbone.")] = "minilm",
    classes: Annotated[int, typer.Option(min=1, help="Outputs of the head.")] = 2,
    overrides: Overrides = None,
    as_json: AsJson = False,
) -> None:
    """List the methods with their parameters and bytes for a backbone.

    A setting (-s method.KEY=VALUE, -s head.d=VALUE) goes to the methods that have it;
    -s method.name=NAME lists that one only.

    Example: fedpeft methods --backbone roberta-large --classes 3 -s method.d=2048
    """
    rows = describe_methods(backbone, classes, overrides or ())
    if as_json:
        print(json.dumps(rows, indent=2))
    else:
        _print_table(f"{backbone}, {classes} outputs", rows)


def _print_table(title: str, rows: Sequence[dict[str, Any]]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, padding=(0, 2, 0, 0), title=title, title_justify="left")
    for column in ("method", *_NUMBERS, "fusable", "sites", "source"):
        justify: Any = "right" if column in _NUMBERS else "left"
        table.add_column(column, justify=justify, no_wrap=column not in ("sites", "source"))
    for row in rows:
        # Only what decides the size; --json has all settings.
        sizes = [f"{key}={value}" for key, value in row["settings"].items() if type(value) is int]
        name = " ".join([row["method"], *sizes])
        if "error" in row:
            table.add_row(name, *["-"] * len(_NUMBERS), "", "", f"[dim]{row['error']}")
            continue
        table.add_row(
            name,
            f"{row['parameters']:,}",
            f"{row['head']:,}",
            f"{row['payload_bytes']:,}",
            f"{row['share']:.4%}",
            "yes" if row["fusable"] else "no",
            " ".join(row["sites"]) or "-",
            row["source"],
        )
    console = Console()
    if not console.is_terminal:
        console = Console(width=_WIDE)
    console.print(table)


def describe_methods(
    backbone: str, classes: int, overrides: Sequence[str] = ()
) -> list[dict[str, Any]]:
    """Return a row for each method; overrides go to the methods that have the setting.

    A method that does not fit the backbone, or whose setting is out of its range, has an
    ``error`` in place of its numbers.

    Raises:
        UserError: unknown backbone, an override that no method has, or that fits none.
    """
    from fedpeft.backbones import backbone_shape

    shape = backbone_shape(backbone)
    names, settings = _chosen(overrides)
    found = {name: _describe(name, shape, classes, settings) for name in names}
    for setting in settings:
        having = [name for name in names if setting in _fitting(name, settings)]
        if not having:
            keys = {key for name in names for key in _keys(name)}
            hint = nearest(setting.partition("=")[0], keys)
            raise UserError(f"-s {setting}: no method has this setting{hint}")
        if all("error" in found[name] for name in having):
            raise UserError(found[having[0]]["error"])
    return list(found.values())


def _chosen(overrides: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the methods to list, and the overrides besides ``method.name``."""
    from fedpeft.methods import REGISTRY, method_class

    names, others = list(REGISTRY), []
    for override in overrides:
        key, _, value = (part.strip() for part in override.partition("="))
        if key == "method.name":
            method_class(value)  # refuses what is none
            names = [value]
        else:
            others.append(override)
    return names, others


def _keys(name: str) -> set[str]:
    """Return the settings that decide about a method's row."""
    from fedpeft.methods import method_class

    fields = method_class(name).Settings.model_fields
    return {"head.d", *(f"method.{key}" for key in fields if key != "name")}


def _fitting(name: str, overrides: Sequence[str]) -> list[str]:
    """Return the overrides that are settings of a method, or of the head."""
    return [each for each in overrides if each.partition("=")[0].strip() in _keys(name)]


def _describe(
    name: str, shape: BackboneShape, classes: int, overrides: Sequence[str]
) -> dict[str, Any]:
    from fedpeft.heads import Head
    from fedpeft.methods import build_method, method_class, settings_for
    from fedpeft.trainable import layout_of

    settings = settings_for({"name": name})
    try:
        fitting = _fitting(name, overrides)
        experiment = Experiment.load("", [f"method.name={name}", *fitting])
        settings = experiment.method
        method = build_method(settings, shape, seed=0)
        layout = layout_of(method, Head("classes", classes, shape.width, experiment.head.d))
        numbers = {
            "parameters": layout.size - layout.head_size,
            "head": layout.head_size,
            "payload_bytes": 4 * layout.size,
            "share": layout.size / (shape.parameters + layout.head_size),
            "sites": method.sites,
        }
    except UserError as error:
        numbers = {"parameters": None, "head": None, "payload_bytes": None, "share": None}
        numbers |= {"sites": (), "error": str(error)}
    about = method_class(name)
    return {
        "method": name,
        "settings": settings.model_dump(exclude={"name"}),
        **numbers,
        "fusable": about.fusable,
        "grouped": about.grouped,
        "source": about.source,
    }
