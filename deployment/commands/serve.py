"""``fedpeft serve``: answer requests for predictions with many task vectors."""

from __future__ import annotations

import ipaddress
from pathlib import Path
from typing import TYPE_CHECKING

from deployment.commands import serve_options as options
from fedpeft.cli.printing import plain_console
from fedpeft.errors import UserError

if TYPE_CHECKING:
    from deployment.serving.catalog import Catalog

_MEGABYTE = 1 << 20


def serve(
    runs: options.Runs,
    host: options.Host = "127.0.0.1",
    port: options.Port = 8320,
    keys: options.Keys = None,
    token: options.Token = None,
    operator_token: options.OperatorToken = None,
    batch: options.Batch = 64,
    delay: options.Delay = 2.0,
    queue: options.Queue = 1024,
    rate: options.Rate = 0.0,
    max_characters: options.MaxCharacters = 20_000,
    max_vectors: options.MaxVectors = 100_000,
    cache_mb: options.CacheMegabytes = 256,
    threads: options.Threads = 0,
) -> None:
    """Serve predictions of many runs from one backbone over HTTP.

    Requests for different runs are answered in one pass. Prints the address; /docs describes the
    requests. Ctrl-C and SIGTERM answer the accepted requests and end it with exit code 0.

    Example: fedpeft serve runs/sst2 news=runs/agnews-slash
    """
    loopback = _check_exposed(host, keys, token)
    from deployment.serving.app import Serving, serving_app
    from deployment.serving.hosting import run, server_of, token_of
    from deployment.serving.limits import Limits
    from fedpeft.backbones.hardware import set_threads
    from fedpeft.page.http import listener

    settings = Serving(
        token_of(token, "--token") if token else "",
        token_of(operator_token, "--operator-token") if operator_token else "",
        batch,
        delay / 1000,
        queue,
        cache_mb * _MEGABYTE,
        loopback,
        Limits(rate=rate, characters=max_characters),
    )
    certificate, key = _checked_keys(keys) if keys else (None, None)
    address = host.strip("[]")
    with listener(address, port) as sock:  # before the vectors are loaded, which takes longer
        set_threads(threads)
        catalog = _loaded(runs, max_vectors)
        server = server_of(serving_app(catalog, settings), certificate, key)
        scheme, shown = "https" if keys else "http", f"[{address}]" if ":" in address else address
        count = f"{len(catalog):,} vector{'' if len(catalog) == 1 else 's'}"
        print(
            f"serving {count} on {catalog.setups.backbone.name} at {scheme}://{shown}:{port}, "
            f"described at /docs",
            flush=True,
        )
        _start_log()
        run(server, sock)
    print("stopped")


def _start_log() -> None:
    """Print changes of vectors and refused tokens on stderr; of libraries, only warnings."""
    import logging

    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", level=logging.WARNING)
    logging.getLogger("deployment").setLevel(logging.INFO)


def _check_exposed(host: str, keys: Path | None, token: Path | None) -> bool:
    """Return whether the host is a loopback address; others need TLS and a token."""
    try:
        loopback = ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        raise UserError(
            f"--host '{host}': expected an IP address of this machine, 0.0.0.0 for all"
        ) from None
    if not loopback and not (keys and token):
        raise UserError(
            f"--host {host}: other machines can reach it; add --keys FOLDER (TLS) and --token FILE"
        )
    return loopback


def _checked_keys(keys: Path) -> tuple[Path, Path]:
    from deployment.hosting.keys import SERVER_CERTIFICATE, SERVER_KEY
    from deployment.server.certificate import check_keys

    check_keys(keys)
    return keys / SERVER_CERTIFICATE, keys / SERVER_KEY


def _loaded(runs: list[str], most: int) -> Catalog:
    """Return the catalog with the vectors of the command line."""
    from deployment.serving.catalog import open_catalog, sources

    console = plain_console(stderr=True)
    paths = sources(runs)
    with console.status("loading the backbone") as status:
        catalog = open_catalog(next(iter(paths.values())), most)
        for number, (name, path) in enumerate(paths.items(), start=1):
            catalog.add(name, path)
            status.update(f"loading vectors: {number:,} of {len(paths):,}")
    return catalog
