"""Gradient inversion: recover a client's text from its update (Zhu et al. 2019, arXiv 1906.08935).

The client trains one step on one example. The attacker is the server: it knows the backbone, the
method, the task vector that it sent, the number of tokens and the positions of special tokens, but
not the other tokens or the label. Tokens are discrete, so the attack is a search: for one position
after the other, compute the gradients of all candidate tokens in one batch and keep the token
whose gradient has the largest cosine with the update, until no token improves it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter

import numpy as np
import torch

from fedpeft.attacks.canaries import gradients_at
from fedpeft.batches.encoded import Encoded
from fedpeft.experiment.settings import LocalSection
from fedpeft.model import TaskModel
from fedpeft.privacy.dpsgd import DPSGD
from fedpeft.randomness import When
from fedpeft.training import train_cohort

#: For ``attacker_start``: with the larger spread of canaries, more searches end in a wrong text.
SPREAD = 1.1
_CHUNK = 256  # texts in one batch: bounds the memory of their gradients
_FIRST = 64  # random texts per label; a search starts from the best
_SWEEPS = 8  # a search that has not converged by then is on a plateau
_SOLVED = 0.9999  # cosine of the correct text and a noiseless update, up to rounding


@dataclass(frozen=True)
class Puzzle:
    """The attacker's knowledge about one text.

    Attributes:
        template: the text as one encoded example, with placeholders for unknown tokens and label.
        unknown: the positions of the unknown tokens, int [k].
        candidates: the possible tokens, int [V], for example those of public texts.
    """

    template: Encoded
    unknown: np.ndarray
    candidates: np.ndarray

    def texts(self, tokens: np.ndarray, labels: np.ndarray) -> Encoded:
        """Return n copies of the template, filled with tokens [n, k] and labels [n]."""
        count = len(tokens)
        texts = self.template.select(np.zeros(count, dtype=np.int64))
        filled = texts.tokens.reshape(count, -1).copy()
        filled[:, self.unknown] = tokens
        return replace(texts, tokens=filled.reshape(-1), labels=labels)


def puzzle_of(victim: Encoded, special: Sequence[int], candidates: np.ndarray) -> Puzzle:
    """Hide the label of one encoded example [1] and all its tokens except special ones."""
    unknown = np.flatnonzero(~np.isin(victim.tokens, special))
    hidden = victim.tokens.copy()
    hidden[unknown] = candidates[0]
    template = replace(victim, tokens=hidden, labels=np.zeros_like(victim.labels))
    return Puzzle(template, unknown, candidates)


@dataclass(frozen=True)
class Recovered:
    """Recovered shares in [0, 1], over all victims."""

    place: float  # of tokens, at their position
    bag: float  # of tokens, in any order
    label: float  # of labels


Guess = tuple[np.ndarray, int]  # tokens [k] at the unknown positions, label


def recovered(
    victims: Sequence[Encoded], puzzles: Sequence[Puzzle], guesses: Sequence[Guess]
) -> Recovered:
    """Return the shares of the victims that the guesses recover, one guess per victim."""
    place, bag, labels, count = 0, 0, 0, 0
    for victim, puzzle, (tokens, label) in zip(victims, puzzles, guesses, strict=True):
        truth = victim.tokens[puzzle.unknown]
        count += len(truth)
        place += int((tokens == truth).sum())
        bag += (Counter(tokens.tolist()) & Counter(truth.tolist())).total()
        labels += int(label == victim.labels[0])
    return Recovered(place / count, bag / count, labels / len(victims))


def usual_guess(puzzle: Puzzle, public: Encoded) -> Guess:
    """Return the most frequent token at each position of public texts, and their top label.

    This baseline uses no update: an attack that recovers more shows a leak.
    """
    known = np.isin(public.tokens, puzzle.candidates)
    places = np.arange(len(public.tokens)) - np.repeat(public.offsets[:-1], public.lengths)
    tokens = []
    for place in puzzle.unknown:
        here = public.tokens[known & (places == place)]
        tokens.append(np.bincount(here if len(here) else public.tokens[known]).argmax())
    return np.array(tokens), int(np.bincount(public.labels).argmax())


def one_step(
    model: TaskModel, start: np.ndarray, victim: Encoded, lr: float, private: DPSGD | None
) -> np.ndarray:
    """Return the update [P] of a client that trains one step of plain SGD on one example [1]."""
    local = LocalSection(
        optimizer="sgd", lr=lr, schedule="constant", steps=1, batch_size=1, max_grad_norm=0
    )
    dpsgd = [private] if private else None
    trained = train_cohort(model, start, [victim], [0], local, When(0, 1, 1), dpsgd)
    return start - trained.vectors[0]


def invert(
    model: TaskModel,
    start: np.ndarray,
    update: np.ndarray,
    puzzle: Puzzle,
    restarts: int,
    draw: np.random.Generator,
) -> Guess:
    """Return the tokens [k] and the label that explain an update best.

    Args:
        model: the task model, for classification.
        start: the task vector [P] that the client started from.
        update: ``start`` minus the client's vector, [P], in any unit; not zero.
        puzzle: the known parts of the text.
        restarts: number of searches from random tokens; the best result is returned.
        draw: for random tokens and the order of positions.
    """
    target = torch.as_tensor(update / np.linalg.norm(update), device=model.backbone.device)

    def likeness(tokens: np.ndarray, labels: np.ndarray) -> np.ndarray:
        """Return the cosine [n] of each text's gradient and the update."""
        parts = gradients_at(model, start, puzzle.texts(tokens, labels), _CHUNK)
        return (
            torch.cat(
                [torch.nn.functional.cosine_similarity(part, target, dim=1) for part in parts]
            )
            .cpu()
            .double()
            .numpy()
        )

    results = []
    for _ in range(restarts):
        results.append(_search(puzzle, model.head.classes, likeness, draw))
        if results[-1][0] > _SOLVED:
            break
    _, tokens, label = max(results, key=itemgetter(0))
    return tokens, label


def _search(
    puzzle: Puzzle,
    classes: int,
    likeness: Callable[[np.ndarray, np.ndarray], np.ndarray],
    draw: np.random.Generator,
) -> tuple[float, np.ndarray, int]:
    """Return (cosine, tokens, label) that no change of one token and the label improves."""
    length = len(puzzle.unknown)
    tokens = draw.choice(puzzle.candidates, (_FIRST * classes, length))
    best = _best(tokens, np.arange(len(tokens)) % classes, likeness)
    for _ in range(_SWEEPS):
        before = best[0]
        for place in draw.permutation(length):
            changed = np.repeat(best[1][None], len(puzzle.candidates) * classes, axis=0)
            changed[:, place] = np.repeat(puzzle.candidates, classes)
            candidate = _best(changed, np.arange(len(changed)) % classes, likeness)
            best = max(best, candidate, key=itemgetter(0))
        if best[0] <= before or best[0] > _SOLVED:
            break
    return best


def _best(
    tokens: np.ndarray,
    labels: np.ndarray,
    likeness: Callable[[np.ndarray, np.ndarray], np.ndarray],
) -> tuple[float, np.ndarray, int]:
    cosines = likeness(tokens, labels)
    row = int(cosines.argmax())
    return float(cosines[row]), tokens[row], int(labels[row])
