"""The command line: one file per command group; heavy imports only inside commands."""

from __future__ import annotations

import os
import sys
from typing import Annotated, NoReturn

import click
import typer

from fedpeft.cli import (
    config,
    export,
    keys,
    methods,
    node,
    predict,
    privacy,
    report,
    run,
    serve,
    server,
    simulate,
    study,
    tasks,
    trial,
    watch,
)
from fedpeft.errors import Interrupted, RunFailed, UserError
from fedpeft.version import __version__

_HINT = " Did you mean"
_INTERRUPTED = 130  # the shell's code for Ctrl-C
app = typer.Typer(
    name="fedpeft",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
)


def _print_version(requested: bool) -> None:
    if requested:
        print(f"fedpeft {__version__}")
        raise typer.Exit


@app.callback()
def fedpeft(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
) -> None:
    """Federated, parameter-efficient fine-tuning of frozen transformers."""


app.command()(simulate.simulate)
app.command()(predict.predict)
app.command()(export.export)
app.command()(serve.serve)
app.command()(methods.methods)
app.command()(tasks.tasks)
app.command()(config.config)
app.add_typer(study.app, name="study")
app.command()(report.report)
app.command()(watch.watch)
app.add_typer(privacy.app, name="privacy")
app.add_typer(keys.app, name="keys")
app.add_typer(server.app, name="server")
app.add_typer(node.app, name="node")
app.command()(run.run)
app.command()(trial.trial)


def main(arguments: list[str] | None = None) -> None:
    """Run the command line; the exit code is 2 for a user error and 1 for a failed run."""
    # Threads that spin while waiting made small steps 100 times slower on a busy machine.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    os.environ.setdefault("KINETO_LOG_LEVEL", "5")  # PyTorch's profiler would print its start
    code = 0
    try:
        code = app(args=arguments, standalone_mode=False)
    except UserError as error:
        _end(f"error: {error}", 2)
    except click.UsageError as error:
        reason = " ".join(error.format_message().split())  # choices are on separate lines
        reason = _HINT.join(reason.split(_HINT)[:2])  # typer and click append one each
        if not reason:  # no arguments: the help was printed
            sys.exit(2)
        where = f"; see {error.ctx.command_path} --help" if error.ctx else ""
        _end(f"error: {reason.rstrip('.')}{where}", 2)
    except RunFailed as error:
        _end(f"stopped: {error}", 1)
    except Interrupted as error:
        _end(f"interrupted; {error}", _INTERRUPTED)
    except (KeyboardInterrupt, click.Abort):
        code = _INTERRUPTED
    if code == _INTERRUPTED:  # raised above, or returned by typer
        _end("interrupted", code)
    if code:  # returned by typer for typer.Exit
        sys.exit(code)


def _end(line: str, code: int) -> NoReturn:
    print(line, file=sys.stderr)
    sys.exit(code)
