"""Tokens of the words of classes, by tokenizers of three kinds."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from small_families import small_language
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import MBartTokenizer, PreTrainedTokenizerFast
from worded import PAIRS, TEXTS

from fedpeft.backbones.loading import Backbone
from fedpeft.errors import UserError
from fedpeft.experiment.settings import TaskSection
from fedpeft.tasks.base import Examples
from fedpeft.tasks.label_words import encode_prompted, label_words

TEXT = [
    "it was a good film and it was great, not entailment or entailment",
    "it was a bad film and great fun: negative or positive, terrible",
] * 4
LABELS = ("negative", "positive")


def byte_level() -> Any:
    """Return a tokenizer as GPT-2's: a space belongs to the word behind it."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer: Any = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=["<s>", "</s>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(TEXT, trainer)
    return backend


def marked() -> Any:
    """Return a tokenizer as T5's or Llama's: a word begins with a mark, the first word, too."""
    backend = Tokenizer(models.Unigram())
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer: Any = trainers.UnigramTrainer(
        vocab_size=120,
        special_tokens=["<s>", "</s>", "<unk>"],
        unk_token="<unk>",
        show_progress=False,
    )
    backend.train_from_iterator(TEXT, trainer)
    return backend


def with_tokenizer(family: str, backend: Any, enclosed: bool = False) -> Backbone:
    """Return a small backbone with another tokenizer."""
    if enclosed:
        ends = [(name, backend.token_to_id(name)) for name in ("</s>", "<s>")]
        backend.post_processor = processors.RobertaProcessing(*ends, add_prefix_space=False)
    names = {"bos_token": "<s>", "eos_token": "</s>"}
    if backend.token_to_id("<unk>") is not None:
        names["unk_token"] = "<unk>"
    fast = PreTrainedTokenizerFast(tokenizer_object=backend, **names)
    return replace(small_language(family), tokenizer=fast)


@pytest.mark.parametrize("make", [byte_level, marked])
@pytest.mark.parametrize("prompt", ["{source}", "{source} it was", "{source} it was:\n"])
def test_a_decoders_word_continues_the_prompt(make: Any, prompt: str) -> None:
    """As if prompt and word were tokenized together."""
    backbone = with_tokenizer("gpt2", make())
    words = label_words(LABELS, ("great", "terrible"), backbone, prompt)
    assert words.start == ()
    filled = prompt.replace("{source}", "a good film")
    space = "" if filled.endswith("\n") else " "
    ids = backbone.tokenizer(filled)["input_ids"]
    for token, word in zip(words.tokens, ("great", "terrible"), strict=True):
        together = backbone.tokenizer(filled + space + word)["input_ids"]
        assert together[: len(ids)] == ids and together[len(ids)] == token


def test_an_encoder_decoder_begins_its_text_with_the_word() -> None:
    bart = with_tokenizer("bart", byte_level(), enclosed=True)
    words = label_words(LABELS, (), bart, "{source}")
    for token, label in zip(words.tokens, LABELS, strict=True):
        assert bart.tokenizer(label)["input_ids"][1] == token
    start = bart.language.config.decoder_start_token_id  # type: ignore[union-attr]
    assert words.start == (start, bart.tokenizer.bos_token_id)
    t5 = with_tokenizer("t5", marked())
    words = label_words(LABELS, (), t5, "{source}")
    assert words.start == (t5.language.config.decoder_start_token_id,)  # type: ignore[union-attr]
    for token, label in zip(words.tokens, LABELS, strict=True):
        assert t5.tokenizer(label, add_special_tokens=False)["input_ids"][0] == token


def test_mbart_begins_with_the_language_of_its_text() -> None:
    """The targets of mBART end with their language, which its decoder reads first."""
    pieces = ["<s>", "<pad>", "</s>", "<unk>", "\u2581good", "\u2581bad", "\u2581film"]
    vocabulary = [(piece, -float(place)) for place, piece in enumerate(pieces)]
    tokenizer: Any = MBartTokenizer(vocab=vocabulary, src_lang="en_XX", tgt_lang="ro_RO")
    backbone = replace(small_language("mbart"), tokenizer=tokenizer)
    words = label_words(LABELS, ("good film", "bad"), backbone, "{source}")
    assert words.tokens == (pieces.index("\u2581good"), pieces.index("\u2581bad"))
    assert words.start == (tokenizer.convert_tokens_to_ids("ro_RO"),)
    end, english = tokenizer.convert_tokens_to_ids(["</s>", "en_XX"])
    task = TaskSection.model_validate({"prompt": "film {source}"})
    texts = encode_prompted(Examples(["bad"], None, np.zeros(1, np.int64)), backbone, task)
    assert texts.tokens.tolist() == [pieces.index(f"\u2581{w}") for w in ("film", "bad")] + [
        end,
        english,
    ]


def test_words_default_to_the_labels_without_underscores() -> None:
    backbone = small_language("gpt2")
    tokens = label_words(("not_good", "good"), (), backbone, "{source}").tokens
    assert backbone.tokenizer.convert_ids_to_tokens([*tokens]) == ["not", "good"]
    assert label_words(("a", "b"), (" not ", "good"), backbone, "{source}").tokens == tokens


@pytest.mark.parametrize(
    ("family", "words", "prompt", "message"),
    [
        (
            "gpt2",
            ("good film", "good fun"),
            "{source}",
            "head.words: 'good film' and 'good fun' share their first token 'good'; expected",
        ),
        ("bart", ("good film", "good fun"), "{source}", "share their first token 'good'"),
        (
            "gpt2",
            ("good", "\u2603"),
            "{source}",
            "the backbone's tokenizer has no token for '\u2603'",
        ),
        (
            "t5",
            ("good", "\u2603"),
            "{source}",
            "the backbone's tokenizer has no token for '\u2603'",
        ),
        ("gpt2", ("good", " "), "{source}", "has no token for ''"),
        ("bart", ("", "good"), "{source}", "has no token for ''"),
        ("gpt2", ("good",), "{source}", "head.words = 'good': 1 words; expected 2, one for each"),
    ],
)
def test_words_that_cannot_be_told_apart_are_refused(
    family: str, words: tuple[str, ...], prompt: str, message: str
) -> None:
    with pytest.raises(UserError, match=message.replace("(", r"\(")):
        label_words(LABELS, words, small_language(family), prompt)


def test_a_word_that_grows_together_with_the_prompt_is_refused() -> None:
    """A tokenizer that joins a line break with the word behind it."""
    backend = Tokenizer(models.BPE(vocab={"a": 0, "\n": 1, "b": 2, "\nb": 3}, merges=[("\n", "b")]))
    backbone = with_tokenizer("gpt2", backend)
    with pytest.raises(UserError, match=r"the first token of 'b' begins in task\.prompt"):
        label_words(("b", "a"), (), backbone, "{source}\n")


def test_prompts_of_pairs_have_class_labels() -> None:
    task = TaskSection.model_validate({"prompt": "film: {source} = {pair}", "max_length": 12})
    labels = np.array([1, 0, 2, 1, 0])
    backbone = small_language("gpt2")
    texts = encode_prompted(Examples(TEXTS, PAIRS, labels), backbone, task)
    assert texts.labels is labels and not texts.per_token and texts.targets is None
    assert (texts.read == texts.lengths - 1).all() and texts.lengths.max() <= 12
    first = texts.tokens[: texts.offsets[1]].tolist()
    assert first == backbone.tokenizer("film: a good film = fun")["input_ids"][:-1]
    assert len(encode_prompted(Examples([], None, np.zeros(0, np.int64)), backbone, task)) == 0
