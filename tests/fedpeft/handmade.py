"""An HTTP/2 client made by hand, which also sends what no real client would."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field

import h2.config
import h2.connection
import h2.events

PUSH = "/v1/fleet/push-object"
END = b"\x00\x00\x00\x00\x01\x00\x00\x00\x01"  # of the body on stream 1
_FRAME = 16_384  # bytes of data in a frame


def connection() -> h2.connection.H2Connection:
    """Return the state of a client's connection, without checks of what it sends."""
    config = h2.config.H2Configuration(
        header_encoding="utf-8",
        validate_outbound_headers=False,
        normalize_outbound_headers=False,
        validate_inbound_headers=False,
    )
    made = h2.connection.H2Connection(config)
    made.initiate_connection()
    return made


def fields(path: str, headers: Mapping[str, str], method: str = "POST") -> list[tuple[str, str]]:
    """Return the header list of a request, pseudo-headers first."""
    pseudo = {":method": method, ":path": path, ":scheme": "https", ":authority": "a"}
    return sorted((pseudo | dict(headers)).items(), key=lambda pair: not pair[0].startswith(":"))


def head(path: str, headers: Mapping[str, str], length: int = 0, method: str = "POST") -> bytes:
    """Return the first bytes of a connection, with the head of a request whose body follows."""
    made = connection()
    announced = {"content-length": str(length), **headers}
    made.send_headers(1, fields(path, announced, method), end_stream=not length)
    return made.data_to_send()


def data(content: bytes, stream: int = 1) -> bytes:
    """Return bytes of a body in frames, whatever the windows are."""
    frames = bytearray()
    for start in range(0, len(content), _FRAME):
        piece = content[start : start + _FRAME]
        frames += len(piece).to_bytes(3, "big") + b"\x00\x00" + stream.to_bytes(4, "big") + piece
    return bytes(frames)


@dataclass
class Answers:
    """What a server says on a connection.

    Attributes:
        statuses: of the responses, by stream.
        resets: codes of the streams that it reset.
        ended: whether it ended the connection.
    """

    line: ssl.SSLSocket
    state: h2.connection.H2Connection = field(default_factory=connection)
    statuses: dict[int, int] = field(default_factory=dict)
    resets: dict[int, int] = field(default_factory=dict)
    ended: bool = False

    def send(self) -> None:
        """Send what the state has to say."""
        if content := self.state.data_to_send():
            self.line.sendall(content)

    def read(self) -> None:
        """Read once, and note what was said."""
        content = self.line.recv(1 << 16)
        if not content:
            self.ended = True
            return
        for event in self.state.receive_data(content):
            match event:
                case h2.events.ResponseReceived():
                    status = dict(event.headers)[":status"]
                    self.statuses[event.stream_id] = int(status)
                case h2.events.StreamReset():
                    self.resets[event.stream_id] = int(event.error_code)
                case h2.events.ConnectionTerminated():
                    self.ended = True
        self.send()

    def until(self, stream: int) -> int:
        """Read until a stream has a response, is reset, or all ends; return the status or 0."""
        while not (self.ended or stream in self.statuses or stream in self.resets):
            self.read()
        return self.statuses.get(stream, 0)


def ask(
    line: ssl.SSLSocket,
    path: str,
    headers: Mapping[str, str],
    body: bytes = b"",
    method: str = "POST",
    length: int | None = None,
) -> int:
    """Send a request and return its status; 0 if there is none.

    Args:
        line: with a finished TLS handshake, and nothing sent.
        path: of the request.
        headers: others than those that every request has.
        body: at most the initial window, 65,535 bytes.
        method: of the request.
        length: announces a body that is not sent.
    """
    answers = Answers(line)
    announced = {"content-length": str(len(body) if length is None else length), **headers}
    ended = length is None and not body
    answers.state.send_headers(1, fields(path, announced, method), end_stream=ended)
    answers.send()
    if body:
        line.sendall(data(body) + END)
    return answers.until(1)
