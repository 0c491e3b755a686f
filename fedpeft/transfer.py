"""Task vectors between server and clients, in the codecs ``wire.down`` and ``wire.up``.

A number format sends a vector itself. EDEN sends a change: down, the difference to the initial
vector, which every site makes from the seed; up, the difference to the vector that the client
received. The latter is the vector as decoded at both sides, so the error of the downlink is no
part of what a client reports, and the server adds the changes to its own exact vector. Nothing is
remembered between rounds: a client that missed some decodes all the same.

Server and clients call the same functions and draw rotations from the seed: one for a round down,
which all clients share, and one for each client and round up. On different machines the last bits
of decoded numbers may differ; no check depends on them.

Privacy: a code is computed from what may be sent, and reveals no more. A decoded change is longer
than the change, by 1 / sqrt(1 - D) for a quantizer of mean square error D (1.25 times at one bit).
All norms are therefore those of decoded changes, and a server that protects clients clips them.
"""

from __future__ import annotations

import numpy as np

from fedpeft.randomness import generator
from fedpeft.runtime import Runtime
from fedpeft.wire import codecs, eden


def encode_down(runtime: Runtime, number: int, vector: np.ndarray) -> bytes:
    """Return the bytes of the server's task vector [S] in round ``number``."""
    codec = runtime.experiment.wire.down
    if eden.rate_of(codec) is None:
        return codecs.encode(vector, codec)
    return _encode_change(vector, _initial(runtime), codec, _draw(runtime, "down", number))


def decode_down(runtime: Runtime, number: int, data: bytes) -> np.ndarray:
    """Return the task vector [S] that clients receive; ``data`` is not trusted.

    Raises:
        ValueError: wrong length, or a number that is not finite.
    """
    codec, parameters = runtime.experiment.wire.down, runtime.parameters
    if eden.rate_of(codec) is None:
        return codecs.decode(data, codec, parameters.shared.size, parameters.numpy_dtype)
    return _decode_change(data, _initial(runtime), codec, _draw(runtime, "down", number))


def encode_up(
    runtime: Runtime, number: int, client: int, start: np.ndarray, vector: np.ndarray
) -> bytes:
    """Return the bytes of the task vector [S] that a client trained from ``start`` [S].

    A number that is not finite is sent as such, and refused by the server.
    """
    codec = runtime.experiment.wire.up
    if eden.rate_of(codec) is None:
        return codecs.encode(vector, codec)
    return _encode_change(vector, start, codec, _draw(runtime, "up", number, client))


def decode_up(
    runtime: Runtime, number: int, client: int, start: np.ndarray, data: bytes
) -> np.ndarray:
    """Return the task vector [S] that a client trained from ``start`` [S], see ``decode_down``."""
    codec = runtime.experiment.wire.up
    if eden.rate_of(codec) is None:
        return codecs.decode(data, codec, len(start), str(start.dtype))
    return _decode_change(data, start, codec, _draw(runtime, "up", number, client))


def _initial(runtime: Runtime) -> np.ndarray:
    return runtime.parameters.initial_shared(runtime.experiment.seed)


def _draw(runtime: Runtime, way: str, number: int, client: int = 0) -> np.random.Generator:
    return generator(runtime.experiment.seed, f"wire-{way}", number, client)


def _encode_change(
    vector: np.ndarray, reference: np.ndarray, codec: str, draw: np.random.Generator
) -> bytes:
    with np.errstate(invalid="ignore"):  # infinity minus infinity: refused by the decoder
        change = np.subtract(vector, reference, dtype=np.float64)
    return eden.encode(change, codec, draw)


def _decode_change(
    data: bytes, reference: np.ndarray, codec: str, draw: np.random.Generator
) -> np.ndarray:
    change = eden.decode(data, len(reference), codec, draw)
    return codecs.finite(reference + change, str(reference.dtype))
