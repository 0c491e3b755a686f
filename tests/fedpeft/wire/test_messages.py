"""The fields of messages: what is sent, what is refused, and how small they are."""

from __future__ import annotations

import zlib
from dataclasses import fields
from typing import Any

import pytest

from fedpeft.wire import messages
from fedpeft.wire.messages import (
    EXPERIMENT_BYTES,
    EvaluateReply,
    HandshakeReply,
    HandshakeRequest,
    Request,
    TrainReply,
    from_fields,
    label,
    pack_experiment,
    to_fields,
    unpack_experiment,
)

KINDS = [HandshakeRequest, HandshakeReply, Request, TrainReply, EvaluateReply]
SAMPLES: dict[type, Any] = {int: 7, float: 0.5, str: "text", bytes: b"\x00\xff"}
every = pytest.mark.parametrize("kind", KINDS)


@every
def test_a_message_survives_sending(kind: type) -> None:
    full = kind(**{entry.name: SAMPLES[entry.metadata["kind"]] for entry in fields(kind)})
    for message in (full, kind()):
        assert from_fields(kind, to_fields(message)) == message


@every
def test_fields_with_their_default_value_are_not_sent(kind: type) -> None:
    assert to_fields(kind()) == {}


@every
def test_keys_have_one_letter_and_differ(kind: type) -> None:
    keys = [entry.metadata["key"] for entry in fields(kind)]
    assert len(set(keys)) == len(keys) and {len(key) for key in keys} == {1}


@every
def test_a_field_of_another_type_is_refused_without_its_value(kind: type) -> None:
    for entry in fields(kind):
        for value in ("secret", b"secret", 77, 7.7, True, [7], ["secret"]):
            if type(value) is entry.metadata["kind"]:
                continue
            with pytest.raises(ValueError, match=f"^{entry.name} is {type(value).__name__}, ") as e:
                from_fields(kind, {entry.metadata["key"]: value})
            assert "secret" not in str(e.value) and "77" not in str(e.value)


@pytest.mark.parametrize(
    ("received", "words"),
    [(None, "no record of fields"), ([1], "no record"), ({"q": 1, "zz": 2}, "2 unknown fields")],
)
def test_a_message_without_fields_or_with_unknown_ones_is_refused(
    received: object, words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        from_fields(Request, received)


def test_an_experiment_survives_packing() -> None:
    assert unpack_experiment(pack_experiment("seed = 1  # żółć")) == "seed = 1  # żółć"
    unpack_experiment(pack_experiment("x" * EXPERIMENT_BYTES))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"seed = 1",
        pack_experiment("seed = 1")[:-1],
        pack_experiment("x" * (EXPERIMENT_BYTES + 1)),
        zlib.compress(bytes(1 << 28), 9),  # 260 KB that would take 256 MiB of memory
        zlib.compress(b"\xff\xfe"),
    ],
    ids=["empty", "plain", "cut", "long", "bomb", "no text"],
)
def test_an_experiment_that_is_not_a_short_compressed_text_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match="not a compressed text of at most 65536 bytes"):
        unpack_experiment(data)


def test_labels_name_experiment_and_run() -> None:
    labels = {label(digest, run) for digest in ("a" * 64, "b" * 64) for run in ("", "0" * 16)}
    assert len(labels) == 4 and {len(name) for name in labels} == {messages.LABEL_BYTES}
