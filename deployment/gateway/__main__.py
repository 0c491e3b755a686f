"""``python -m deployment.gateway STATE``: run the gateway of a server; started by the server."""

from __future__ import annotations

import argparse
import asyncio
import os
import resource
import signal
import ssl
import sys
from contextlib import suppress
from pathlib import Path

from deployment.gateway.admission import Admission
from deployment.gateway.connected import Connected
from deployment.gateway.connection import Connection
from deployment.gateway.counts import Counts
from deployment.gateway.door import Door
from deployment.gateway.fleet import Fleet
from deployment.gateway.limits import Limits
from deployment.gateway.mailbox import Mailbox
from deployment.gateway.upstream import Upstream
from deployment.hosting.tls import offer_quick_groups
from deployment.server.folder import ServerFolder
from fedpeft.errors import UserError
from fedpeft.page.ports import listen

_FILES = 8192  # open files; asyncio needs one for each connection
_BACKLOG = 1024


def main() -> None:
    """Run the gateway until SIGTERM."""
    parser = argparse.ArgumentParser(prog="deployment.gateway", description=main.__doc__)
    parser.add_argument("state", type=Path)
    parser.add_argument("--max-body", type=int, default=Limits.body)
    arguments = parser.parse_args()
    os.umask(0o077)
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    files = _FILES if hard == resource.RLIM_INFINITY else min(_FILES, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (files, hard))
    limits = Limits(
        body=arguments.max_body,
        # Without files to spare, nodes could not connect and the SuperLink not be reached.
        connections=max(1, min(Limits.connections, files - 200)),
        strangers=max(1, min(Limits.strangers, files // 4)),
    )
    try:
        state = ServerFolder.read(arguments.state)
        asyncio.run(serve(state, limits))
    except (UserError, OSError) as error:
        sys.exit(f"ERROR: {error}")


async def serve(state: ServerFolder, limits: Limits) -> None:
    """Serve nodes until SIGTERM or SIGINT.

    Raises:
        OSError: the port is taken, or the keys cannot be read.
    """
    upstream, mailbox = Upstream(state), Mailbox(state.database)
    counts, connected = Counts(state.path), Connected(state.path)
    fleet = Fleet(Admission(state.path), mailbox, upstream)
    door = Door(tls_context(state), limits, counts, connected, fleet.handle)
    loop = asyncio.get_running_loop()
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    server = await loop.create_server(
        lambda: Connection(door),
        sock=listen(state.host, state.ports["public"], _BACKLOG),
        backlog=_BACKLOG,
    )
    sweep = asyncio.create_task(door.sweep())
    try:
        await asyncio.wait(
            [sweep, asyncio.create_task(stopping.wait())], return_when=asyncio.FIRST_COMPLETED
        )
        if sweep.done():
            sweep.result()  # its error ends the process, and the supervisor starts another one
    finally:
        server.close()
        await upstream.close()
        mailbox.close()
        with suppress(OSError):
            counts.save()
            connected.save(())


def tls_context(state: ServerFolder) -> ssl.SSLContext:
    """Return the TLS settings of the public port."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(state.certificate, state.key)
    offer_quick_groups(context)
    context.set_alpn_protocols(["h2"])
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_TICKET
    context.num_tickets = 0  # nodes keep their connection instead of resuming sessions
    return context


if __name__ == "__main__":
    main()
