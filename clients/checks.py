"""What is checked before a node starts: key, certificate, data, backbones, the way to the server.

Everything is checked before anything is said, so that an operator mends it all at once.
"""

from __future__ import annotations

import contextlib
import json
import socket
import ssl
import subprocess
import sys
from collections.abc import Callable, Iterable
from dataclasses import asdict
from functools import partial
from pathlib import Path

from clients.state import NodeSettings
from fedpeft.errors import UserError

_TIMEOUT = 5.0  # seconds for a handshake with the server


def check_all(superlink: str, key: Path, ca: Path, settings: NodeSettings) -> list[str]:
    """Check what a node was told and return what may be right later (a line each).

    KeyboardInterrupt ends it and all that it has started.

    Raises:
        UserError: what is wrong, a line each.
    """
    warnings: list[str] = []
    wrong = _mistakes(
        [
            partial(check_key, key),
            partial(check_ca, ca),
            lambda: warnings.extend(check_superlink(superlink, ca)),
        ]
    )
    wrong += _in_another_process(settings)
    if wrong:
        raise UserError("\nerror: ".join(wrong))
    return warnings


def check_key(path: Path) -> None:
    """Make sure that a file holds a node's private key, and that only its owner may read it.

    Raises:
        UserError: it does not.
    """
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
    from cryptography.hazmat.primitives.serialization import load_ssh_private_key

    content = _read(path, "--key")
    if _is_public(content):
        private = path.with_suffix("") if path.suffix == ".pub" else "the one beside it"
        raise UserError(
            f"--key {path}: this is the public key, which the server's operator gets; expected the "
            f"private one, {private}"
        )
    mode = path.stat().st_mode & 0o777
    if mode & 0o077:
        raise UserError(f"--key {path}: mode {mode:04o}, others may read it: chmod 600 {path}")
    try:
        key = load_ssh_private_key(content, None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, EllipticCurvePrivateKey):
        raise UserError(
            f"--key {path}: expected a private elliptic-curve key in OpenSSH format and without "
            "a password; 'fedpeft keys node NAME' makes one"
        )


def _is_public(content: bytes) -> bool:
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.serialization import load_ssh_public_key

    try:
        load_ssh_public_key(content)
    except (ValueError, UnsupportedAlgorithm):
        return b"-----BEGIN PUBLIC KEY-----" in content
    return True


def check_ca(path: Path) -> None:
    """Make sure that a file holds a certificate.

    Raises:
        UserError: it does not.
    """
    _read(path, "--ca")
    try:
        ssl.create_default_context(cafile=path)
    except (ssl.SSLError, OSError):
        raise UserError(
            f"--ca {path}: expected a certificate (PEM); it is the ca.crt of 'fedpeft keys init'"
        ) from None


def check_superlink(superlink: str, ca: Path) -> list[str]:
    """Shake hands with the server over TLS.

    Returns:
        Nothing, or one line that says why nobody answers there: a server may come up later.

    Raises:
        UserError: not HOST:PORT, or the server is another than the certificate vouches for.
    """
    host, port = _split(superlink)
    try:
        context = ssl.create_default_context(cafile=ca)
    except (ssl.SSLError, OSError):
        return []  # check_ca says it
    name = f"--superlink {superlink}"
    try:
        with (
            socket.create_connection((host, port), _TIMEOUT) as connection,
            context.wrap_socket(connection, server_hostname=host),
        ):
            return []
    except ssl.SSLCertVerificationError as error:
        raise UserError(
            f"{name}: its certificate is refused: {error.verify_message}; is {ca} the right CA?"
        ) from None
    except ssl.SSLError:
        raise UserError(f"{name}: what answers there does not speak TLS") from None
    except OSError as error:
        return [f"{name}: nobody answers ({error.strerror or error}); the node goes on asking"]


def check_data(settings: NodeSettings) -> None:
    """Make sure that the node's data can be read; whether it fits a task shows at the handshake.

    Raises:
        UserError: it cannot, with a line that quotes none of it.
    """
    from fedpeft.tasks.readers import EXTENSIONS, read_table

    if not settings.data:
        if settings.partition is None:
            raise UserError("--data is missing: the file or folder with this node's examples")
        return
    path = Path(settings.data)
    if not path.exists():
        raise UserError(f"--data {path}: does not exist; expected a table file, or a folder")
    if not path.is_dir():
        read_table(path)
        return
    # As they are, or each task in a folder of its own, as GLUE's.
    names = [f"{each}train{kind}" for each in ("", "*/") for kind in (*EXTENSIONS, ".txt")]
    if not any(file for name in names for file in path.glob(name)):
        kinds = ", ".join(EXTENSIONS)
        raise UserError(f"--data {path}: no file 'train' in this folder, of the kinds {kinds}")


def _in_another_process(settings: NodeSettings) -> list[str]:
    """Check data and backbones where their memory is given back, and return what is wrong."""
    # With a session of its own, as a Ctrl-C is for this process, which then ends it.
    command = [sys.executable, "-P", "-m", "clients.checks"]
    pipe = subprocess.PIPE
    process = subprocess.Popen(command, stdin=pipe, stdout=pipe, start_new_session=True)
    try:
        said, _ = process.communicate(json.dumps(asdict(settings)).encode())
    finally:
        process.kill()
        process.wait()
    if process.returncode:
        return ["reading data and backbones was ended from outside; is there enough memory?"]
    return [str(line) for line in json.loads(said)]


def main() -> None:
    """Check the data and backbones of the settings on the standard input (JSON).

    What is wrong goes to the standard output, as a list in JSON.
    """
    given = json.load(sys.stdin)
    settings = NodeSettings(**{**given, "allow": tuple(given["allow"])})
    with contextlib.redirect_stdout(sys.stderr):  # of libraries
        wrong = _heavy_checks(settings)
    json.dump(wrong, sys.stdout)


def _heavy_checks(settings: NodeSettings) -> list[str]:
    from fedpeft.backbones import load_backbone

    checks: list[Callable[[], object]] = [partial(check_data, settings)]
    checks += [partial(load_backbone, name) for name in settings.allow]
    return _mistakes(checks)


def _mistakes(checks: Iterable[Callable[[], object]]) -> list[str]:
    found = []
    for check in checks:
        try:
            check()
        except UserError as error:
            found.append(str(error))
    return found


def _read(path: Path, option: str) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise UserError(f"{option} {path}: cannot be read ({error.strerror})") from None


def _split(superlink: str) -> tuple[str, int]:
    host, _, port = superlink.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise UserError(f"--superlink {superlink}: expected HOST:PORT, e.g. fl.example.org:9092")
    return host.strip("[]"), int(port)


if __name__ == "__main__":
    main()
