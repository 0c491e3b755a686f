"""The body of a request: what is looked at early stays in it, and all waiting bytes are counted."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import replace

import pytest

from deployment.gateway.exchange import Body, BodyTooLarge, BodyTooSlow, Disconnected, Waiting
from deployment.gateway.limits import Limits

LIMITS = replace(Limits(), body=1000, piece=0.2, slowest=1000)
PIECES = (b"ab", b"", b"cdefg", b"h" * 300)


def run(work: Coroutine[None, None, None]) -> None:
    asyncio.run(asyncio.wait_for(work, 10))


def body_of(*pieces: bytes, limits: Limits = LIMITS) -> tuple[Body, Waiting, list[int]]:
    """Return a body with pieces, the count of waiting bytes, and the costs that were paid."""
    waiting, paid = Waiting(), list[int]()
    body = Body(limits, waiting, paid.append)
    for piece in pieces:
        body.add(piece, len(piece) + 1)
    return body, waiting, paid


@pytest.mark.parametrize("size", [0, 1, 2, 5, 300, 10_000])
def test_bytes_that_were_looked_at_stay_in_the_body(size: int) -> None:
    async def work() -> None:
        body, waiting, paid = body_of(*PIECES)
        body.end()
        whole = b"".join(PIECES)
        start = await body.peek(size)
        assert whole.startswith(start) and len(start) >= min(size, len(whole))
        assert waiting.bytes == len(whole)
        assert await body.peek(size) == start
        assert await body.all(1000) == whole
        assert waiting.bytes == 0
        assert sorted(paid) == sorted([len(piece) + 1 for piece in PIECES] + [0] * (len(paid) - 4))

    run(work())


def test_look_at_an_empty_body_finds_nothing() -> None:
    async def work() -> None:
        body, waiting, _ = body_of()
        body.end()
        assert await body.peek(10) == b"" == await body.all(10)
        assert waiting.bytes == 0

    run(work())


def test_limits_of_size_and_time_count_what_was_looked_at() -> None:
    async def large() -> None:
        body, _, _ = body_of(b"x" * 600)
        await body.peek(10)
        body.add(b"x" * 600, 0)
        with pytest.raises(BodyTooLarge):
            await body.all(10_000)

    async def slow() -> None:
        body, waiting, _ = body_of(b"x")
        loop = asyncio.get_running_loop()
        for wait in (0.12, 0.24):  # each byte comes within 0.2 s, all of them do not
            loop.call_later(wait, body.add, b"x", 0)
        loop.call_later(0.3, body.end)
        await body.peek(2)
        with pytest.raises(BodyTooSlow):
            await body.all(1000)
        assert waiting.bytes == 0

    run(large())
    run(slow())


def test_bytes_of_a_client_that_goes_away_wait_no_longer() -> None:
    async def work() -> None:
        body, waiting, _ = body_of(*PIECES)
        await body.peek(5)
        body.drop()
        assert waiting.bytes == 0
        with pytest.raises(Disconnected):
            await body.all(1000)

    run(work())
