"""Gradient inversion: reading a client's text off its update (Zhu et al. 2019, arXiv 1906.08935).

The client trains one step on one example. The attacker is the server: it knows the backbone, the
method, the task vector that it sent, how many tokens the text has and where the special ones are,
but neither the other tokens nor the label. Tokens are discrete, so it searches: it computes the
gradients of all candidate tokens of a position in one batch and takes the one whose gradient
points most like the update, position after position, until nothing gets better.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from fedpeft.attacks.canaries import gradients_at
from fedpeft.model import TaskModel
from fedpeft.privacy.example import DPSGD
from fedpeft.settings import LocalSection
from fedpeft.tasks.encoding import Encoded
from fedpeft.training import When, train_cohort

#: For ``attacker_start``: with canaries' larger one the search more often ends in a wrong text.
SPREAD = 1.1
_CHUNK = 256  # texts in one batch: bounds the memory of their gradients
_FIRST = 64  # random texts of each label, of which a search starts from the best
_SWEEPS = 8  # a search that has not settled by then is on a plateau
_FOUND = 0.9999  # cosine of the right text and a noiseless update, but for rounding


@dataclass(frozen=True)
class Puzzle:
    """What the attacker knows of one text.

    Attributes:
        template: the text as one encoded example; tokens at ``unknown`` and label mean nothing.
        unknown: the positions to find, int [k].
        candidates: tokens that may stand there, int [V], for example those of public texts.
    """

    template: Encoded
    unknown: np.ndarray
    candidates: np.ndarray

    def texts(self, tokens: np.ndarray, labels: np.ndarray) -> Encoded:
        """Return the template n times, with tokens [n, k] at the unknown places and labels [n]."""
        count = len(tokens)
        texts = self.template.select(np.zeros(count, dtype=np.int64))
        filled = texts.tokens.reshape(count, -1).copy()
        filled[:, self.unknown] = tokens
        return replace(texts, tokens=filled.reshape(-1), labels=labels)


def puzzle_of(victim: Encoded, special: Sequence[int], candidates: np.ndarray) -> Puzzle:
    """Hide the tokens of one encoded example [1], all but the special ones, and its label."""
    unknown = np.flatnonzero(~np.isin(victim.tokens, special))
    hidden = victim.tokens.copy()
    hidden[unknown] = candidates[0]
    template = replace(victim, tokens=hidden, labels=np.zeros_like(victim.labels))
    return Puzzle(template, unknown, candidates)


@dataclass(frozen=True)
class Recovered:
    """Shares in [0, 1] over all victims: tokens right at their place, tokens right in whatever
    order, labels right."""

    place: float
    bag: float
    label: float


Guess = tuple[np.ndarray, int]  # tokens [k] at the unknown places, label


def recovered(
    victims: Sequence[Encoded], puzzles: Sequence[Puzzle], guesses: Sequence[Guess]
) -> Recovered:
    """Return how much of the victims the guesses have right, one guess for each."""
    place, bag, label, count = 0, 0, 0, 0
    for victim, puzzle, (tokens, of_label) in zip(victims, puzzles, guesses, strict=True):
        truth = victim.tokens[puzzle.unknown]
        count += len(truth)
        place += int((tokens == truth).sum())
        bag += (Counter(tokens.tolist()) & Counter(truth.tolist())).total()
        label += int(of_label == victim.labels[0])
    return Recovered(place / count, bag / count, label / len(victims))


def usual_guess(puzzle: Puzzle, public: Encoded) -> Guess:
    """Return the most frequent token of public texts at every place, and their usual label.

    It needs no update: what an attack finds beyond it has leaked.
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
    how = [private] if private else None
    trained = train_cohort(model, start, [victim], [0], local, When(0, 1, 1), how)
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
        model: the task model, of classes.
        start: the task vector [P] that the client started from.
        update: ``start`` minus the client's vector, [P], in any unit; not zero.
        puzzle: what else is known.
        restarts: searches from random tokens; the best counts.
        draw: for random tokens and the order of the places.
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

    found = []
    for _ in range(restarts):
        found.append(_search(puzzle, model.classes, likeness, draw))
        if found[-1][0] > _FOUND:
            break
    _, tokens, label = max(found, key=lambda each: each[0])
    return tokens, label


def _search(
    puzzle: Puzzle,
    classes: int,
    likeness: Callable[[np.ndarray, np.ndarray], np.ndarray],
    draw: np.random.Generator,
) -> tuple[float, np.ndarray, int]:
    """Return (cosine, tokens, label) where no change of one token, with any label, is better."""
    length = len(puzzle.unknown)
    tokens = draw.choice(puzzle.candidates, (_FIRST * classes, length))
    best = _best(tokens, np.arange(len(tokens)) % classes, likeness)
    for _ in range(_SWEEPS):
        before = best[0]
        for place in draw.permutation(length):
            changed = np.repeat(best[1][None], len(puzzle.candidates) * classes, axis=0)
            changed[:, place] = np.repeat(puzzle.candidates, classes)
            found = _best(changed, np.arange(len(changed)) % classes, likeness)
            best = max(best, found, key=lambda each: each[0])
        if best[0] <= before or best[0] > _FOUND:
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
