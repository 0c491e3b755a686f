"""Tables of RGP, d90 and robust prefix tuning."""

from __future__ import annotations

from collections.abc import Callable

from parts.malicious import case, rows_of
from parts.markdown import table
from parts.small_messages import differences, read


def rgp() -> str:
    """Return the scores of RGP and DP-SGD at equal epsilon, and the differences to RGP."""
    last = read("rgp-small")
    last = last[last["last"]]
    scores = last.pivot_table(index="axis.method", columns="seed", values="score", sort=False)
    sizes = last.groupby("axis.method")[["vector_size", "client_up_payload", "epsilon"]].max()
    own = next(name for name in scores.index if name.startswith("RGP"))
    rows = []
    for name, of in scores.iterrows():
        size, sent, epsilon = sizes.loc[name]
        spread = f"{of.mean():.3f} ({of.std():.3f})"
        to_rgp = differences(of, scores.loc[own])
        rows.append([name, f"{size:,.0f}", f"{sent:,.0f}", f"{epsilon:.2f}", spread, to_rgp])
    heads = [
        "method",
        "numbers that travel",
        "bytes a round",
        "epsilon",
        "accuracy",
        "points to RGP",
    ]
    return table(heads, rows)


def d90() -> str:
    """Return every size that the bisections ran, and what they found."""
    report = case("d90", "d90")
    facts = report["facts"]
    said = (
        f"Full fine-tuning scores {facts['score of the reference']}, the target is "
        f"{facts['target']}. d90: {facts['d90']}. Not run: {facts['not run']}."
    )
    return f"{rows_of(report)}\n\n{said}"


def robust_prefix() -> str:
    """Return accuracy on perturbed texts with and without an extra prefix."""
    report = case("robust_prefix", "sst2")
    facts = "\n".join(f"- {name}: {text}" for name, text in report["facts"].items())
    return f"{rows_of(report)}\n\n{facts}"


PARTS: dict[str, Callable[..., str]] = {"rgp": rgp, "d90": d90, "robust_prefix": robust_prefix}
