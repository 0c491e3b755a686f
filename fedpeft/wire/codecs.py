"""The names of codecs of task vectors.

A number format (``fedpeft.wire.formats``) sends the vector itself. The others send a change in a
few bits per number: ``fedpeft.wire.eden``, also as ``delta`` (see ``fedpeft.updates.transfer``),
and ``fedpeft.wire.topk``. ``fedpeft.wire.slopes`` sends the slopes that lead to a vector.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal

from fedpeft.wire import eden, slopes, topk, uniform
from fedpeft.wire.formats import FORMATS

Coder = Literal["eden", "delta", "topk", "uniform"]

MANY = 100  # from this many classes on, the head's numbers get fewer bits

_EXPECTED = {
    "eden": "eden1 to eden8 (bits per number), eden0.02 to eden0.99",
    "delta": "delta1 to delta8, delta0.02 to delta0.99",
    "topk": "topk0.001 to topk1 (the share of numbers)",
    "uniform": "uniform1 to uniform8 (bits per number, for secure sums)",
}
_NAME = re.compile(r"(eden|delta|topk|uniform)([0-9](?:\.[0-9]{1,6})?)")


def rate_of(codec: str, *coders: Coder) -> float | None:
    """Return the number in a codec's name, if it is one of ``coders``.

    Returns:
        The bits per number of "eden0.5" or "delta1", the share of numbers of "topk0.01", or None.
    """
    match = _NAME.fullmatch(codec)
    if match is None or match[1] not in coders:
        return None
    rate = float(match[2])
    if match[1] == "topk":
        valid = topk.LEAST_SHARE <= rate <= 1
    elif match[1] == "uniform":
        valid = rate in range(1, uniform.MOST_BITS + 1)
    else:
        valid = eden.is_rate(rate)
    return rate if valid else None


def check_codec(name: str, *coders: Coder, others: Sequence[str] = ()) -> str:
    """Return the name of a codec in its shortest form, such as "eden0.5" for "eden0.50".

    Raises:
        ValueError: it is neither a number format, nor one of ``coders``, nor in ``others``.
    """
    if name in FORMATS or name in others:
        return name
    rate = rate_of(name, *coders)
    if rate is None:
        expected = [*FORMATS, *(_EXPECTED[coder] for coder in coders)]
        raise ValueError(", ".join([*expected, *filter(None, [" or ".join(others)])]))
    return f"{name.rstrip('0123456789.')}{rate:g}"


def check_up(name: str) -> str:
    """Return the name of a codec of updates, see ``check_codec``."""
    return check_codec(name, "eden", "topk", "uniform", others=slopes.CODECS)


def check_down(name: str) -> str:
    """Return the name of a codec of the server's vector, see ``check_codec``."""
    return check_codec(name, "eden", "delta", others=[slopes.DOWN])


def continues(codec: str) -> bool:
    """Return whether the codec of a downlink sends steps from what clients hold."""
    return codec == slopes.DOWN or rate_of(codec, "delta") is not None


def encoded_size(size: int, codec: str) -> int:
    """Return the number of bytes of an encoded vector of ``size`` numbers.

    For ``delta`` it is that of one step.
    """
    if codec in FORMATS:
        return size * FORMATS[codec]
    if share := rate_of(codec, "topk"):
        return topk.encoded_size(size, share)
    if bits := rate_of(codec, "uniform"):  # of one vector; a sum of many needs more
        return (size * int(bits) + 7) // 8
    return eden.encoded_size(size, bits_of(codec))


def head_codec(up: str, classes: int) -> str:
    """Return the codec of the head's numbers if none is set: ``up``, or less with many classes.

    ``eden4`` if ``up`` is a number format, ``eden1`` if it is ``eden2`` to ``eden8``: a quarter of
    the head's bytes or less, a third beside ``eden3``, half beside ``eden2``. With 150 classes they
    lost at most 0.5 points (``simulations/benchmarks/results/heads.md``); below one bit more.
    """
    if classes < MANY:
        return up
    if up in FORMATS:
        return "eden4"
    return "eden1" if (rate_of(up, "eden") or 0) > 1 else up


def update_parts(numbers: int, head: int, up: str, codec: str) -> list[tuple[slice, str]]:
    """Return the parts of an update of ``numbers``, with their codecs.

    The last ``head`` numbers are a part of their own if their ``codec`` differs from ``up``.
    """
    border = numbers - (head if codec != up else 0)
    parts = [(slice(0, border), up), (slice(border, numbers), codec)]
    return [part for part in parts if part[0].start != part[0].stop]


def update_size(numbers: int, head: int, up: str, codec: str) -> int:
    """Return the number of bytes of an update, see ``update_parts``."""
    parts = update_parts(numbers, head, up, codec)
    return sum(encoded_size(part.stop - part.start, name) for part, name in parts)


def bits_of(codec: str) -> float:
    """Return the bits per number of a codec that is EDEN."""
    rate = rate_of(codec, "eden", "delta")
    assert rate is not None, f"'{codec}' is not EDEN; check_codec refuses other names"
    return rate
