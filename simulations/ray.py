"""The Ray engine: Flower's own simulation, many processes (extra ``ray``)."""

from __future__ import annotations

import logging
from importlib.util import find_spec

from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from fedpeft.errors import UserError
from simulations.local import NodeConfig


class _AtNode(ClientApp):
    """A client app whose node config has more than the partition id that Flower puts there."""

    def __init__(self, app: ClientApp, extra: NodeConfig):
        super().__init__()
        self._app, self._extra = app, extra

    def __call__(self, message: Message, context: Context) -> Message:
        context.node_config.update(self._extra)
        return self._app(message, context)


def require_ray(what: str) -> None:
    """Raise UserError unless the extra ``ray`` is installed, which ``what`` needs."""
    if find_spec("ray") is None:
        raise UserError(f"{what} needs Ray: pip install -e '.[ray]' in the checkout")


def run_ray(
    server_app: ServerApp,
    client_app: ClientApp,
    clients: int,
    workers: int,
    node_config: NodeConfig,
    run_config: NodeConfig,
) -> None:
    """Run the apps in Flower's simulation with ``workers`` processes for the clients."""
    from flwr.simulation import run_simulation

    # run_simulation has no run config, so the server app gets it from a wrapper.
    configured = ServerApp()

    @configured.main()
    def main(grid: Grid, context: Context) -> None:
        context.run_config.update(run_config)
        server_app(grid, context)

    logging.getLogger("flwr").setLevel(logging.CRITICAL)  # errors reach us as exceptions
    run_simulation(
        configured,
        _AtNode(client_app, node_config),
        clients,
        backend_config={
            "init_args": {"num_cpus": workers, "include_dashboard": False},
            "client_resources": {"num_cpus": 1, "num_gpus": _gpu_share(workers)},
        },
    )


def _gpu_share(workers: int) -> float:
    """Return the share of the GPUs each worker gets, 0 on a machine without."""
    import torch

    return torch.cuda.device_count() / workers
