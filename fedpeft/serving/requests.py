"""Read and check the bodies of requests."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request

from fedpeft.errors import is_unicode, printable
from fedpeft.serving.catalog import Catalog, Entry
from fedpeft.serving.engine import Item
from fedpeft.serving.limits import Limits
from fedpeft.tasks.base import Text

_SHOWN = 100  # characters of a wrong value in a message
#: What JSON calls the values that are not text.
_KINDS = {int: "a number", float: "a number", bool: "a boolean", list: "a list"}
_KINDS |= {dict: "an object", type(None): "null"}


async def read_body(request: Request, most: int, patience: float) -> bytes:
    """Return the body of a request.

    Raises:
        HTTPException: it is larger than ``most`` bytes (413), or does not arrive in ``patience``
            seconds (408).
    """
    body = bytearray()
    too_large = HTTPException(413, f"the body has more than {most:,} bytes; send less at once")
    length = request.headers.get("content-length", "")
    if length.isascii() and length.isdigit() and int(length[:20]) > most:
        raise too_large
    try:
        async with asyncio.timeout(patience):
            async for piece in request.stream():
                body += piece
                if len(body) > most:
                    raise too_large
    except TimeoutError:
        raise HTTPException(408, f"the body did not arrive in {patience:g} s") from None
    except ClientDisconnect:
        raise HTTPException(400, "the client disconnected") from None
    return bytes(body)


def items_of(body: bytes, catalog: Catalog, limits: Limits) -> list[Item]:
    """Return the texts of a request for predictions.

    The body is ``{"inputs": [{"vector": NAME, "text": ..., "text_pair": ...}, ...]}``.

    Raises:
        HTTPException: the body is not such JSON (400), a text does not suit its vector's task
            (422) or is too long (413), or a vector is unknown (404).
    """
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        raise HTTPException(400, "the body is not JSON") from None
    inputs = value.get("inputs") if isinstance(value, dict) else None
    if not isinstance(inputs, list) or not inputs or len(value) > 1:
        raise HTTPException(400, 'expected {"inputs": [{"vector": NAME, "text": TEXT}, ...]}')
    if len(inputs) > limits.inputs:
        raise HTTPException(
            413, f"{len(inputs):,} inputs; expected at most {limits.inputs:,} in a request"
        )
    return [_item(place, given, catalog, limits) for place, given in enumerate(inputs)]


def _item(place: int, given: Any, catalog: Catalog, limits: Limits) -> Item:
    where = f"inputs[{place}]"
    if not isinstance(given, dict) or not {"vector", "text"} <= given.keys():
        raise HTTPException(400, f'{where}: expected {{"vector": NAME, "text": TEXT}}')
    if unknown := given.keys() - {"vector", "text", "text_pair"}:
        raise HTTPException(400, f"{where}: unknown key '{_short(min(unknown))}'")
    name = given["vector"]
    if not isinstance(name, str):
        raise HTTPException(400, f"{where}: the vector's name is not text")
    try:
        entry = catalog[name]
    except KeyError:
        hint = catalog.hint(name[:_SHOWN])
        raise HTTPException(404, f"{where}: no vector '{_short(name)}' is served{hint}") from None
    return _checked(where, entry, given["text"], given.get("text_pair"), limits)


def _checked(where: str, entry: Entry, text: Any, pair: Any, limits: Limits) -> Item:
    info, task = entry.setup.info, entry.setup.about["task"]
    if info.pair != (pair is not None):
        needs = "needs text_pair" if info.pair else "has only one text; omit text_pair"
        raise HTTPException(422, f"{where}: task '{task}' of '{entry.name}' {needs}")
    words: Text = text
    if info.kind == "tags":
        words = text.split() if isinstance(text, str) else text
        if not isinstance(words, list) or not words or not all(isinstance(w, str) for w in words):
            raise HTTPException(422, f"{where}: expected text or a list of words, not empty")
        strings = words
    else:
        strings = [text, *([pair] if info.pair else [])]
        for key, each in zip(("text", "text_pair"), strings, strict=False):
            if not isinstance(each, str):
                raise HTTPException(422, f"{where}: '{key}' is {_KINDS[type(each)]}; expected text")
            if not each.strip():
                raise HTTPException(422, f"{where}: '{key}' is empty; expected text")
    length = sum(map(len, strings))
    if length > limits.characters:
        raise HTTPException(
            413,
            f"{where}: the text has {length:,} characters; expected at most "
            f"{limits.characters:,} (--max-characters)",
        )
    if not all(map(is_unicode, strings)):
        raise HTTPException(422, f"{where}: the text is not valid Unicode (a lone surrogate)")
    return Item(entry, words, pair)


def _short(name: str) -> str:
    return printable(name, _SHOWN)
