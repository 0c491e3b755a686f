"""``fedpeft privacy ledger``: what a client has spent."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedpeft.cli.options import AsJson
from fedpeft.errors import UserError

if TYPE_CHECKING:
    from fedpeft.privacy.ledgerfile import Contents

_WIDE = 250  # columns of the table where there is no terminal to fit
_NUMBERS = ("#", "noise", "q", "steps", "delta", "round")


def ledger(
    file: Annotated[
        Path, typer.Argument(help="A ledger, or a folder of them for an overview; only read.")
    ],
    delta: Annotated[
        float | None,
        typer.Option(help="Compose at this delta; default: each unit's smallest in the ledger."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show what was spent of a client's privacy: by whom, when, and with which mechanism.

    Each line is charged before its training, so a crash leaves a line too many, never one too
    few. In JSON, an epsilon of null means no bound (training without noise).

    Example: fedpeft privacy ledger runs/first/privacy/client-00003.sqlite
    """
    from fedpeft.privacy.ledgerfile import read_ledger

    if file.is_dir():
        files = sorted(file.glob("*.sqlite"))
        if not files:
            raise UserError(f"no privacy ledger (*.sqlite) in the folder '{file}'")
        found = {each.name: describe_ledger(each, read_ledger(each), delta) for each in files}
    else:
        found = describe_ledger(file, read_ledger(file), delta)
    if as_json:
        print(json.dumps(found, indent=2, allow_nan=False))
    elif file.is_dir():
        _print_overview(found)
    else:
        _print_table(found)


def describe_ledger(file: Path, contents: Contents, delta: float | None) -> dict[str, Any]:
    """Return a ledger for people and programs: its charges, and what each unit composes to.

    Raises:
        UserError: ``delta`` is not in (0, 1).
    """
    from fedpeft.privacy.accounting import spent

    totals = {}
    for unit in sorted({charge.unit for charge in contents.charges}):
        smallest = min(charge.delta for charge in contents.charges if charge.unit == unit)
        total = spent(contents.mechanisms(unit), smallest if delta is None else delta)
        bounded = math.isfinite(total.epsilon)
        totals[unit] = {
            "epsilon": total.epsilon if bounded else None,
            "epsilon_error": total.epsilon_error if bounded else None,
            "delta": total.delta,
            "accountant": total.accountant,
        }
    charges = [
        {
            "id": charge.id,
            "time": charge.time,
            "unit": charge.unit,
            "noise_multiplier": charge.mechanism.noise_multiplier,
            "sampling_rate": charge.mechanism.sampling_rate,
            "steps": charge.mechanism.steps,
            "delta": charge.delta,
            "run": charge.run,
            "round": charge.round,
            "note": charge.note,
            "draw": charge.draw,
        }
        for charge in contents.charges
    ]
    owner, data = contents.owner, contents.data
    return {"file": str(file), "owner": owner, "data": data, "charges": charges, "spent": totals}


def _print_table(described: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    title = f"{described['file']}: {described['owner']}, data {described['data'][:12]}"
    table = Table(box=None, padding=(0, 2, 0, 0), title=title, title_justify="left")
    for column in ("#", "time", "unit", "noise", "q", "steps", "delta", "run", "round", "note"):
        table.add_column(column, justify="right" if column in _NUMBERS else "left")
    for charge in described["charges"]:
        table.add_row(
            str(charge["id"]),
            charge["time"],
            charge["unit"],
            f"{charge['noise_multiplier']:.4g}",
            f"{charge['sampling_rate']:.4g}",
            f"{charge['steps']:,}",
            f"{charge['delta']:.3g}",
            charge["run"][:12],  # a digest; --json has all of it
            str(charge["round"]),
            ", ".join(f"{key} {value}" for key, value in charge["note"].items()),
        )
    console = Console(markup=False, highlight=False)
    if not console.is_terminal:
        console = Console(markup=False, highlight=False, width=_WIDE)
    console.print(table)
    for unit, total in described["spent"].items():
        console.print(f"per {unit}: {_sum(total)}", soft_wrap=True)
    if not described["charges"]:
        console.print("nothing was spent")


def _print_overview(found: dict[str, dict[str, Any]]) -> None:
    from rich.console import Console

    console = Console(markup=False, highlight=False)
    for name, described in found.items():
        spent = [f"per {unit}: {_sum(total)}" for unit, total in described["spent"].items()]
        said = "; ".join(spent) or "nothing was spent"
        console.print(f"{name}: {described['owner']}, {said}", soft_wrap=True)


def _sum(total: dict[str, Any]) -> str:
    """Return one unit's total in words."""
    if total["epsilon"] is None:
        return "no bound: something ran without noise"
    error = f" (of it at most {total['epsilon_error']:.2g} is numerical error)"
    return (
        f"epsilon <= {total['epsilon']:.4g}{error if total['epsilon_error'] else ''} at delta "
        f"{total['delta']:.3g}, {total['accountant'].upper()} accountant"
    )
