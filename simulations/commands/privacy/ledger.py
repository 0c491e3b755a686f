"""``fedpeft privacy ledger``: show the privacy that clients have spent."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedpeft.cli.options import AsJson
from fedpeft.cli.printing import plain_console, plain_table, print_json
from fedpeft.errors import UserError

if TYPE_CHECKING:
    from fedpeft.privacy.ledger_store import Contents

_WIDE = 250  # columns of the table without a terminal
_COLUMNS = ("#", "time", "unit", "noise", "q", "steps", "delta", "run", "round", "note")
_LONGEST = 24  # characters of a value in a note
_NUMBERS = ("#", "noise", "q", "steps", "delta", "round")


def ledger(
    file: Annotated[
        Path,
        typer.Argument(
            help="A ledger file, or for an overview a folder of ledgers or a run's folder."
        ),
    ],
    delta: Annotated[
        float | None,
        typer.Option(help="Delta of the epsilon; default: each unit's smallest in the ledger."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show the privacy that a client has spent: each charge, and the epsilon of all of them.

    Prints a table of charges and one line per unit; for a folder, one line per ledger. A mechanism
    is charged before it runs, so a crash can leave one charge too many, never one too few. In
    JSON, an epsilon of null means no bound (training without noise).

    Example: fedpeft privacy ledger runs/first/privacy/client-00003.sqlite
    """
    from fedpeft.privacy.ledger_store import read_ledger

    if file.is_dir():
        files = sorted(file.glob("*.sqlite")) or sorted(file.glob("privacy/*.sqlite"))
        if not files:
            raise UserError(
                f"no privacy ledger (*.sqlite) in the folder '{file}' or in its folder 'privacy'"
            )
        ledgers = {path.name: _describe(path, read_ledger(path), delta) for path in files}
        if as_json:
            print_json(ledgers)
        else:
            _print_overview(ledgers)
        return
    described = _describe(file, read_ledger(file), delta)
    if as_json:
        print_json(described)
    else:
        _print_table(described)


def ledger_totals(contents: Contents, delta: float | None) -> dict[str, dict[str, Any]]:
    """Return the privacy loss of each unit in a ledger; an epsilon of None means no bound.

    Args:
        contents: the ledger.
        delta: in (0, 1); None = the unit's smallest in the ledger.

    Raises:
        UserError: ``delta`` is not in (0, 1).
    """
    from fedpeft.privacy.accounting import spent

    totals: dict[str, dict[str, Any]] = {}
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
    return totals


def _epsilon_line(total: dict[str, Any]) -> str:
    """Return the privacy loss of one unit, from ``ledger_totals``, for people."""
    if total["epsilon"] is None:
        return "no bound: some training had no noise"
    error = f" (at most {total['epsilon_error']:.2g} of it is numerical error)"
    return (
        f"epsilon <= {total['epsilon']:.4g}{error if total['epsilon_error'] else ''} at delta "
        f"{total['delta']:.3g}, {total['accountant'].upper()} accountant"
    )


def _describe(file: Path, contents: Contents, delta: float | None) -> dict[str, Any]:
    """Return the charges and privacy loss of a ledger, for JSON."""
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
    return {
        "file": str(file),
        "owner": contents.owner,
        "data": contents.data,
        "charges": charges,
        "spent": ledger_totals(contents, delta),
    }


def _print_table(described: dict[str, Any]) -> None:
    title = f"{described['file']}: {described['owner']}, data {described['data'][:12]}"
    table = plain_table(_COLUMNS, right=_NUMBERS, title=title)
    for charge in described["charges"]:
        table.add_row(
            str(charge["id"]),
            charge["time"],
            charge["unit"],
            f"{charge['noise_multiplier']:.4g}",
            f"{charge['sampling_rate']:.4g}",
            f"{charge['steps']:,}",
            f"{charge['delta']:.3g}",
            charge["run"][:12],  # a digest; --json prints all of it
            str(charge["round"]),
            ", ".join(
                f"{key} {_short(value)}"
                for key, value in charge["note"].items()
                if key != "attempt"
            ),
        )
    console = plain_console(_WIDE)
    console.print(table)
    for line in _spent_lines(described):
        console.print(line, soft_wrap=True)


def _short(value: str | float) -> str:
    """Return a value for the table, which is for people; --json prints all of it."""
    text = str(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


def _print_overview(ledgers: dict[str, dict[str, Any]]) -> None:
    for name, described in ledgers.items():
        print(f"{name}: {described['owner']}, {'; '.join(_spent_lines(described))}")


def _spent_lines(described: dict[str, Any]) -> list[str]:
    lines = [f"per {unit}: {_epsilon_line(total)}" for unit, total in described["spent"].items()]
    return lines or ["nothing was spent"]
