"""Private parts of Flower that a deployment uses; a contract test checks their behavior.

Written against flwr 1.41 and 1.42.
"""

from __future__ import annotations

import argparse
import importlib
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

from deployment.hosting.bundle import checked_install


def run_client_task(on_start: Callable[[str], object]) -> None:
    """Answer one message like Flower's ``flwr-clientapp`` with the arguments in ``sys.argv``.

    Unlike Flower's program, refuse a bundle with code
    (:func:`deployment.hosting.bundle.check_bundle`) by an error reply with the reason, and never
    install dependencies. Flower's warnings go only to the root logger, because the node's log also
    receives the standard error.

    Args:
        on_start: called with the run's id before the bundle is read.

    Raises:
        SystemExit: always, with Flower's exit code.
    """
    from flwr.supercore.logger import FLOWER_LOGGER, console_handler
    from flwr.supercore.task_identity import TaskIdentity
    from flwr.supernode.runtime import run_clientapp

    FLOWER_LOGGER.removeHandler(console_handler)
    FLOWER_LOGGER.setLevel(logging.WARNING)  # its information repeats with every message
    run_clientapp.install_from_fab = checked_install(
        run_clientapp.install_from_fab, lambda: on_start(str(TaskIdentity.run_id))
    )
    run_clientapp.run_clientapp(**_client_arguments(), runtime_dependency_install=False)


def _client_arguments() -> dict[str, Any]:
    """Return the arguments of ``flwr-clientapp``, parsed as Flower does.

    Importing Flower's module would import the whole SuperNode and double the start-up time.
    """
    from flwr.common.args import add_args_flwr_app_common, try_obtain_flwr_app_token
    from flwr.supercore.tls import validate_and_resolve_root_certificates

    parser = argparse.ArgumentParser("flwr-clientapp")
    parser.add_argument("--runtime-api-address", required=True)
    add_args_flwr_app_common(parser)
    arguments = parser.parse_args()
    return {
        "runtime_api_address": arguments.runtime_api_address,
        "token": try_obtain_flwr_app_token(arguments),
        "insecure": arguments.insecure,
        "certificates": validate_and_resolve_root_certificates(
            arguments.root_certificates, arguments.insecure
        ),
        "parent_pid": arguments.parent_pid,
    }


def run_server_task(
    on_start: Callable[[str], object], on_settings: Callable[[str, dict[str, Any]], object]
) -> None:
    """Run one ServerApp, like Flower's ``flwr-serverapp`` with the arguments in ``sys.argv``.

    Unlike Flower's program, fail the run if its bundle has code, see
    :func:`deployment.hosting.bundle.check_bundle`, and pull replies by
    :class:`server.flower.Pulling`.

    Args:
        on_start: called with the run's id before the bundle is read.
        on_settings: called with the run's id and its settings, long before its app is loaded.

    Raises:
        SystemExit: always, with Flower's exit code.
    """
    from flwr.supercore.logger import FLOWER_LOGGER
    from flwr.supercore.task_identity import TaskIdentity
    from flwr.superlink.cli import flwr_serverapp
    from flwr.superlink.grid.http_grid import HttpGrid

    from server.flower import Pulling

    # The package has a function of the same name, which hides the module from `from ... import`.
    task = importlib.import_module("flwr.superlink.runtime.run_serverapp")
    FLOWER_LOGGER.setLevel(logging.INFO)  # importing it sets the level to DEBUG
    vars(task)["install_from_fab"] = checked_install(
        task.install_from_fab,
        lambda: on_start(str(TaskIdentity.run_id)),
        lambda settings: on_settings(str(TaskIdentity.run_id), settings),
    )
    pulling = Pulling()
    HttpGrid.pull_messages = lambda grid, message_ids: pulling.pull(grid, [*message_ids])
    flwr_serverapp()


def migrations() -> Path:
    """Return Flower's folder of the migrations of a SuperLink's database."""
    from flwr.supercore.state.alembic.utils import ALEMBIC_DIR

    return ALEMBIC_DIR
