"""The README of an export: a model card with code for transformers that predicts like the run."""

from __future__ import annotations

from fedpeft.export.card import metadata, sections
from fedpeft.export.heads import head_of
from fedpeft.export.readme_code import ended, head_outside, loading, reading, use_of
from fedpeft.trained import Trained
from fedpeft.version import __version__

_TEXT = """{metadata}
# {task}: {method} on {backbone}

Written by `fedpeft export --format {kind}` {version}; using it does not require fedpeft.
{note}
```python
{code}```

{meaning}

{sections}"""

_LINEAR = """
The head is linear, but the transformers class has an activation between its two layers. The first
layer therefore multiplies by 2^-40 and the second by its inverse: for values this small, the
activation is linear to the precision of float32. Do not load the model in float16, where these
values underflow.
"""
_OUTSIDE = """
transformers has no class for {family} models with this head, so the head is in `head.safetensors`,
and `transformers.pipeline` refuses this folder. Use the code below.
"""
_PEFT = """
The adapter needs peft 0.21 or newer{vera}. The base model has to be loaded in float32: transformers
otherwise follows the precision of its files.
"""
_VERA = ": older ones draw VeRA's projections again, and predict something else"
_ENDED = (
    "The tokenizer ends a text by a token that a decoder does not continue: `write` removes it, "
    "`transformers.pipeline` does not, and therefore writes something else."
)


def readme(trained: Trained, kind: str) -> str:
    """Return the README of an export of kind "hf" or "peft"."""
    experiment = trained.experiment
    return _TEXT.format(
        metadata=metadata(trained, kind),
        sections=sections(trained),
        task=experiment.task.name,
        method=experiment.method.name,
        backbone=experiment.backbone,
        kind=kind,
        version=__version__,
        note=_notes(trained, kind),
        code=loading(trained, kind) + reading(trained) + use_of(trained),
        meaning=meaning_of(trained),
    )


def _notes(trained: Trained, kind: str) -> str:
    """Return paragraphs on what may surprise, each after an empty line."""
    head, notes = head_of(trained), []
    if head is not None and head.dense:
        notes.append(_LINEAR)
    if head_outside(trained):
        notes.append(_OUTSIDE.format(family=trained.model.method.shape.family))
    if kind == "peft":
        notes.append(_PEFT.format(vera=_VERA if trained.experiment.method.name == "vera" else ""))
    return "".join(notes)


def meaning_of(trained: Trained) -> str:
    """Return a sentence about the outputs."""
    if trained.kind == "score":
        return "`outputs` returns the score."
    if trained.kind == "text":
        text = "`write` returns the text. It does not shorten sources that are too long."
        return f"{text} {_ENDED}" if ended(trained) else text
    labels = ", ".join(f"`{label}`" for label in trained.labels)
    order = f"The labels, in the order of the outputs: {labels}."
    if trained.reads == "likelihood":
        return f"{order} `outputs` does not shorten texts that are too long."
    return order
