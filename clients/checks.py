"""Checks before a node starts: key, certificate, data, backbones, and connection to the server.

All mistakes are reported together, so that an operator can correct them at once.
"""

from __future__ import annotations

import contextlib
import json
import re
import ssl
import subprocess
import sys
from collections.abc import Callable, Iterable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from clients.folder import NodeSettings
from clients.proxy import NotTheServer, Proxy, connected
from fedpeft.errors import UserError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

    from fedpeft.tasks import Task

_TIMEOUT = 5.0  # seconds for a handshake with the server


def check_all(
    superlink: str, key: Path, ca: Path, settings: NodeSettings, proxy: Proxy | None = None
) -> list[str]:
    """Check a node's options; return a warning for each problem that may go away by itself.

    KeyboardInterrupt ends the checks and the process that they have started.

    Raises:
        UserError: an option is wrong; the text has one line for each mistake.
    """
    warnings: list[str] = []
    mistakes = _mistakes(
        [
            partial(check_key, key),
            partial(check_ca, ca),
            lambda: warnings.extend(check_superlink(superlink, ca, proxy)),
            partial(check_roster, settings.roster, key),
        ]
    )
    mistakes += _in_another_process(settings)
    if mistakes:
        raise UserError("\nerror: ".join(mistakes))
    return warnings


def check_roster(path: str, key: Path) -> None:
    """Check that a file holds public keys, among them this node's; nothing without a file.

    Raises:
        UserError: it does not.
    """
    from fedpeft.secure.keys import Roster, name_of, public_line

    if not path:
        return
    known = Roster.read(Path(path)).keys
    own = _private_key(key.read_bytes()) if key.is_file() else None  # without one, check_key fails
    if own and name_of(public_line(own)) not in known:
        raise UserError(
            f"--roster {path}: lacks this node's own key; expected a line with the content of "
            f"{key}.pub"
        )


def check_key(path: Path) -> None:
    """Check that a file holds a node's private key and that only its owner may read it.

    Raises:
        UserError: it does not, or others may read it.
    """
    content = _read(path, "--key")
    if _is_public(content):
        private = path.with_suffix("") if path.suffix == ".pub" else "the one beside it"
        raise UserError(
            f"--key {path}: this is the public key, for the server's operator; expected the "
            f"private one, {private}"
        )
    mode = path.stat().st_mode & 0o777
    if mode & 0o077:
        raise UserError(f"--key {path}: mode {mode:04o}, others may read it: chmod 600 {path}")
    if not _private_key(content):
        raise UserError(
            f"--key {path}: expected a private elliptic-curve key in OpenSSH format and without "
            "a password; 'fedpeft keys node NAME' makes one"
        )


def _private_key(content: bytes) -> EllipticCurvePrivateKey | None:
    """Return the elliptic-curve key of a file in OpenSSH format; None if it holds none."""
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
    from cryptography.hazmat.primitives.serialization import load_ssh_private_key

    try:
        key = load_ssh_private_key(content, None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        return None
    return key if isinstance(key, EllipticCurvePrivateKey) else None


def _is_public(content: bytes) -> bool:
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.serialization import load_ssh_public_key

    try:
        load_ssh_public_key(content)
    except (ValueError, UnsupportedAlgorithm):
        return b"-----BEGIN PUBLIC KEY-----" in content
    return True


def check_ca(path: Path) -> None:
    """Check that a file holds a certificate.

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


def check_superlink(superlink: str, ca: Path, proxy: Proxy | None = None) -> list[str]:
    """Check the connection to the server by a TLS handshake.

    Returns:
        An empty list, or one line if no server answers: it may start later.

    Raises:
        UserError: not HOST:PORT, or the server has no certificate of this authority.
    """
    host, port = split_address(superlink)
    try:
        context = ssl.create_default_context(cafile=ca)
    except (ssl.SSLError, OSError):
        return []  # reported by check_ca
    name = f"--superlink {superlink}"
    try:
        with (
            connected(proxy, host, port, _TIMEOUT) as connection,
            context.wrap_socket(connection, server_hostname=host),
        ):
            return []
    except ssl.SSLCertVerificationError as error:
        raise UserError(
            f"{name}: its certificate is refused: {error.verify_message}; is {ca} the right CA?"
        ) from None
    except NotTheServer as error:
        return [f"{name}: {error}; the node keeps trying"]
    except (ssl.SSLEOFError, ssl.SSLZeroReturnError):  # a server that ends, or is too busy
        return [f"{name}: the connection was closed; the node keeps trying"]
    except ssl.SSLError:
        raise UserError(f"{name}: the program that answers there does not speak TLS") from None
    except OSError as error:
        return [f"{name}: no server answers ({error.strerror or error}); the node keeps trying"]


def check_data(settings: NodeSettings) -> None:
    """Check that the node's data can be read as the options describe them.

    Raises:
        UserError: they cannot, or an option is wrong; the text may quote a label.
    """
    from clients.described import check_described

    check_described(settings)
    if settings.data:
        path = Path(settings.data)
        if not path.exists():
            raise UserError(f"--data {path}: does not exist; expected a table file, or a folder")
        task = _task(settings)
        _check_delta(settings, len(task.train))


def _task(settings: NodeSettings) -> Task:
    """Return the task with the node's data; an error names the option, not the setting."""
    from clients.files import files_of
    from fedpeft.tasks import load_task

    try:
        return load_task(files_of(settings))
    except UserError as error:
        text = str(error).replace("task.path = ", "--data ", 1)
        raise UserError(re.sub(r"\(task\.(\w+) = '...'", _option, text)) from None


def _option(setting: re.Match[str]) -> str:
    """Return the option that stands for a setting."""
    return f"(--{setting[1].replace('_', '-')}"


def _check_delta(settings: NodeSettings, count: int) -> None:
    """Check ``--delta`` as a run's delta is checked: above 1 / n it promises nothing."""
    examples = settings.examples if isinstance(settings.examples, int) else count
    if settings.delta is not None and settings.delta * examples >= 1:
        raise UserError(
            f"--delta {settings.delta:g}: expected less than 1 / {examples}, the number of "
            "examples (--examples)"
        )


def _in_another_process(settings: NodeSettings) -> list[str]:
    """Check data and backbones in another process, to free its memory; return the mistakes."""
    # In a session of its own: Ctrl-C goes to this process, which then ends the other one.
    command = [sys.executable, "-P", "-m", "clients.checks"]
    pipe = subprocess.PIPE
    process = subprocess.Popen(command, stdin=pipe, stdout=pipe, start_new_session=True)
    try:
        mistakes, _ = process.communicate(json.dumps(asdict(settings)).encode())
    finally:
        process.kill()
        process.wait()
    if process.returncode:
        return [
            f"the process that reads data and backbones ended with exit code {process.returncode}; "
            "is there enough memory?"
        ]
    return [str(line) for line in json.loads(mistakes)]


def main() -> None:
    """Check the data and backbones of the settings on the standard input (JSON).

    Write the mistakes to the standard output, as a list in JSON.
    """
    if not (given := sys.stdin.read()):
        return  # the node was ended before it could send them
    settings = NodeSettings.of(json.loads(given))
    with contextlib.redirect_stdout(sys.stderr):  # libraries may print
        checks: list[Callable[[], object]] = [partial(check_data, settings)]
        # This package makes "tiny" itself: no file of it can be missing, and PyTorch starts slowly.
        names = [name for name in settings.allow if name != "tiny" or settings.weights]
        checks += [partial(_load, name, settings.weights) for name in names]
        mistakes = _mistakes(checks)
    json.dump(mistakes, sys.stdout)


def _load(name: str, weights: str) -> None:
    from fedpeft.backbones.loading import load_backbone

    load_backbone(name, weights=weights or "float32")


def _mistakes(checks: Iterable[Callable[[], object]]) -> list[str]:
    mistakes = []
    for check in checks:
        try:
            check()
        except UserError as error:
            mistakes.append(str(error))
    return mistakes


def _read(path: Path, option: str) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise UserError(f"{option} {path}: cannot be read ({error.strerror})") from None


def split_address(superlink: str) -> tuple[str, int]:
    """Return host and port of the server's address.

    Raises:
        UserError: it is not HOST:PORT.
    """
    host, _, port = superlink.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise UserError(f"--superlink {superlink}: expected HOST:PORT, e.g. fl.example.org:9092")
    return host.strip("[]"), int(port)


if __name__ == "__main__":
    main()
