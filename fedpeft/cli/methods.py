"""``fedpeft methods``: what each method costs on a backbone."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from fedpeft.cli.options import AsJson, Overrides
from fedpeft.config import Experiment
from fedpeft.errors import UserError


def methods(
    backbone: Annotated[str, typer.Option(help="Name or folder of a backbone.")] = "minilm",
    classes: Annotated[int, typer.Option(min=1, help="Outputs of the head.")] = 2,
    overrides: Overrides = None,
    as_json: AsJson = False,
) -> None:
    """List the methods with their parameters and bytes for a backbone.

    Example: fedpeft methods --backbone roberta-large --classes 3 -s method.d=2048
    """
    from rich.console import Console
    from rich.table import Table

    rows = describe_methods(backbone, classes, overrides or ())
    if as_json:
        print(json.dumps(rows, indent=2))
        return
    table = Table(box=None, padding=(0, 2, 0, 0), title=f"{backbone}, {classes} outputs")
    numbers = ("numbers", "+ head", "bytes", "share")
    for title in ("method", *numbers, "source"):
        justify: Any = "right" if title in numbers else "left"
        table.add_column(title, justify=justify, no_wrap=title != "source")
    for row in rows:
        share = row["share"]
        # Only what decides the size; --json has all settings.
        sizes = [f"{key}={value}" for key, value in row["settings"].items() if type(value) is int]
        table.add_row(
            " ".join([row["method"], *sizes]),
            f"{row['parameters']:,}",
            f"{row['head']:,}",
            f"{row['payload_bytes']:,}",
            f"{share:.4%}" if share else "-",
            row["source"],
        )
    Console().print(table)


def describe_methods(backbone: str, classes: int, overrides: Any) -> list[dict[str, Any]]:
    """Return a row for each method; overrides of ``method.*`` go to the methods that have them.

    Raises:
        UserError: unknown backbone, an override that no method has.
    """
    from fedpeft.backbones import backbone_shape
    from fedpeft.methods import REGISTRY, build_method, method_class
    from fedpeft.model import layout_of

    shape, rows, used = backbone_shape(backbone), [], set()
    for name in REGISTRY:
        fields = method_class(name).Settings.model_fields
        own = {f"method.{key}" for key in fields if key != "name"}
        fitting = [each for each in overrides if each.partition("=")[0] in own]
        used |= set(fitting)
        settings = Experiment.load("", [f"method.name={name}", *fitting]).method
        method = build_method(settings, shape, seed=0)
        layout = layout_of(method, classes)
        rows.append(
            {
                "method": name,
                "settings": settings.model_dump(exclude={"name"}),
                "parameters": layout.size - layout.head_size,
                "head": layout.head_size,
                "payload_bytes": 4 * layout.size,
                "share": layout.size / shape.parameters if shape.parameters else None,
                "sites": method.sites,
                "source": method.source,
            }
        )
    for override in overrides:
        if override not in used:
            raise UserError(f"-s {override}: no method has this setting; expected method.KEY=VALUE")
    return rows
