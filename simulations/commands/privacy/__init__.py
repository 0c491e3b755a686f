"""``fedpeft privacy``: plan, look up and audit differential privacy."""

from __future__ import annotations

import typer

from simulations.commands.privacy import audit, calibrate, ledger

app = typer.Typer(no_args_is_help=True, help="Plan, look up and audit differential privacy.")
app.command()(calibrate.calibrate)
app.command()(calibrate.epsilon)
app.command()(ledger.ledger)
app.command()(audit.audit)
