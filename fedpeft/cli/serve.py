"""``fedpeft serve``: answer requests for predictions with many task vectors."""

from __future__ import annotations

import ipaddress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedpeft.cli.printing import plain_console
from fedpeft.errors import UserError

if TYPE_CHECKING:
    from fedpeft.serving.catalog import Catalog

_MEGABYTE = 1 << 20


def serve(
    runs: Annotated[
        list[str],
        typer.Argument(
            metavar="[NAME=]RUN...",
            help="Run folders, vector files, or folders of them, all of one backbone. NAME is the "
            "name in requests; default: the folder's or file's name.",
        ),
    ],
    host: Annotated[
        str, typer.Option(help="IP address to listen on; other than loopback: needs TLS and token.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port to listen on.")] = 8321,
    keys: Annotated[
        Path | None,
        typer.Option(help="Folder of ca.crt, server.crt and server.key (fedpeft keys): use TLS."),
    ] = None,
    token: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="File of the token for requests; made if missing."),
    ] = None,
    operator_token: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="File of the token that adds and removes vectors; made if missing.",
        ),
    ] = None,
    batch: Annotated[int, typer.Option(min=1, max=1024, help="Most texts in a batch.")] = 64,
    delay: Annotated[
        float,
        typer.Option(min=0, max=1000, metavar="MS", help="Wait of an idle server for more texts."),
    ] = 2.0,
    queue: Annotated[
        int, typer.Option(min=1, help="Most texts that wait; further requests get 503.")
    ] = 1024,
    rate: Annotated[
        float, typer.Option(min=0, help="Most texts per second of an address; 0 = no limit.")
    ] = 0.0,
    max_characters: Annotated[int, typer.Option(min=1, help="Most characters of a text.")] = 20_000,
    max_vectors: Annotated[int, typer.Option(min=1, help="Most vectors.")] = 100_000,
    cache_mb: Annotated[
        int, typer.Option(min=0, help="Memory for vectors in the form that a pass needs.")
    ] = 256,
    threads: Annotated[int, typer.Option(min=0, help="Torch threads; 0 = all cores.")] = 0,
) -> None:
    """Serve predictions of many runs from one backbone over HTTP.

    Requests for different runs are answered in one pass. Prints the address; /docs describes the
    requests. Ctrl-C and SIGTERM answer the accepted requests and end it with exit code 0.

    Example: fedpeft serve runs/sst2 news=runs/agnews-slash
    """
    loopback = _check_exposed(host, keys, token)
    from fedpeft.backbones.loading import set_threads
    from fedpeft.hosting.http import listener
    from fedpeft.serving.app import Serving, serving_app
    from fedpeft.serving.hosting import run, server_of, token_of
    from fedpeft.serving.limits import Limits

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
    logging.getLogger("fedpeft").setLevel(logging.INFO)


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
    from fedpeft.hosting.keys import SERVER_CERTIFICATE, SERVER_KEY
    from server.host.certificate import check_keys

    check_keys(keys)
    return keys / SERVER_CERTIFICATE, keys / SERVER_KEY


def _loaded(runs: list[str], most: int) -> Catalog:
    """Return the catalog with the vectors of the command line."""
    from fedpeft.serving.catalog import open_catalog, sources

    console = plain_console(stderr=True)
    paths = sources(runs)
    with console.status("loading the backbone") as status:
        catalog = open_catalog(next(iter(paths.values())), most)
        for number, (name, path) in enumerate(paths.items(), start=1):
            catalog.add(name, path)
            status.update(f"loading vectors: {number:,} of {len(paths):,}")
    return catalog
