"""The README of an export: a model card with code for transformers that predicts like the run."""

from __future__ import annotations

import json

from fedpeft.export.card import metadata, sections
from fedpeft.tasks.prompts import PAIR, PLACES, SOURCE
from fedpeft.text.likelihood import LikelihoodModel
from fedpeft.trained import Trained
from fedpeft.version import __version__

_CLASSES = {
    "text": "AutoModelForCausalLM",
    "likelihood": "AutoModelForCausalLM",
    "cls": "AutoModelForSequenceClassification",
    "tags": "AutoModelForTokenClassification",
    "mask": "AutoModel",
    "mean": "AutoModel",
    "unit": "AutoModel",
    "last": "AutoModel",
}
#: Representations whose head is a file of its own: transformers has no class with this head.
OUTSIDE = ("mask", "mean", "unit", "last")

_READ = {
    "cls": """
def outputs(text, text_pair=None):
    \"\"\"Return {outputs}, [C].\"\"\"
    options = {{"truncation": True, "max_length": {max_length}, "return_tensors": "pt"}}
    with torch.no_grad():
        return model(**tokenizer(text, text_pair, **options)).logits[0]
""",
    "mean": """
def outputs(text, text_pair=None):
    \"\"\"Return {outputs}, [C].\"\"\"
    options = {{"truncation": True, "max_length": {max_length}, "return_tensors": "pt"}}
    with torch.no_grad():
        states = model(**tokenizer(text, text_pair, **options)).last_hidden_state[0]  # [T, width]
        return head["weight"] @ states.mean(0) + head["bias"]
""",
    "unit": """
def outputs(text, text_pair=None):
    \"\"\"Return {outputs}, [C].\"\"\"
    options = {{"truncation": True, "max_length": {max_length}, "return_tensors": "pt"}}
    with torch.no_grad():
        states = model(**tokenizer(text, text_pair, **options)).last_hidden_state[0]  # [T, width]
        mean = states.mean(0)
        return head["weight"] @ (mean / mean.norm() * len(mean) ** 0.5) + head["bias"]
""",
    "last": """
def outputs(text, text_pair=None):
    \"\"\"Return {outputs}, [C].\"\"\"
    options = {{"truncation": True, "max_length": {max_length}, "return_tensors": "pt"}}
    with torch.no_grad():
        states = model(**tokenizer(text, text_pair, **options)).last_hidden_state[0]  # [T, width]
        return head["weight"] @ states[-1] + head["bias"]
""",
    "mask": """
def outputs(text, text_pair=None):
    \"\"\"Return {outputs}, [C]: the head reads the mask of "text <mask> text_pair".\"\"\"
    mask = tokenizer.mask_token
    string = f"{{text}} {{mask}}" if text_pair is None else f"{{text}} {{mask}} {{text_pair}}"
    inputs, alone = tokenizer(string, truncation=False), tokenizer(mask)
    count, at = len(inputs["input_ids"]), inputs.char_to_token(len(text) + 1)
    before = alone.char_to_token(0)  # special tokens at the start, and at the end
    after = len(alone["input_ids"]) - before - 1
    # Truncate the longer side of the mask first, each side at its end.
    left, right, room = at - before, count - at - 1 - after, {max_length} - before - after - 1
    stay = min(right, max(room - left, room // 2))
    left = min(left, room - stay)
    keep = [*range(before + left), *range(at, at + 1 + stay), *range(count - after, count)]
    short = {{name: torch.tensor([[values[i] for i in keep]]) for name, values in inputs.items()}}
    with torch.no_grad():
        states = model(**short).last_hidden_state[0]  # [T, width]
        return head["weight"] @ states[before + left] + head["bias"]
""",
    "text": """
def write(source):
    \"\"\"Return the text that the model writes for a source.\"\"\"
    text = {prompt}.replace("{{source}}", source)
{inputs}
    options = {{"max_new_tokens": {max_target}, "num_beams": {beams}, "do_sample": False}}
    with torch.no_grad():
        written = model.generate(**inputs, **options)[0{after}]
    return tokenizer.decode(written, skip_special_tokens=True).strip()
""",
    "likelihood": """
TOKENS = {tokens}  # of the classes: the first tokens of their words


def outputs(text, text_pair=None):
    \"\"\"Return the logits of the classes, [C].\"\"\"
    text = {filled}
{inputs}
    with torch.no_grad():
        logits = model(input_ids=inputs["input_ids"]{start}).logits[0, -1]  # [V]
    return logits[TOKENS]
""",
    "tags": """
def outputs(words):
    \"\"\"Return the logits [C] of every word; None for a truncated word.\"\"\"
    options = {{"truncation": True, "max_length": {max_length}, "return_tensors": "pt"}}
    inputs = tokenizer([{space}word for word in words], is_split_into_words=True, **options)
    first = {{}}  # a word's tag is that of its first token
    for token, word in enumerate(inputs.word_ids()):
        if word is not None:
            first.setdefault(word, token)
    with torch.no_grad():
        logits = model(**inputs).logits[0]  # [T, C]
    return [logits[first[word]] if word in first else None for word in range(len(words))]
""",
}

_WHOLE = '    inputs = tokenizer(text, return_tensors="pt")'
#: A decoder continues the text, which must not end with an end token.
_UNENDED = """\
    ids = tokenizer(text)["input_ids"]
    while ids[-1] in tokenizer.all_special_ids and ids[-1] != tokenizer.bos_token_id:
        ids = ids[:-1]
    inputs = {"input_ids": torch.tensor([ids]), "attention_mask": torch.ones(1, len(ids))}"""

_TEXT = """{metadata}
# {task}: {method} on {backbone}

Written by `fedpeft export --format {kind}` {version}; using it does not require fedpeft.
{note}
```python
{code}```

{meaning}

{sections}"""

_TANH = """
The head is linear, but the transformers class has a tanh between its two layers. The first layer
therefore multiplies by 2^-16 and the second by 2^16: for values this small, tanh is the identity to
the precision of float32. Do not load the model in float16, where these values underflow.
"""


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
        note=_TANH if trained.reads == "cls" else "",
        code=_loading(trained, kind) + _reading(trained),
        meaning=meaning_of(trained),
    )


def meaning_of(trained: Trained) -> str:
    """Return a sentence about the outputs."""
    if trained.kind == "score":
        return "`outputs` returns the score."
    if trained.kind == "text":
        return "`write` returns the text. It does not shorten sources that are too long."
    labels = ", ".join(f"`{label}`" for label in trained.labels)
    order = f"The labels, in the order of the outputs: {labels}."
    if trained.reads == "likelihood":
        return f"{order} `outputs` does not shorten texts that are too long."
    return order


def word_space(trained: Trained) -> str:
    """Return code that puts a space before a word, or "" if the tokenizer needs none."""
    tokenizer = trained.model.backbone.tokenizer
    # As in fedpeft.tasks.tokens.by_word: byte-level tokenizers mark a word by a space.
    return "" if tokenizer.tokenize(" a") == tokenizer.tokenize("a") else '" " + '


def base_name(trained: Trained) -> str:
    """Return the hub name or folder that transformers loads the backbone from."""
    backbone = trained.model.backbone
    return str(backbone.model.name_or_path) if backbone.name == "minilm" else backbone.name


def _loading(trained: Trained, kind: str) -> str:
    name, outside = _CLASSES[trained.reads], trained.reads in OUTSIDE
    if trained.reads in ("text", "likelihood") and _behind_encoder(trained):
        name = "AutoModelForSeq2SeqLM"
    # The pooler is unused, and an exported encoder has none.
    options = ", add_pooling_layer=False" if outside else ""
    lines = ["import torch", f"from transformers import {name}, AutoTokenizer", ""]
    if outside:
        lines.insert(1, "from safetensors.torch import load_file")
    lines.append('folder = "."  # the folder of this file')
    if kind == "peft":
        lines.insert(1, "from peft import PeftModel")
        outputs = "" if outside else f", num_labels={trained.model.head.classes}"
        lines.append(f"base = {name}.from_pretrained({base_name(trained)!r}{outputs}{options})")
        lines.append("model = PeftModel.from_pretrained(base, folder).eval()")
    else:
        lines.append(f"model = {name}.from_pretrained(folder{options}).eval()")
    lines.append("tokenizer = AutoTokenizer.from_pretrained(folder)")
    if outside:
        lines.append('head = load_file(f"{folder}/head.safetensors")')
    return "\n".join(lines) + "\n\n"


def _reading(trained: Trained) -> str:
    task, both = trained.experiment.task, _behind_encoder(trained)
    return _READ[trained.reads].format(
        outputs="the score" if trained.kind == "score" else "the logits",
        max_length=task.max_length,
        space=word_space(trained),
        prompt=json.dumps(task.prompt),
        inputs=_WHOLE if both else _UNENDED,
        max_target=task.max_target,
        beams=task.beams,
        filled=_filled(task.prompt),
        **_words(trained),
        after="" if both else ", inputs['input_ids'].shape[1]:",
    )


def _filled(prompt: str) -> str:
    """Return code that makes a prompt of ``text`` and ``text_pair``."""
    names = {SOURCE: "text", PAIR: "text_pair"}
    parts = [part for part in PLACES.split(prompt) if part]
    return " + ".join(names.get(part, json.dumps(part)) for part in parts)


def _words(trained: Trained) -> dict[str, str]:
    """Return the tokens of the classes by likelihood, and the decoder's argument, as code."""
    model = trained.model
    if not isinstance(model, LikelihoodModel):
        return {}
    start = [*model.words.start]
    argument = f", decoder_input_ids=torch.tensor([{start}])" if start else ""
    return {"tokens": str([*model.words.tokens]), "start": argument}


def _behind_encoder(trained: Trained) -> bool:
    return trained.model.method.shape.sites.writes == "encoder-decoder"
