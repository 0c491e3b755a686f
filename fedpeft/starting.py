"""Heads that start from sums over the clients' features (``head.start = "sums"``).

Before the first round, clients send the moments of what the head reads (``fedpeft.heads.moments``),
under the initial vector. The server makes the head of their sum in closed form. So the start is the
same for every partition of the examples, up to rounding and the codecs of the moments.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cache, partial, reduce

import numpy as np
import torch
from threadpoolctl import ThreadpoolController

from fedpeft.batches.batch import Batch, batches, evaluation_batch
from fedpeft.batches.encoded import IGNORED, Encoded
from fedpeft.heads.closed import closed_form
from fedpeft.heads.moments import Moments
from fedpeft.model import TaskModel
from fedpeft.moving import to_device
from fedpeft.profiling import phase
from fedpeft.randomness import generator
from fedpeft.runtime import Runtime
from fedpeft.tasks.base import Kind
from fedpeft.wire import eden, formats
from fedpeft.wire.codecs import bits_of, encoded_size
from fedpeft.wire.scatter import NONE, decode_scatter, encode_scatter, scatter_size

#: Largest number of an example that moments may hold: larger ones would make a head infinite.
MOST = 1e9
_TOO_LARGE = f"the moments have features or scores above {MOST:g}; scale the scores down"


@cache
def _libraries() -> ThreadpoolController:
    return ThreadpoolController()


def one_thread() -> AbstractContextManager[object]:
    """Return a context in which numpy's linear algebra has one thread, so that bits are equal."""
    return _libraries().limit(limits=1, user_api="blas")


@dataclass(frozen=True)
class Read:
    """What a head reads of examples; of tagged ones, each word has a row.

    Attributes:
        features: [n, width], float32.
        labels: classes or scores, [n].
        counts: rows of each example.
        order: index of each example.
    """

    features: np.ndarray
    labels: np.ndarray
    counts: np.ndarray
    order: np.ndarray

    @classmethod
    def joined(cls, parts: Sequence[Read]) -> Read:
        """Return the examples of all parts."""
        arrays = [(part.features, part.labels, part.counts, part.order) for part in parts]
        return cls(*(np.concatenate(each) for each in zip(*arrays, strict=True)))

    def moments(self, kind: Kind, classes: int) -> Moments:
        """Return the moments; examples have equal weights, each word 1 / words."""
        weights = np.repeat(1 / np.maximum(self.counts, 1), self.counts)
        if kind == "score":
            targets = np.stack([np.ones(len(self.labels)), self.labels], axis=1)
        else:
            targets = np.eye(classes)[self.labels]
        with one_thread():
            return Moments.of(self.features, targets, weights)


def moments_of(model: TaskModel, vector: np.ndarray, examples: Encoded) -> Moments:
    """Return the moments of what the head reads of all examples, under a task vector [P]."""
    kind, classes = model.head.kind, model.head.classes
    parts = (read.moments(kind, classes) for read in read_by(model, vector, examples))
    return reduce(merged, parts)


def merged(one: Moments, other: Moments) -> Moments:
    """Return the moments of the examples of both."""
    with one_thread():
        return Moments.merged([one, other])


def read_by(model: TaskModel, vector: np.ndarray, examples: Encoded) -> Iterator[Read]:
    """Yield what the head reads of all examples, at least one, a batch after the other."""
    vectors = to_device(vector, model.backbone.device, model.dtype)[None]
    examples = model.kept.attach([examples])[0]
    with phase("evaluation"), torch.no_grad():
        modifications = model.realise(vectors).modifications
        size = evaluation_batch(examples.lengths, model.backbone.device)
        for rows in batches(examples.lengths, size, None):
            batch = model.collate([examples], [rows])
            yield _rows(model, model.representations(modifications, batch), batch, rows)


def _rows(model: TaskModel, read: torch.Tensor, batch: Batch, order: np.ndarray) -> Read:
    labels = batch.labels
    if model.head.kind != "tags":
        ones = np.ones(len(labels), np.int64)
        return Read(read.cpu().numpy(), labels.cpu().numpy(), ones, order)
    words = labels != IGNORED
    counts = words.sum(1).cpu().numpy()
    return Read(read[words].cpu().numpy(), labels[words].cpu().numpy(), counts, order)


def started_vector(runtime: Runtime, moments: Moments) -> np.ndarray:
    """Return the shared part [S] of the task vector that starts from the moments of all clients."""
    parameters, head = runtime.parameters, runtime.parameters.head
    with one_thread():
        nearest = head.nearest(closed_form(head.kind, moments, head.free))
    return parameters.with_head(runtime.experiment.seed, nearest)


def encode_moments(runtime: Runtime, client: int, moments: Moments) -> bytes:
    """Return the bytes of a client's moments: facts, totals, then second moments if asked for."""
    head, places = runtime.experiment.head, _places(runtime)
    facts = np.array([moments.rows, moments.energy, *moments.gram[places]])
    code = formats.encode(facts, _format(runtime))
    totals = moments.totals
    if runtime.info.kind == "score":
        totals = standardized(moments.gram, totals)
    code += _encode(runtime, client, totals.reshape(-1), head.sums)
    if head.moments == NONE:
        return code
    assert moments.scatter is not None
    with one_thread():
        return code + encode_scatter(moments.scatter, head.moments, partial(_draw, runtime, client))


def decode_moments(runtime: Runtime, client: int, data: bytes, examples: int) -> Moments:
    """Return the moments that a client sent; ``data`` is not trusted.

    Args:
        runtime: of the run.
        client: number of the client.
        data: what it sent.
        examples: its number of examples, from the handshake.

    Raises:
        ValueError: wrong length, a number that is not finite, or counts that are impossible.
    """
    head, (facts, totals, second) = runtime.experiment.head, sizes(runtime)
    if len(data) != facts + totals + second:
        raise ValueError(f"moments have {len(data)} bytes, expected {facts + totals + second}")
    places, width = _places(runtime), runtime.parameters.head.width
    targets = places[0][-1] + 1
    numbers = formats.decode(data[:facts], _format(runtime), 2 + len(places[0]), "float64")
    rows, energy, gram = int(numbers[0]), float(numbers[1]), np.zeros((targets, targets))
    gram[places] = gram[places[::-1]] = numbers[2:]
    if energy < 0 or not _possible(runtime, rows, gram, examples):
        raise ValueError(f"the moments have impossible counts for {examples} examples")
    if max(energy, gram.max()) > MOST**2 * examples:
        raise ValueError(_TOO_LARGE)
    code = data[facts : facts + totals]
    sums = _decode(runtime, client, code, targets * width, head.sums).reshape(targets, width)
    if np.abs(sums).max() > MOST * examples:
        raise ValueError(_TOO_LARGE)
    # Errors of the sums act like more variance of the features around them.
    variance = _error(head.sums) * float(np.square(sums).sum()) / width
    total = energy + variance * width
    if runtime.info.kind == "score":
        sums = as_scores(gram, sums)
    if head.moments == NONE:
        return Moments(rows, gram, sums, total)
    code, draw = data[facts + totals :], partial(_draw, runtime, client)
    with one_thread():
        scatter, noise = decode_scatter(code, width, head.moments, energy, draw)
    return Moments(rows, gram, sums, total, scatter + variance * np.eye(width), noise)


def _possible(runtime: Runtime, rows: int, gram: np.ndarray, examples: int) -> bool:
    """Return whether a client with so many examples can have these counts, up to rounding."""
    kind, error = runtime.info.kind, 1e-5 * examples
    count = gram[0, 0] if kind == "score" else gram.trace()
    if kind == "tags":  # a word weighs 1 / words; a text may have none
        most = examples * runtime.experiment.task.max_length
        whole = 0 < count <= examples + error and count - error <= rows <= most
    else:
        whole = max(abs(count - examples), abs(rows - examples)) <= error
    if kind != "score":
        return bool(whole and (np.diag(gram) >= 0).all())
    # Of scores y: n * sum of y^2 >= (sum of y)^2 (Cauchy-Schwarz).
    return bool(whole and gram[0, 1] ** 2 <= (1 + 1e-5) * count * gram[1, 1])


def sizes(runtime: Runtime) -> tuple[int, int, int]:
    """Return the bytes of facts, totals and second moments of a client."""
    head, width, places = runtime.experiment.head, runtime.parameters.head.width, _places(runtime)
    facts = (2 + len(places[0])) * formats.FORMATS[_format(runtime)]
    totals = encoded_size((places[0][-1] + 1) * width, head.sums)
    return facts, totals, scatter_size(width, head.moments)


def _format(runtime: Runtime) -> str:
    """Return the format of counts and other single numbers.

    The variance of scores is a difference of sums, which needs their digits.
    """
    exact = runtime.info.kind == "score" or runtime.experiment.head.sums == "float64"
    return "float64" if exact else "float32"


def _places(runtime: Runtime) -> tuple[np.ndarray, ...]:
    """Return the places of the numbers of a gram that are sent; the others are 0 or symmetric."""
    if runtime.info.kind == "score":
        return np.triu_indices(2)
    return np.diag_indices(runtime.info.classes)


def standardized(gram: np.ndarray, totals: np.ndarray) -> np.ndarray:
    """Return the totals [2, width] of scores y with (y - mean) / deviation in the place of y.

    The error of a code then neither grows with the distance of scores from zero, nor hides small
    scores behind the features. Where all scores are equal, the second row is 0.
    """
    mean, deviation = _spread(gram)
    rest = totals[1] - mean * totals[0]
    return np.stack([totals[0], rest / deviation if deviation else np.zeros_like(rest)])


def as_scores(gram: np.ndarray, totals: np.ndarray) -> np.ndarray:
    """Return the totals [2, width] of scores, from those of ``standardized``."""
    mean, deviation = _spread(gram)
    return np.stack([totals[0], mean * totals[0] + deviation * totals[1]])


def _spread(gram: np.ndarray) -> tuple[float, float]:
    """Return mean and standard deviation of a client's scores."""
    mean = gram[0, 1] / gram[0, 0]
    return float(mean), float(np.sqrt(max(gram[1, 1] / gram[0, 0] - mean**2, 0.0)))


def _encode(runtime: Runtime, client: int, numbers: np.ndarray, codec: str) -> bytes:
    if codec in formats.FORMATS:
        return formats.encode(numbers, codec)
    return eden.encode(numbers, bits_of(codec), _draw(runtime, client, str(len(numbers))))


def _decode(runtime: Runtime, client: int, code: bytes, count: int, codec: str) -> np.ndarray:
    if codec in formats.FORMATS:
        return formats.decode(code, codec, count, "float64")
    numbers = eden.decode(code, count, bits_of(codec), _draw(runtime, client, str(count)))
    return formats.finite(numbers, "float64")


def _draw(runtime: Runtime, client: int, purpose: str) -> np.random.Generator:
    return generator(runtime.experiment.seed, f"start-{purpose}", 0, client)


def _error(codec: str) -> float:
    """Return the squared error of a code, relative to the squared length of what was decoded."""
    return 0.0 if codec in formats.FORMATS else 1 - eden.captured(bits_of(codec))
