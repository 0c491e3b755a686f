"""The README of an ONNX export, with code for onnxruntime that predicts like the run."""

from __future__ import annotations

from fedpeft.export.readme import meaning_of
from fedpeft.export.readme_code import use_of, word_space
from fedpeft.trained import Trained
from fedpeft.version import __version__

_LOADING = """import numpy as np
from onnxruntime import InferenceSession
from safetensors.numpy import load_file
from transformers import AutoTokenizer

folder = "."  # the folder of this file
session = InferenceSession(f"{folder}/model.onnx")
tokenizer = AutoTokenizer.from_pretrained(folder)
vector = load_file(f"{folder}/vector.safetensors")["vector"].astype(np.float32)


def run(vector, **inputs):
    \"\"\"Return the model's outputs for one text.\"\"\"
    inputs["vectors"] = vector[None]
    inputs.setdefault("token_type_ids", np.zeros_like(inputs["input_ids"]))
    names = [given.name for given in session.get_inputs()]
    return session.run(None, {name: inputs[name] for name in names})[0][0]


"""

_WHOLE = """def outputs(text, text_pair=None, vector=vector):
    \"\"\"Return {outputs}, [C].\"\"\"
    options = {{"truncation": True, "max_length": {max_length}, "return_tensors": "np"}}
    return run(vector, **tokenizer(text, text_pair, **options))
"""

_READ = {
    "mask": """def outputs(text, text_pair=None, vector=vector):
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
    short = {{name: np.array([[values[i] for i in keep]]) for name, values in inputs.items()}}
    return run(vector, **short, read=np.array([before + left]))
""",
    "tags": """def outputs(words, vector=vector):
    \"\"\"Return the logits [C] of every word; None for a truncated word.\"\"\"
    options = {{"truncation": True, "max_length": {max_length}, "return_tensors": "np"}}
    inputs = tokenizer([{space}word for word in words], is_split_into_words=True, **options)
    first = {{}}  # a word's tag is that of its first token
    for token, word in enumerate(inputs.word_ids()):
        if word is not None:
            first.setdefault(word, token)
    logits = run(vector, **inputs)  # [T, C]
    return [logits[first[word]] if word in first else None for word in range(len(words))]
""",
}

_TEXT = """# {task}: {method} on {backbone}

Written by `fedpeft export --format onnx` {version}; using it does not require fedpeft.

The task vector is an input: `vectors` has one row of {size:,} numbers per text. `model.onnx` also
runs the vectors of other runs with the same backbone, method, seed and labels
(`vector.safetensors` of their folders), several in one batch. Inputs of N texts with T tokens:
{inputs}.

```python
{code}```

{meaning}
"""

_INPUTS = {
    "input_ids": "int64 [N, T]",
    "attention_mask": "int64 [N, T]",
    "token_type_ids": "int64 [N, T]",
    "read": "int64 [N], the place of the mask",
}


def onnx_readme(trained: Trained) -> str:
    """Return the README of an ONNX export."""
    experiment, model = trained.experiment, trained.model
    left_out = {
        *([] if model.backbone.shape.types > 1 else ["token_type_ids"]),
        *([] if trained.reads == "mask" else ["read"]),
    }
    inputs = {name: shape for name, shape in _INPUTS.items() if name not in left_out}
    inputs["vectors"] = "float32 [N, P]"
    return _TEXT.format(
        task=experiment.task.name,
        method=experiment.method.name,
        backbone=experiment.backbone,
        version=__version__,
        size=model.layout.size,
        inputs=", ".join(f"`{name}` {shape}" for name, shape in inputs.items()),
        code=_LOADING
        + _READ.get(trained.reads, _WHOLE).format(
            outputs="the score" if trained.kind == "score" else "the logits",
            max_length=experiment.task.max_length,
            space=word_space(trained),
        )
        + use_of(trained),
        meaning=meaning_of(trained),
    )
