"""Tables of the studies on small pretrained language models."""

from __future__ import annotations

from collections.abc import Callable

from parts.markdown import table
from parts.small_messages import differences, read

_SIZES = ("vector_size", "client_up_payload")
_METRICS = {"rougeL": "ROUGE-L", "accuracy": "accuracy"}


def text(name: str) -> str:
    """Return sizes, learning rates and scores of a study, and the differences to full fine-tuning.

    Tasks of text have the perplexity of the targets, too.
    """
    rounds = read(name)
    last = rounds[rounds["last"]]
    scores = last.pivot_table(index="axis.method", columns="seed", values="score", sort=False)
    of_methods = last.groupby("axis.method")
    perplexity = None
    if "metric.perplexity" in last and last["metric.perplexity"].notna().all():
        perplexity = of_methods["metric.perplexity"].mean()
    rows = []
    for method, of in scores.iterrows():
        first = last[last["axis.method"] == method].iloc[0]
        untuned = method == "untuned"  # its learning rate and message are of no interest
        row = [method, *("-" if untuned else f"{first[key]:,}" for key in _SIZES)]
        row += ["-" if untuned else f"{first['lr']:g}", f"{of.mean():.3f} ({of.std():.3f})"]
        row += [] if perplexity is None else [f"{perplexity[method]:,.0f}"]
        rows.append([*row, differences(of, scores.loc["full"])])
    heads = ["method", "numbers that travel", "bytes a round", "learning rate"]
    heads += [_METRICS[last["metric"].iloc[0]]]
    heads += [] if perplexity is None else ["perplexity"]
    return table([*heads, "points to full"], rows)


PARTS: dict[str, Callable[..., str]] = {"text": text}
