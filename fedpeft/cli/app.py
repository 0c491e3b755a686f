"""The program `fedpeft`: finds its commands and ends with their exit codes."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from importlib.metadata import distribution
from typing import Annotated, Any, NoReturn

import click
import typer

from fedpeft.cli import config, export, methods, predict, tasks
from fedpeft.errors import Interrupted, RunFailed, UserError
from fedpeft.version import __version__

#: Group of entry points, each a command.
GROUP = "fedpeft.commands"
_ORDER = (
    *("simulate", "predict", "export", "serve", "methods", "tasks", "config", "study", "report"),
    *("watch", "privacy", "keys", "server", "node", "run", "trial"),
)
_HINT = " Did you mean"
_INTERRUPTED = 130  # the shell's code for Ctrl-C


def _print_version(requested: bool) -> None:
    if requested:
        print(f"fedpeft {__version__}")
        raise typer.Exit


def _fedpeft(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
) -> None:
    """Federated, parameter-efficient fine-tuning of frozen transformers."""


def command_line(arguments: Sequence[str] = ()) -> typer.Typer:
    """Return the program with its commands, in the order of ``--help``.

    If the first argument names a command, the program has this command alone: `fedpeft simulate`
    needs nothing of a deployment. Commands that need simulations or a deployment are entry points
    of these.
    """
    found: dict[str, Callable[[], Any]] = {
        "predict": lambda: predict.predict,
        "export": lambda: export.export,
        "methods": lambda: methods.methods,
        "tasks": lambda: tasks.tasks,
        "config": lambda: config.config,
    }
    for point in distribution("fedpeft").entry_points.select(group=GROUP):
        found[point.name] = point.load
    wanted = set(arguments[:1]) & set(found) or set(found)
    app = typer.Typer(
        name="fedpeft",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode="markdown",
    )
    app.callback()(_fedpeft)
    for name in sorted(
        wanted, key=lambda name: (_ORDER.index(name) if name in _ORDER else 99, name)
    ):
        command = found[name]()
        if isinstance(command, typer.Typer):
            app.add_typer(command, name=name)
        else:
            app.command()(command)
    return app


def main(arguments: list[str] | None = None) -> None:
    """Run the command line; the exit code is 2 for a user error and 1 for a failed run."""
    # Threads that spin while waiting made small steps 100 times slower on a busy machine.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    os.environ.setdefault("KINETO_LOG_LEVEL", "5")  # PyTorch's profiler would print its start
    arguments = sys.argv[1:] if arguments is None else arguments
    code = 0
    try:
        code = command_line(arguments)(args=arguments, standalone_mode=False)
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
