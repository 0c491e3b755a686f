"""Pieces of the Python code in the README of an export, with places to fill in."""

from __future__ import annotations

ENCODED = """
def outputs(text, text_pair=None):
    \"\"\"Return {outputs}, [C].\"\"\"
    options = {{"truncation": True, "max_length": {max_length}, "return_tensors": "pt"}}
    inputs = tokenizer(text, text_pair, **options)
"""
MASKED = """
def outputs(text, text_pair=None):
    \"\"\"Return {outputs}, [C]: the head reads the mask of "text <mask> text_pair".\"\"\"
    mask = tokenizer.mask_token
    string = f"{{text}} {{mask}}" if text_pair is None else f"{{text}} {{mask}} {{text_pair}}"
    whole, alone = tokenizer(string, truncation=False), tokenizer(mask)
    count, at = len(whole["input_ids"]), whole.char_to_token(len(text) + 1)
    before = alone.char_to_token(0)  # special tokens at the start, and at the end
    after = len(alone["input_ids"]) - before - 1
    # Truncate the longer side of the mask first, each side at its end.
    left, right, room = at - before, count - at - 1 - after, {max_length} - before - after - 1
    stay = min(right, max(room - left, room // 2))
    left = min(left, room - stay)
    keep = [*range(before + left), *range(at, at + 1 + stay), *range(count - after, count)]
    inputs = {{name: torch.tensor([[ids[i] for i in keep]]) for name, ids in whole.items()}}
"""
WORDS = """
def outputs(words):
    \"\"\"Return the logits [C] of every word; None for a truncated word.\"\"\"
    options = {{"truncation": True, "max_length": {max_length}, "return_tensors": "pt"}}
    inputs = tokenizer([{space}word for word in words], is_split_into_words=True, **options)
    first = {{}}  # a word's tag is that of its first token
    for token, word in enumerate(inputs.word_ids()):
        if word is not None:
            first.setdefault(word, token)
"""
INPUTS = {"mask": MASKED, "tags": WORDS}
LOGITS = """\
    with torch.no_grad():
        return model(**inputs).logits[0]
"""
STATES = """\
{shifted}    with torch.no_grad():
        states = model(**inputs).last_hidden_state[0]  # [T, width]
"""
#: From the last hidden states to what the head reads.
REPRESENTATIONS = {
    "cls": "    read = states[0]\n",
    "mean": "    read = states.mean(0)\n",
    "unit": """\
    read = states.mean(0)
    read = read / read.norm() * len(read) ** 0.5
""",
    "last": "    read = states[-1]\n",
    "mask": "    read = states[before + left]\n",
}
HEAD = '    return head["weight"] @ read + head["bias"]\n'
TAGGED = {
    True: """\
    with torch.no_grad():
        logits = model(**inputs).logits[0]  # [T, C]
""",
    False: STATES + '    logits = states @ head["weight"].T + head["bias"]  # [T, C]\n',
}
BY_WORD = """\
    return [logits[first[word]] if word in first else None for word in range(len(words))]
"""
#: T5's model without output embeddings has to be given the decoder's tokens.
SHIFTED = """\
    ids, start = inputs["input_ids"], model.config.decoder_start_token_id
    inputs["decoder_input_ids"] = torch.cat([torch.tensor([[start]]), ids[:, :-1]], dim=1)
"""
WRITING = """
def write(source):
    \"\"\"Return the text that the model writes for a source.\"\"\"
    text = {prompt}.replace("{{source}}", source)
{inputs}
    options = {{"max_new_tokens": {max_target}, "num_beams": {beams}, "do_sample": False}}
    with torch.no_grad():
        written = model.generate(**inputs, **options)[0{after}]
    return tokenizer.decode(written, skip_special_tokens=True).strip()
"""
LIKELIHOOD = """
TOKENS = {tokens}  # of the classes: the first tokens of their words


def outputs(text, text_pair=None):
    \"\"\"Return the logits of the classes, [C].\"\"\"
    text = {filled}
{inputs}
    with torch.no_grad():
        logits = model(input_ids=inputs["input_ids"]{start}).logits[0, -1]  # [V]
    return logits[TOKENS]
"""

WHOLE = '    inputs = tokenizer(text, return_tensors="pt")'
#: A decoder continues the text, which must not end with an end token.
UNENDED = """\
    ids = tokenizer(text)["input_ids"]
    while ids[-1] in tokenizer.all_special_ids and ids[-1] != tokenizer.bos_token_id:
        ids = ids[:-1]
    inputs = {"input_ids": torch.tensor([ids]), "attention_mask": torch.ones(1, len(ids))}"""

#: Code that names the prediction of an example, for PyTorch and NumPy.
USES = {
    "score": """
print(float(outputs({example})[0]))
""",
    "text": """
print(write("the film was wonderful"))
""",
    "classes": """
LABELS = {labels}


def label(text, text_pair=None):
    \"\"\"Return the label of a text.\"\"\"
    return LABELS[int(outputs(text, text_pair).argmax())]


print(label({example}))
""",
    "tags": """
LABELS = {labels}


def labels(words):
    \"\"\"Return the tag of every word; None for a truncated word.\"\"\"
    return [None if row is None else LABELS[int(row.argmax())] for row in outputs(words)]


print(labels({example}))
""",
}
