"""Codecs of the slopes of zeroth-order training, from which the server replays a client's steps.

``scalars`` sends every slope in the number format of the model, so that the server makes the
client's vector without rounding. A round has few slopes, so shorter numbers would save less than
the framing takes.
``signs`` sends one bit for each slope, 1 for a negative one.

A downlink of ``scalars`` sends the combined slopes of all clients in the codec of the uplink.
Clients take the server's steps from them, as in FedKSeed (arXiv 2312.06353), DeComFL (arXiv
2405.15861) and FeedSign (arXiv 2501.17610). Combined signs are their majority; a tie counts as
positive, which moves the vector either way with equal chance, as directions are symmetric.
"""

from __future__ import annotations

import numpy as np

CODECS = ("scalars", "signs")
DOWN = "scalars"


def encoded_size(count: int, codec: str, dtype: str) -> int:
    """Return the number of bytes of ``count`` slopes of a model with this dtype."""
    return (count + 7) // 8 if codec == "signs" else count * np.dtype(dtype).itemsize


def encode(slopes: np.ndarray, codec: str) -> bytes:
    """Return the bytes of slopes [steps, K].

    Raises:
        ValueError: a sign is asked of a slope that is NaN.
    """
    if codec == "scalars":
        return slopes.astype(slopes.dtype.newbyteorder("<"), copy=False).tobytes()
    if bad := np.count_nonzero(np.isnan(slopes)):
        raise ValueError(f"{bad} of {slopes.size} slopes of the loss are NaN and have no sign")
    return np.packbits(slopes < 0).tobytes()


def decode(data: bytes, shape: tuple[int, int], codec: str, dtype: str) -> np.ndarray:
    """Return the slopes [steps, K], or 1 and -1 for their signs, in the model's ``dtype``.

    Args:
        data: the received bytes, which are not trusted.
        shape: expected numbers of steps and of slopes in each.
        codec: a name in CODECS.
        dtype: of the model.

    Raises:
        ValueError: wrong length, or a slope that is not finite.
    """
    count = shape[0] * shape[1]
    expected = encoded_size(count, codec, dtype)
    if len(data) != expected:
        raise ValueError(f"update has {len(data)} bytes, expected {expected} ({count} {codec})")
    if codec == "signs":
        bits = np.unpackbits(np.frombuffer(data, np.uint8), count=count)
        return (1 - 2 * bits.astype(dtype)).reshape(shape)
    slopes = np.frombuffer(data, np.dtype(dtype).newbyteorder("<")).astype(dtype)
    if bad := np.count_nonzero(~np.isfinite(slopes)):
        raise ValueError(f"{bad} of {count} slopes are NaN or infinite")
    return slopes.reshape(shape)
