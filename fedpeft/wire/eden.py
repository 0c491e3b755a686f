"""EDEN (Vargaftik et al. 2022, arXiv 2108.08842): a vector in a few bits per number.

A random rotation makes the numbers of any vector x [n] look normal. Each rotated number is sent as
the index of the nearest level of the best quantizer for a normal distribution. With z the rotated
vector and q the levels, the decoder returns R^T (S q), where S = |x|^2 / <z, q> makes its mean x
(section 3). S is the only other number sent. Both sides draw the rotation from a generator with the
same seed, so nothing has to be remembered between rounds.

Where the next code corrects the errors of this one, as in a ``delta`` downlink, the decoded vector
is better near x than correct on average: S = <z, q> / |q|^2 then has the smallest error, which is
always smaller than x. With the unbiased scale the error is larger than x below pi/4 bits, and
would grow from round to round.

A scale for each block of the rotation (``fedpeft.wire.rotation``) adds 0.001 bits per number;
errors relative to |x| do not depend on the length of blocks.

With a rate below 1, only a random share of the rotated numbers is sent, at one bit each.
"""

from __future__ import annotations

import numpy as np

from fedpeft.wire.quantizer import nearest, quantizer
from fedpeft.wire.rotation import Rotation, block_lengths, blocks

LEAST_RATE, MOST_BITS = 0.02, 8
_SMALLEST = float(np.finfo(np.float32).tiny)  # shorter blocks are sent as zero
#: Numbers sent of a block at least, as many bytes as its scale. With only a few, <z, q> may be
#: close to zero, and the variance of S has no bound.
LEAST_KEPT = 32


def is_rate(rate: float) -> bool:
    """Return whether a vector can be sent in ``rate`` bits per number: 0.02 to 1, or 2 to 8."""
    return LEAST_RATE <= rate <= 1 or (float(rate).is_integer() and 1 < rate <= MOST_BITS)


def encoded_size(size: int, rate: float) -> int:
    """Return the number of bytes of an encoded vector of ``size`` numbers."""
    lengths = block_lengths(size)
    sent = sum(_kept_count(length, rate) for length in lengths)
    return 4 * len(lengths) + (sent * _bits(rate) + 7) // 8


def captured(rate: float) -> float:
    """Return the squared length of a long vector relative to that of its decoded unbiased code.

    1 minus this share of the decoded squared length is error.
    """
    from scipy.special import ndtr

    levels, thresholds = quantizer(_bits(rate))
    cells = np.diff(ndtr(np.concatenate([[-np.inf], thresholds, [np.inf]])))
    return float(np.sum(np.square(levels) * cells)) * min(1.0, rate)


def encode(
    vector: np.ndarray, rate: float, generator: np.random.Generator, unbiased: bool = True
) -> bytes:
    """Return the code of a vector [n]: a float32 scale per block, then the packed levels.

    A block that is not finite gets a scale that ``decode`` refuses.

    Args:
        vector: float32 or float64.
        rate: bits per number, see ``is_rate``.
        generator: draws the rotation; ``decode`` needs one in the same state.
        unbiased: whether the mean over rotations is the vector; else the error is the smallest.
    """
    levels, _ = quantizer(_bits(rate))
    scales, codes = [], []
    for block in blocks(vector.astype(np.float64), block_lengths(len(vector))):
        rotation = Rotation(len(block), generator)
        kept, norm = _kept(len(block), rate, generator), _norm(block)
        if not _SMALLEST <= norm < np.inf:
            scales.append(0.0 if norm < _SMALLEST else np.inf)
            codes.append(np.zeros(_kept_count(len(block), rate), np.uint8))
            continue
        rotated = rotation.apply(block)[kept] * (np.sqrt(len(block)) / norm)
        code = nearest(rotated, _bits(rate))
        # Sums of numpy: those of BLAS depend on its number of threads.
        product, chosen = np.sum(levels[code] * rotated), np.sum(np.square(levels[code]))
        scale = len(block) / product if unbiased else product / chosen
        scales.append(scale * norm / np.sqrt(len(block)))
        codes.append(code)
    with np.errstate(over="ignore"):  # infinite, see above
        sent = np.array(scales).astype("<f4")
    return sent.tobytes() + _pack(np.concatenate(codes), _bits(rate))


def decode(data: bytes, size: int, rate: float, generator: np.random.Generator) -> np.ndarray:
    """Return the vector [n] of received bytes, float64.

    Args:
        data: the received bytes, which are not trusted.
        size: expected length n.
        rate: bits per number, see ``is_rate``.
        generator: in the state that the encoder's generator had.

    Raises:
        ValueError: wrong length, or a scale that is negative or not finite.
    """
    expected, lengths = encoded_size(size, rate), block_lengths(size)
    if len(data) != expected:
        raise ValueError(
            f"vector has {len(data)} bytes, expected {expected} ({size} numbers at {rate:g} bits)"
        )
    scales = np.frombuffer(data, "<f4", len(lengths)).astype(np.float64)
    bad = np.count_nonzero(~(np.isfinite(scales) & (scales >= 0)))
    if bad:
        raise ValueError(f"{bad} of {len(scales)} scales are NaN, infinite or negative")
    counts = [_kept_count(length, rate) for length in lengths]
    codes = _unpack(data[4 * len(lengths) :], sum(counts), _bits(rate))
    levels, _ = quantizer(_bits(rate))
    decoded = []
    for length, code, scale in zip(lengths, blocks(codes, counts), scales, strict=True):
        rotation, rotated = Rotation(length, generator), np.zeros(length)
        rotated[_kept(length, rate, generator)] = levels[code] * scale
        decoded.append(rotation.undo(rotated))
    return np.concatenate(decoded)


def _kept(length: int, rate: float, generator: np.random.Generator) -> np.ndarray | slice:
    """Return the random share of a rotated block that is sent."""
    count = _kept_count(length, rate)
    if count == length:
        return slice(None)
    numbers = generator.bit_generator.random_raw(length)  # of 64 bits: no two are equal
    return np.asarray(numbers <= np.partition(numbers, count - 1)[count - 1])


def _norm(block: np.ndarray) -> float:
    with np.errstate(over="ignore"):  # infinite
        return float(np.sqrt(np.sum(np.square(block))))


def _bits(rate: float) -> int:
    return max(1, int(rate))


def _kept_count(length: int, rate: float) -> int:
    """Return how many numbers of a block are sent."""
    return min(length, max(LEAST_KEPT, round(rate * length))) if rate < 1 else length


def _pack(codes: np.ndarray, bits: int) -> bytes:
    """Return codes below 2^bits [n] in ceil(n bits / 8) bytes, lowest bit first."""
    if 8 % bits:  # codes cross the borders of bytes
        single = np.unpackbits(codes[:, None], axis=1, count=bits, bitorder="little")
        return np.packbits(single.reshape(-1), bitorder="little").tobytes()
    each = 8 // bits
    packed = np.zeros(-(-len(codes) // each), np.uint8)
    for at in range(each):
        column = codes[at::each]
        packed[: len(column)] |= column << np.uint8(at * bits)
    return packed.tobytes()


def _unpack(data: bytes, count: int, bits: int) -> np.ndarray:
    """Return the ``count`` codes packed in ``data``."""
    packed = np.frombuffer(data, np.uint8)
    if 8 % bits:
        single = np.unpackbits(packed, count=count * bits, bitorder="little")
        return np.packbits(single.reshape(count, bits), axis=1, bitorder="little")[:, 0]
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    codes = (packed[:, None] >> shifts) & np.uint8((1 << bits) - 1)
    return codes.reshape(-1)[:count]
