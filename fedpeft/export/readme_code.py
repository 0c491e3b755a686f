"""The code in the README of an export: how to load it, and how to predict with it."""

from __future__ import annotations

import json

from fedpeft.backbones.families import Family
from fedpeft.export import snippets
from fedpeft.export.card import hub_name
from fedpeft.export.heads import head_of
from fedpeft.tasks.prompts import PAIR, PLACES, SOURCE
from fedpeft.text.likelihood import LikelihoodModel
from fedpeft.trained import Trained


def use_of(trained: Trained) -> str:
    """Return code that prints the label, score, tags or text of an example."""
    example = "['anna', 'lives', 'in', 'paris']" if trained.kind == "tags" else '"a good film"'
    if trained.pair:
        example += ', "a very good film"'
    return "\n" + snippets.USES[trained.kind].format(labels=list(trained.labels), example=example)


def word_space(trained: Trained) -> str:
    """Return code that puts a space before a word, or "" if the tokenizer needs none."""
    tokenizer = trained.model.backbone.tokenizer
    # As in fedpeft.tasks.tokens.by_word: byte-level tokenizers mark a word by a space.
    return "" if tokenizer.tokenize(" a") == tokenizer.tokenize("a") else '" " + '


def ended(trained: Trained) -> bool:
    """Return whether the tokenizer of a decoder ends a text by a special token."""
    tokenizer = trained.model.backbone.tokenizer
    last = tokenizer("a")["input_ids"][-1]
    return not _behind_encoder(trained) and last in tokenizer.all_special_ids


def base_name(trained: Trained) -> str:
    """Return the hub name or folder that transformers loads the backbone from."""
    return hub_name(trained.experiment.backbone) or trained.model.backbone.name


def head_outside(trained: Trained) -> bool:
    """Return whether the head is in a file of its own."""
    return trained.model.backbone.language is None and head_of(trained) is None


def loading(trained: Trained, kind: str) -> str:
    """Return code that loads an export of kind "hf" or "peft"."""
    name, outside, writes = _class_of(trained), head_outside(trained), trained.kind == "text"
    options = {"dtype": "torch.float32"}
    if outside:  # a pooler is unused, and an exported encoder has none
        options |= {key: str(value) for key, value in _family(trained).options.items()}
    lines = ["import torch", f"from transformers import {name}, AutoTokenizer", ""]
    if kind == "peft" and writes:
        lines[1] = f"from transformers import {name}, AutoTokenizer, GenerationConfig"
    if outside:
        lines.insert(1, "from safetensors.torch import load_file")
    lines.append('folder = "."  # the folder of this file')
    if kind == "peft":
        lines.insert(1, "from peft import PeftModel")
        head = head_of(trained)
        if head is not None:
            options["num_labels"] = str(trained.model.head.classes)
            given = head.configuration(trained.reads)
            options |= {key: repr(value) for key, value in given.items()}
        lines.append(f"base = {name}.from_pretrained({base_name(trained)!r}, {_given(options)})")
        lines.append("model = PeftModel.from_pretrained(base, folder).eval()")
        if writes:
            lines.append("model.generation_config = GenerationConfig.from_pretrained(folder)")
    else:
        lines.append(f"model = {name}.from_pretrained(folder, {_given(options)}).eval()")
    lines.append("tokenizer = AutoTokenizer.from_pretrained(folder)")
    if outside:
        lines.append('head = load_file(f"{folder}/head.safetensors")')
    return "\n".join(lines) + "\n\n"


def _given(options: dict[str, str]) -> str:
    return ", ".join(f"{name}={value}" for name, value in options.items())


def _class_of(trained: Trained) -> str:
    """Return the name of the class that loads the model."""
    if trained.model.backbone.language is not None:
        return "AutoModelForSeq2SeqLM" if _behind_encoder(trained) else "AutoModelForCausalLM"
    if head_of(trained) is None:
        return "AutoModel"
    tags = trained.reads == "tags"
    return "AutoModelForTokenClassification" if tags else "AutoModelForSequenceClassification"


def reading(trained: Trained) -> str:
    """Return code of the function that makes outputs, or a text."""
    task, both = trained.experiment.task, _behind_encoder(trained)
    return _code(trained).format(
        outputs="the score" if trained.kind == "score" else "the logits",
        max_length=task.max_length,
        space=word_space(trained),
        shifted=snippets.SHIFTED if _family(trained).starts == "token" else "",
        prompt=json.dumps(task.prompt),
        inputs=snippets.WHOLE if both else snippets.UNENDED,
        max_target=task.max_target,
        beams=task.beams,
        filled=_filled(task.prompt),
        **_words(trained),
        after="" if both else ", inputs['input_ids'].shape[1]:",
    )


def _code(trained: Trained) -> str:
    """Return the function that makes outputs or a text, with places to fill in."""
    reads, outside = trained.reads, head_outside(trained)
    if reads in ("text", "likelihood"):
        return snippets.WRITING if reads == "text" else snippets.LIKELIHOOD
    inputs = snippets.INPUTS.get(reads, snippets.ENCODED)
    if reads == "tags":
        return inputs + snippets.TAGGED[not outside] + snippets.BY_WORD
    return inputs + (
        snippets.STATES + snippets.REPRESENTATIONS[reads] + snippets.HEAD
        if outside
        else snippets.LOGITS
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


def _family(trained: Trained) -> Family:
    return trained.model.method.shape.sites


def _behind_encoder(trained: Trained) -> bool:
    return _family(trained).writes == "encoder-decoder"
