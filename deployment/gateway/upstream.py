"""The way to the SuperLink on loopback."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager

import httpx

from deployment.gateway.admission import Refused
from deployment.gateway.exchange import Exchange, Headers
from deployment.server.folder import ServerFolder

_CONNECTIONS = 64
_SMALL = 1 << 16  # bytes of a body that is read before the SuperLink is asked
#: Seconds until a request is passed on again after a 500. With many nodes, a writer sometimes waits
#: longer for SQLite's lock than the SuperLink allows; a SuperNode would end, or lose its reply.
_AGAIN = (0.2, 1.0)
#: Seconds after which an unused connection is closed. The SuperLink closes it after 5; a request
#: sent at that moment would be lost.
_UNUSED = 2.0
# Only these headers pass, so that both sides agree where a request ends and whose it is.
_REQUEST = {b"content-type", b"accept", b"accept-encoding"}
_RESPONSE = {b"content-type", b"content-length", b"content-encoding"}
_FLOWER = b"flwr-"


class Upstream:
    """A client of the SuperLink, which checks that it has the server's certificate."""

    def __init__(self, state: ServerFolder):
        self._client = httpx.AsyncClient(
            base_url=f"https://127.0.0.1:{state.ports['control']}",
            verify=ssl.create_default_context(cafile=state.ca),
            # A SuperLink that has ended refuses at once; a busy one may be slow to accept.
            timeout=httpx.Timeout(60.0, connect=30.0, read=120.0),
            limits=httpx.Limits(
                max_connections=_CONNECTIONS,
                max_keepalive_connections=_CONNECTIONS,
                keepalive_expiry=_UNUSED,
            ),
            trust_env=False,  # a site's proxy does not reach loopback
        )

    async def close(self) -> None:
        """Close all connections."""
        await self._client.aclose()

    async def forward(
        self,
        exchange: Exchange,
        address: str,
        body: bytes | None = None,
        amend: Callable[[bytes], bytes] | None = None,
    ) -> None:
        """Pass a request on and its response back.

        Args:
            exchange: the request.
            address: of the client.
            body: of the request, if it was read already.
            amend: returns what to send in place of the body of an answer 200.

        Raises:
            Refused: 502 or 504, the SuperLink does not answer.
            ConnectionError: it stopped in the middle of its response.
        """
        if body is None and exchange.length is not None and exchange.length <= _SMALL:
            body = await exchange.body.all(_SMALL)
        headers = _passing(exchange.headers.items(), _REQUEST)
        headers.append((b"x-forwarded-for", address.encode()))
        if exchange.length is not None:
            headers.append((b"content-length", b"%d" % exchange.length))
        pauses = iter(() if body is None else _AGAIN)
        while True:
            content = exchange.body.pieces() if body is None else body
            request = self._client.build_request(
                "POST", exchange.path, headers=headers, content=content
            )
            async with self._sent(request) as response:
                pause = next(pauses, None) if response.status_code == 500 else None
                if pause is None and amend is not None and response.status_code == 200:
                    return await exchange.respond(amend(await _content(response)))
                if pause is None:
                    return await _answer(exchange, response)
            await asyncio.sleep(pause)

    @asynccontextmanager
    async def _sent(self, request: httpx.Request) -> AsyncIterator[httpx.Response]:
        try:
            response = await self._client.send(request, stream=True)
        except httpx.TimeoutException:
            raise Refused(504, "the SuperLink did not answer in time") from None
        except httpx.HTTPError as error:
            cause = " (certificate verify failed)" if "certificate" in str(error) else ""
            raise Refused(502, f"the SuperLink does not answer{cause}") from None
        try:
            yield response
        finally:
            await response.aclose()


async def _answer(exchange: Exchange, response: httpx.Response) -> None:
    """Pass a response back."""
    answer = exchange.answer
    await answer.start(response.status_code, _passing(response.headers.raw, _RESPONSE))
    with _broken_off():
        async for piece in response.aiter_raw():
            await answer.send(piece)
    await answer.end()


async def _content(response: httpx.Response) -> bytes:
    with _broken_off():
        return await response.aread()


@contextmanager
def _broken_off() -> Iterator[None]:
    try:
        yield
    except httpx.HTTPError:
        raise ConnectionError("the SuperLink's response broke off") from None


def _passing(headers: object, names: set[bytes]) -> Headers:
    return [
        (name.lower(), value)
        for name, value in headers  # type: ignore[attr-defined]
        if name.lower() in names or name.lower().startswith(_FLOWER)
    ]
