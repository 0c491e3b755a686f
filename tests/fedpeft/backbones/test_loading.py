"""Backbones: loading, sharing, fingerprints, and errors."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import AutoConfig, AutoModel, BertConfig, BertModel

from fedpeft.backbones import hub
from fedpeft.backbones.fingerprint import fingerprint_of
from fedpeft.backbones.hardware import choose_device
from fedpeft.backbones.known import KNOWN_SHAPES, shape_of_config
from fedpeft.backbones.loading import load_backbone
from fedpeft.backbones.tiny import tiny_tokenizer
from fedpeft.errors import UserError

#: The published configurations, from the checkpoints' config.json on the hub.
PUBLISHED = {
    "roberta-base": ("roberta", 50265, 768, 12, 3072, 514, 1),
    "roberta-large": ("roberta", 50265, 1024, 24, 4096, 514, 1),
    "bert-base-cased": ("bert", 28996, 768, 12, 3072, 512, 2),
    "bert-base-uncased": ("bert", 30522, 768, 12, 3072, 512, 2),
    "bert-large-cased": ("bert", 28996, 1024, 24, 4096, 512, 2),
    "bert-large-uncased": ("bert", 30522, 1024, 24, 4096, 512, 2),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_known_shapes_equal_the_architectures(name: str) -> None:
    family, vocabulary, width, layers, intermediate, positions, types = PUBLISHED[name]
    config = AutoConfig.for_model(
        family,
        vocab_size=vocabulary,
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=width // 64,
        intermediate_size=intermediate,
        max_position_embeddings=positions,
        type_vocab_size=types,
    )
    with torch.device("meta"):
        model = AutoModel.from_config(config, add_pooling_layer=False)
    assert shape_of_config(model.config) == KNOWN_SHAPES[name]


@pytest.mark.parametrize("name", ["minilm", "tiny"])
def test_known_shapes_equal_the_loaded_backbones(name: str) -> None:
    assert load_backbone(name).shape == KNOWN_SHAPES[name]


def test_backbone_is_loaded_once_and_frozen() -> None:
    backbone = load_backbone("tiny")
    assert load_backbone("tiny") is backbone
    assert not backbone.model.training
    assert not any(parameter.requires_grad for parameter in backbone.model.parameters())


def test_tiny_fingerprint_is_fixed() -> None:
    """The fingerprint is part of the handshake, so it must not depend on the process."""
    assert load_backbone("tiny").fingerprint == load_backbone("tiny", dtype="float64").fingerprint
    assert load_backbone("tiny").fingerprint.startswith("735680e1d4eeff3c")


def save_bert(path: Path, seed: int = 0) -> None:
    """Write a small BERT with a tokenizer as a folder that transformers can load."""
    tokenizer = tiny_tokenizer()
    torch.manual_seed(seed)
    config = BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        pad_token_id=tokenizer.pad_token_id,
    )
    BertModel(config).save_pretrained(path)
    tokenizer.save_pretrained(path)


def test_local_folder_loads(tmp_path: Path) -> None:
    save_bert(tmp_path)
    backbone = load_backbone(str(tmp_path))
    assert (backbone.shape.family, backbone.shape.layers, backbone.shape.width) == ("bert", 1, 16)
    assert backbone.shape.longest == 512


def test_a_tokenizer_with_tokens_without_an_embedding_is_refused(tmp_path: Path) -> None:
    save_bert(tmp_path)
    tokenizer = tiny_tokenizer()
    rows = len(tokenizer)
    tokenizer.add_tokens(["brandnew", "newer"])
    tokenizer.save_pretrained(tmp_path)
    expected = (
        f"its tokenizer has tokens up to number {rows + 1} \\(newer\\), its embedding only {rows} "
        f"rows, so 2 tokens have none"
    )
    with pytest.raises(UserError, match=expected):
        load_backbone(str(tmp_path))


def test_fingerprint_changes_with_weights_and_tokenizer(tmp_path: Path) -> None:
    paths = [tmp_path / name for name in ("a", "same", "weights", "tokenizer")]
    for path in paths:
        save_bert(path, seed=path.name == "weights")
    text = (paths[3] / "tokenizer.json").read_text()
    (paths[3] / "tokenizer.json").write_text(
        text.replace('"lowercase": true', '"lowercase": false')
    )
    a, same, weights, tokenizer = (load_backbone(str(path)).fingerprint for path in paths)
    assert a == same
    assert len({a, weights, tokenizer}) == 3


def test_fingerprint_changes_with_the_configuration(tmp_path: Path) -> None:
    for name in ("a", "b"):
        save_bert(tmp_path / name)
    path = tmp_path / "b" / "config.json"
    path.write_text(
        path.read_text().replace('"num_attention_heads": 2', '"num_attention_heads": 4')
    )
    a, b = (load_backbone(str(tmp_path / name)).fingerprint for name in ("a", "b"))
    assert a != b


def test_checkpoint_with_missing_weights_is_refused(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    save_bert(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    del weights["encoder.layer.0.output.dense.weight"]
    save_file(weights, tmp_path / "model.safetensors", {"format": "pt"})
    with pytest.raises(UserError, match=r"1 weights are missing.*layer.0.output.dense.weight"):
        load_backbone(str(tmp_path))


def test_truncated_weights_are_explained_in_one_line(tmp_path: Path) -> None:
    save_bert(tmp_path)
    path = tmp_path / "model.safetensors"
    path.write_bytes(path.read_bytes()[:200])
    with pytest.raises(UserError, match="holds no model that loads") as caught:
        load_backbone(str(tmp_path))
    assert "\n" not in str(caught.value)


def test_fingerprint_does_not_change_with_use() -> None:
    backbone = load_backbone("tiny")
    before = fingerprint_of(backbone.model, backbone.tokenizer)
    backbone.tokenizer(["some text"], truncation=True, max_length=4, padding=True)
    assert fingerprint_of(backbone.model, backbone.tokenizer) == before


def test_missing_folder_is_named() -> None:
    with pytest.raises(UserError, match=r"backbone './nowhere': no such folder"):
        load_backbone("./nowhere")


def test_folder_without_a_model_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="holds no model that loads"):
        load_backbone(str(tmp_path))


def test_unsupported_architecture_is_named(tmp_path: Path) -> None:
    from transformers import MT5Config

    MT5Config(d_model=8, num_heads=1, num_layers=1, d_ff=8).save_pretrained(tmp_path)
    with pytest.raises(UserError, match=r"a mt5 model, .* did you mean .*'t5'") as caught:
        load_backbone(str(tmp_path))
    assert "\n" not in str(caught.value)


def test_unknown_name_without_network_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert not hub.hub_reachable()
    with pytest.raises(UserError, match="did you mean 'roberta-base'") as caught:
        load_backbone("roberta-bas")
    assert "hub cannot be reached" in str(caught.value) and "'minilm'" in str(caught.value)


def test_unavailable_device_is_refused() -> None:
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    assert choose_device("auto").type in ("cpu", "mps")
    with pytest.raises(UserError, match=r"engine.device = 'cuda'"):
        choose_device("cuda")
