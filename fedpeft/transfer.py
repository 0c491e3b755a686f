"""Task vectors between server and clients, in the codecs ``wire.down`` and ``wire.up``.

``float32`` and ``float64`` send a vector itself, and so do the two short number formats down. All
else is a change:

- up, the difference to the vector that the client received. That is the vector as decoded at both
  sides, so the error of the downlink is no part of what a client reports, and the server adds the
  changes to its own exact vector. In two bytes a vector would lose what a small learning rate
  changes: near 1, bfloat16 has no number within 0.4 %;
- down, ``eden`` sends the difference to the origin, the vector that the run starts from. Every site
  makes it from the seed, except for a head that starts from sums, which each client gets once. A
  client that missed rounds decodes all the same;
- down, ``delta`` sends the difference to the *reference*, the vector that clients hold since the
  round before. The next step corrects the errors of this one, so one bit per number suffices.
  ``server/downlink.py`` and ``clients/reference.py`` let clients catch up that missed rounds.

``wire.head`` gives the head's numbers of an update a codec of their own, and so does a head with
many classes. They are the last ones.

A client that trained with zeroth-order gradients can send their slopes (``fedpeft.wire.slopes``):
the server repeats its steps. With ``scalars`` down, it combines the slopes of all clients and makes
its own steps from them; clients repeat these, and hold the server's vector to the bit.

Server and clients call the same functions and draw rotations from the seed: one for a round down,
which all clients share, and one for each client and round up. On different machines the last bits
of decoded numbers may differ; no check depends on them.

Privacy: a code is computed from what may be sent, and reveals no more. An unbiased decoded change
is longer than the change, by 1 / sqrt(1 - D) for a quantizer of mean square error D (1.25 times at
one bit). All norms are therefore those of decoded changes, and a server that protects clients
clips them.
"""

from __future__ import annotations

import numpy as np

from fedpeft import sums
from fedpeft.nested import held_numbers, is_small
from fedpeft.profiling import phase
from fedpeft.randomness import When, generator
from fedpeft.runtime import Runtime
from fedpeft.wire import eden, formats, slopes, topk
from fedpeft.wire.codecs import (
    bits_of,
    continues,
    encoded_size,
    head_codec,
    rate_of,
    update_parts,
    update_size,
)
from fedpeft.zeroth import replay

#: Sends vectors to evaluate where ``wire.down`` sends steps, as they are no steps.
_EVALUATED = "eden8"


def encode_down(
    runtime: Runtime,
    number: int,
    vector: np.ndarray,
    small: bool = False,
    head: np.ndarray | None = None,
) -> bytes:
    """Return the bytes of the server's task vector [S] in round ``number``.

    If ``wire.down`` sends steps, the difference to the origin at 8 bits; see ``encode_step``.

    Args:
        runtime: of the run.
        number: of the round.
        vector: the server's.
        small: whether they are for clients that hold only a prefix of z.
        head: of the origin, see ``origin_of``.
    """
    codec, held = _down(runtime), _held(runtime, small)
    if codec in formats.FORMATS:
        return formats.encode(vector[held], codec)
    return _encode(
        vector[held], origin_of(runtime, head)[held], codec, _draw(runtime, "down", number)
    )


def decode_down(
    runtime: Runtime,
    number: int,
    data: bytes,
    small: bool = False,
    head: np.ndarray | None = None,
) -> np.ndarray:
    """Return the task vector [S] that clients receive; ``data`` is not trusted.

    Raises:
        ValueError: wrong length, or a number that is not finite.
    """
    codec, parameters = _down(runtime), runtime.parameters
    if codec in formats.FORMATS and not small:  # the initial vector of `full` takes a while
        return formats.decode(data, codec, parameters.shared.size, parameters.numpy_dtype)
    held, whole = _held(runtime, small), origin_of(runtime, head)
    if codec in formats.FORMATS:
        whole[held] = formats.decode(data, codec, len(whole[held]), parameters.numpy_dtype)
    else:
        whole[held] = _decode(data, whole[held], codec, _draw(runtime, "down", number))
    return whole


def encode_step(runtime: Runtime, number: int, vector: np.ndarray, reference: np.ndarray) -> bytes:
    """Return the step of round ``number`` from the ``reference`` [S] towards ``vector`` [S]."""
    codec = runtime.experiment.wire.down
    return _encode(vector, reference, codec, _draw(runtime, "step", number))


def decode_step(runtime: Runtime, number: int, reference: np.ndarray, data: bytes) -> np.ndarray:
    """Return the reference [S] after the step of round ``number``, see ``decode_down``."""
    codec = runtime.experiment.wire.down
    if codec == slopes.DOWN:
        return _replayed(runtime, number, reference, data)
    return _decode(data, reference, codec, _draw(runtime, "step", number))


def size_step(runtime: Runtime) -> int:
    """Return the number of bytes of a step, see ``encode_step`` and ``encode_slopes``."""
    codec = runtime.experiment.wire.down
    if codec == slopes.DOWN:
        return size_up(runtime)
    return encoded_size(runtime.parameters.shared.size, codec)


def encode_slopes(runtime: Runtime, combined: np.ndarray) -> bytes:
    """Return the bytes of slopes [local.steps, local.perturbations], as a step of ``scalars``."""
    return slopes.encode(combined, runtime.experiment.wire.up)


def decode_slopes(runtime: Runtime, data: bytes) -> np.ndarray:
    """Return slopes [local.steps, local.perturbations]; ``data`` is not trusted.

    Raises:
        ValueError: wrong length, or a slope that is not finite.
    """
    local, codec = runtime.experiment.local, runtime.experiment.wire.up
    shape = local.steps, local.perturbations
    return slopes.decode(data, shape, codec, runtime.parameters.numpy_dtype)


def size_up(runtime: Runtime) -> int:
    """Return the number of bytes of an update by a client that holds all numbers."""
    experiment, parameters = runtime.experiment, runtime.parameters
    codec, local = experiment.wire.up, experiment.local
    if codec in slopes.CODECS:
        return slopes.encoded_size(local.steps * local.perturbations, codec, parameters.numpy_dtype)
    shared = parameters.shared
    if experiment.federation.secure:
        return sums.update_bytes(experiment, shared.size)
    return update_size(shared.size, shared.head_size, codec, codec_of_head(runtime))


def codec_of_head(runtime: Runtime) -> str:
    """Return the codec of the head's numbers in an update."""
    wire = runtime.experiment.wire
    return wire.head or head_codec(wire.up, runtime.info.classes)


def encode_up(
    runtime: Runtime,
    number: int,
    client: int,
    start: np.ndarray,
    vector: np.ndarray,
    measured: np.ndarray | None = None,
) -> bytes:
    """Return the bytes of the task vector [S] that a client trained from ``start`` [S].

    A number that is not finite is sent as such, and refused by the server.

    Args:
        runtime: the client's runtime.
        number: of the round.
        client: number of the client.
        start: the vector as the client decoded it.
        vector: the trained vector.
        measured: slopes of its steps, see ``CohortResult``, which some codecs send instead.
    """
    experiment = runtime.experiment
    if experiment.wire.up in slopes.CODECS:
        assert measured is not None  # the settings require perturbations
        return slopes.encode(measured, experiment.wire.up)
    held = _held(runtime, is_small(experiment, client))
    start, vector = start[held], vector[held]
    return b"".join(
        formats.encode(vector[part], codec)
        if codec in formats.WHOLE
        else _encode(vector[part], start[part], codec, _draw_up(runtime, part, number, client))
        for part, codec in _parts(runtime, len(vector))
    )


def decode_up(
    runtime: Runtime, number: int, client: int, start: np.ndarray, data: bytes
) -> np.ndarray:
    """Return the task vector [S] that a client trained from ``start`` [S], see ``decode_down``."""
    codec = runtime.experiment.wire.up
    if codec in slopes.CODECS:
        return _replayed(runtime, number, start, data)
    held, whole = _held(runtime, is_small(runtime.experiment, client)), start.copy()
    decoded = whole[held]
    parts = _parts(runtime, len(decoded))
    border = len(data) if len(parts) == 1 else encoded_size(parts[0][0].stop, parts[0][1])
    for (part, codec), code in zip(parts, (data[:border], data[border:]), strict=False):
        if codec in formats.WHOLE:
            decoded[part] = formats.decode(code, codec, part.stop - part.start, str(start.dtype))
        else:
            draw = _draw_up(runtime, part, number, client)
            decoded[part] = _decode(code, decoded[part], codec, draw)
    whole[held] = decoded
    return whole


def _held(runtime: Runtime, small: bool) -> np.ndarray | slice:
    return held_numbers(runtime.parameters, runtime.experiment, small)


def _parts(runtime: Runtime, numbers: int) -> list[tuple[slice, str]]:
    """Return the parts of an update of ``numbers`` and their codecs."""
    head, up = runtime.parameters.shared.head_size, runtime.experiment.wire.up
    return update_parts(numbers, head, up, codec_of_head(runtime))


def _down(runtime: Runtime) -> str:
    codec = runtime.experiment.wire.down
    return _EVALUATED if continues(codec) else codec


def _replayed(runtime: Runtime, number: int, start: np.ndarray, data: bytes) -> np.ndarray:
    experiment, measured = runtime.experiment, decode_slopes(runtime, data)
    when = When(experiment.seed, number, experiment.federation.rounds)
    return formats.finite(
        replay(experiment.local, when, start, measured, runtime.head_rate), str(start.dtype)
    )


def origin_of(runtime: Runtime, head: np.ndarray | None = None) -> np.ndarray:
    """Return the vector [S] that a run starts from.

    Args:
        runtime: of the run.
        head: numbers of a head that starts from sums; None = all numbers follow from the seed.
    """
    origin = runtime.parameters.initial_shared(runtime.experiment.seed)
    if head is not None:
        origin[len(origin) - len(head) :] = head
    return origin


def refers_to_origin(runtime: Runtime) -> bool:
    """Return whether clients need the origin to decode what they are sent."""
    return runtime.experiment.wire.down not in formats.FORMATS


def _draw_up(runtime: Runtime, part: slice, number: int, client: int) -> np.random.Generator:
    return _draw(runtime, "up-head" if part.start else "up", number, client)


def _draw(runtime: Runtime, way: str, number: int, client: int = 0) -> np.random.Generator:
    return generator(runtime.experiment.seed, f"wire-{way}", number, client)


def _encode(
    vector: np.ndarray, reference: np.ndarray, codec: str, draw: np.random.Generator
) -> bytes:
    with phase("coding"):
        with np.errstate(invalid="ignore"):  # infinity minus infinity: refused by the decoder
            change = np.subtract(vector, reference, dtype=np.float64)
        if codec in formats.FORMATS:
            return formats.encode(change, codec)
        if share := rate_of(codec, "topk"):
            return topk.encode(change, share)
        unbiased = rate_of(codec, "delta") is None
        return eden.encode(change, bits_of(codec), draw, unbiased)


def _decode(
    data: bytes, reference: np.ndarray, codec: str, draw: np.random.Generator
) -> np.ndarray:
    with phase("coding"):
        if codec in formats.FORMATS:
            change = formats.decode(data, codec, len(reference), "float64")
        elif share := rate_of(codec, "topk"):
            change = topk.decode(data, len(reference), share)
        else:
            change = eden.decode(data, len(reference), bits_of(codec), draw)
        return formats.finite(reference + change, str(reference.dtype))
