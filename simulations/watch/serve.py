"""Serve the page of some folders until the process is interrupted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from fedpeft.page.serve import LOOPBACK, serve_pages
from simulations.watch.source import Folders

PORT = 8321


def serve(
    paths: Sequence[Path],
    host: str = LOOPBACK,
    port: int = PORT,
    token: bool = False,
    ready: Callable[[str, Folders], object] = lambda address, source: None,
) -> None:
    """Serve the page of runs and studies below some folders; nothing is written there.

    Args:
        paths: folders of runs and studies, or folders above them.
        host: address to listen at; any but loopback needs a token.
        port: 0 = any free one.
        token: whether a token is needed at loopback, too.
        ready: receives the page's address, with the token, and its source.

    Raises:
        UserError: a folder holds nothing to show, or the address is not available.
    """
    source = Folders(paths)
    serve_pages(source, host, port, token, "fedpeft watch", lambda address: ready(address, source))
