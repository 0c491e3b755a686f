"""An HTTP proxy between a node and the server: TLS passes through it (HTTP CONNECT, RFC 9110)."""

from __future__ import annotations

import base64
import socket
import stat
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from fedpeft.errors import UserError, printable
from fedpeft.files import USERS_TEXT

_LONGEST = 1 << 14  # bytes of the head of an answer
_END = b"\r\n\r\n"


class NotTheServer(ConnectionError):
    """Something answers, but not the server; the text is for people."""


@dataclass(frozen=True)
class Proxy:
    """A proxy.

    Attributes:
        host: its name or address.
        port: its port.
        login: file with one line ``USER:PASSWORD``, if it asks for them (RFC 7617).
    """

    host: str
    port: int
    login: Path | None = None

    @classmethod
    def of(cls, url: str, login: Path | None) -> Proxy | None:
        """Return the proxy with an address ``http://HOST:PORT``; None for an empty address.

        Raises:
            UserError: it is none, or the file of user and password cannot be used.
        """
        if not url:
            if login:
                raise UserError(f"--proxy-login {login}: is for --proxy, which is missing")
            return None
        try:
            parts = urlsplit(url)
            host, port = parts.hostname, parts.port
        except ValueError:
            host = port = None
        if not host or not port or parts.scheme != "http" or "@" in url:
            shown = f"{url.rpartition('@')[2]} with a login" if "@" in url else url
            raise UserError(
                f"--proxy {shown}: expected http://HOST:PORT; user and password come from a file, "
                "--proxy-login"
            )
        made = cls(host, port, login)
        made._authorization()
        return made

    def request(self, host: str, port: int) -> bytes:
        """Return the request to be connected to a server.

        Raises:
            UserError: the file of user and password cannot be used.
        """
        target = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        head = f"CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n{self._authorization()}\r\n"
        return head.encode()

    def words(self) -> list[str]:
        """Return it as arguments of the tunnel."""
        return [self.host, str(self.port), *([str(self.login)] if self.login else [])]

    def _authorization(self) -> str:
        if self.login is None:
            return ""
        option = f"--proxy-login {self.login}"
        try:
            if stat.S_IMODE(self.login.stat().st_mode) & 0o077:
                raise UserError(f"{option}: other users may read it; chmod 600 it")
            line = self.login.read_text(encoding=USERS_TEXT).strip()
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or "not plain text"
            raise UserError(f"{option}: cannot be read ({reason})") from None
        if ":" not in line or not line.isprintable():
            raise UserError(f"{option}: expected one line, USER:PASSWORD")
        return f"Proxy-Authorization: Basic {base64.b64encode(line.encode()).decode()}\r\n"


def check_answer(head: bytes, login: bool) -> None:
    """Check the head of a proxy's answer to a request with or without a login.

    Raises:
        NotTheServer: it does not connect to the server.
    """
    words = head.split(b"\r\n", 1)[0].decode("latin-1").split(maxsplit=2)
    if len(words) < 2 or not words[0].startswith("HTTP/1."):
        raise NotTheServer("the proxy does not speak HTTP")
    if not words[1].startswith("2"):
        wants = "; is --proxy-login right?" if login else "; it wants --proxy-login"
        hint = wants if words[1] == "407" else ""
        raise NotTheServer(f"the proxy refuses: {printable(' '.join(words[1:]), 80)}{hint}")


def connected(proxy: Proxy | None, host: str, port: int, timeout: float) -> socket.socket:
    """Return a TCP connection to a server, through a proxy if there is one.

    Raises:
        OSError: nobody answers, or the proxy refuses.
        UserError: the file of user and password cannot be used.
    """
    if proxy is None:
        return socket.create_connection((host, port), timeout)
    line = socket.create_connection((proxy.host, proxy.port), timeout)
    try:
        line.sendall(proxy.request(host, port))
        head = b""
        while not head.endswith(_END):  # byte by byte: what follows is the server's
            piece = line.recv(1)
            if not piece:
                raise NotTheServer("the proxy closed the connection")
            head += piece
            if len(head) > _LONGEST:
                raise NotTheServer("the proxy does not speak HTTP")
        check_answer(head, proxy.login is not None)
    except BaseException:
        line.close()
        raise
    return line
