"""Metrics of written texts from statistics that can be summed over clients.

BLEU (Papineni et al. 2002) and chrF (Popović 2015) are sacreBLEU's with its default settings, on
all texts together. ROUGE-L (Lin 2004) is the mean F-measure of rouge-score, without stemming; it
reads Latin letters and digits only. All are from 0 to 1 here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from fedpeft.errors import UserError

#: Examples, tokens, correct tokens, the sum of their losses, and tokens cut from targets; generated
#: texts, exact ones, sum of ROUGE-L; words of BLEU and of its references, correct and all n-grams
#: of 4 orders; n-grams of chrF of 6 orders: generated, of the references, and correct.
_COUNTS = (5, 3, 2, 4, 4, 18)
SIZE = sum(_COUNTS)
_FIRST, _EXACT, _ROUGE, _BLEU, _CHRF = 5, 6, 7, 8, 18
_FRACTIONS = (3, _ROUGE)  # sums of numbers that are not whole
BLEU_ORDER = 4  # length of the longest n-grams of BLEU; a shorter text has none of them
_MOST_CUT = 1_000_000  # tokens beyond the limit in a target
_MOST_TOKEN_LOSS = 1e6  # nats; a cross-entropy is a difference of logits


def token_statistics(
    examples: int, tokens: int, right: int, loss_sum: float, cut: int = 0
) -> np.ndarray:
    """Return the statistics of predicted tokens, float64 [SIZE], without generated texts.

    Args:
        examples: number of examples.
        tokens: number of their targets' tokens, end tokens included.
        right: number of tokens that are predicted from those before them.
        loss_sum: sum of the tokens' losses in nats.
        cut: number of tokens beyond the limit of a target, which have no prediction.
    """
    stats = np.zeros(SIZE)
    stats[:_FIRST] = examples, tokens, right, loss_sum, cut
    return stats


def generated_statistics(texts: Sequence[str], targets: Sequence[str]) -> np.ndarray:
    """Return the statistics of generated texts, float64 [SIZE], without those of tokens.

    Raises:
        UserError: rouge-score or sacrebleu is not installed.
    """
    rouge, bleu, chrf = _tools()
    stats = np.zeros(SIZE)
    pairs = [(text.strip(), target.strip()) for text, target in zip(texts, targets, strict=True)]
    stats[_FIRST], stats[_EXACT] = len(pairs), sum(text == target for text, target in pairs)
    stats[_ROUGE] = sum(rouge.score(target, text)["rougeL"].fmeasure for text, target in pairs)
    if pairs:
        written, references = [text for text, _ in pairs], [[target for _, target in pairs]]
        score = bleu.corpus_score(written, references)
        stats[_BLEU:_CHRF] = score.sys_len, score.ref_len, *score.counts, *score.totals
        stats[_CHRF:] = np.sum(chrf._extract_corpus_statistics(written, references), axis=0)
    return stats


def text_scores(stats: np.ndarray) -> dict[str, float]:
    """Return the metrics by name from (a sum of) statistics; those of generation if there is one.

    accuracy is the share of tokens that are predicted from those before them, where tokens that
    were cut count as wrong; perplexity is the exponential of the mean loss of the other tokens.
    """
    _, tokens, right, loss_sum, cut = stats[:_FIRST]
    mean = loss_sum / tokens if tokens else math.nan
    result = {
        "accuracy": float(right / (tokens + cut)) if tokens else 0.0,
        "perplexity": math.exp(mean) if mean < 700 else math.inf,
    }
    count = stats[_FIRST]
    if not count:
        return result
    _, bleu, chrf = _tools()
    lengths, counts = stats[_BLEU : _BLEU + 2], stats[_BLEU + 2 : _CHRF]
    whole = [[int(value) for value in part] for part in (counts[:4], counts[4:])]
    blue = bleu.compute_bleu(*whole, *map(int, lengths), smooth_method=bleu.smooth_method)
    return {
        **result,
        "exact": float(stats[_EXACT] / count),
        "rougeL": float(stats[_ROUGE] / count),
        "bleu": float(blue.score) / 100,
        "chrf": float(chrf._compute_score_from_stats([*map(int, stats[_CHRF:])]).score) / 100,
    }


def check_text_statistics(
    stats: np.ndarray, most_examples: int, max_target: int, generates: bool
) -> None:
    """Raise ValueError if received statistics, all finite, are impossible.

    Args:
        stats: of one client, [SIZE].
        most_examples: most examples of a client.
        max_target: most tokens of a target.
        generates: whether the metric needs generated texts.
    """
    whole = np.delete(stats, _FRACTIONS)
    if (stats < 0).any() or (whole % 1).any() or not stats[0]:
        raise ValueError("the statistics are no counts of examples")
    if stats[0] > most_examples:
        raise ValueError(f"the statistics count more than {most_examples} examples")
    examples, tokens, right, loss_sum, cut, generated, exact, rouge = stats[:_BLEU]
    bleu, chrf = stats[_BLEU:_CHRF], stats[_CHRF:].reshape(6, 3)
    too_many = (
        right > tokens
        or max(generated, exact, rouge * (1 - 1e-9)) > examples
        or max(exact, rouge * (1 - 1e-9)) > generated
        or (bleu[2:6] > bleu[6:]).any()
        or (chrf[:, 2] > np.minimum(chrf[:, 0], chrf[:, 1])).any()
        or loss_sum > tokens * _MOST_TOKEN_LOSS
        or cut > examples * _MOST_CUT
        or whole.max() > 2**53
    )
    if too_many:
        raise ValueError("the statistics count more than there is")
    if generated != (examples if generates else 0) or (stats[_EXACT:].any() and not generates):
        raise ValueError(
            f"the statistics count {generated:.0f} generated texts of {examples:.0f} examples"
        )
    if not examples <= tokens <= examples * max_target:
        raise ValueError(f"the statistics count none or more than {max_target} tokens in a text")


def short_references(targets: Sequence[str]) -> int:
    """Return the number of references that BLEU cannot score, of fewer than BLEU_ORDER words."""
    if not targets:
        return 0
    _, bleu, _ = _tools()
    return sum(len(bleu.tokenizer(target.strip()).split()) < BLEU_ORDER for target in targets)


def generates(metric: str) -> bool:
    """Return whether a metric of a task of text needs generated texts."""
    return metric not in ("", "accuracy")


def require_tools(metric: str) -> None:
    """Raise UserError if a metric needs packages that are not installed."""
    if generates(metric):
        _tools()


def _tools() -> tuple[Any, Any, Any]:
    """Return rouge-score's ROUGE-L, sacreBLEU's BLEU and chrF."""
    try:
        from rouge_score.rouge_scorer import RougeScorer
        from sacrebleu.metrics import BLEU, CHRF
    except ImportError as error:
        raise UserError(
            f"generated texts cannot be scored: {error.name} is not installed; pip install "
            f"'fedpeft[text]', or set task.metric = 'accuracy'"
        ) from None
    return RougeScorer(["rougeL"]), BLEU(), CHRF()
