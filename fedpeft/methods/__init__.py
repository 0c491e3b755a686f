"""Registry of methods. To add a method, add a file to this folder and a line to REGISTRY."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any

from fedpeft.errors import UserError, nearest, plain_message

if TYPE_CHECKING:
    from fedpeft.backbones.shapes import BackboneShape
    from fedpeft.methods.base import Method
    from fedpeft.methods.settings import MethodSettings

# Imported on first use: methods import torch, which slows the start of the command line.
REGISTRY = {
    "linear": "fedpeft.methods.linear:Linear",
    "slash": "fedpeft.methods.slash:Slash",
    "jr_warp": "fedpeft.methods.jr_warp:JRWarp",
    "prompt": "fedpeft.methods.prompt:PromptTuning",
    "prefix": "fedpeft.methods.prefix:Prefix",
    "bitfit": "fedpeft.methods.bitfit:BitFit",
    "lora": "fedpeft.methods.lora:LoRA",
    "vera": "fedpeft.methods.vera:VeRA",
    "uni_lora": "fedpeft.methods.uni_lora:UniLoRA",
    "houlsby": "fedpeft.methods.houlsby:Houlsby",
    "pfeiffer": "fedpeft.methods.pfeiffer:Pfeiffer",
    "parallel_adapter": "fedpeft.methods.parallel_adapter:ParallelAdapter",
    "scaled_parallel_adapter": "fedpeft.methods.scaled_parallel_adapter:ScaledParallelAdapter",
    "multihead_parallel_adapter": "fedpeft.methods.multihead_parallel_adapter:MultiheadAdapter",
    "mam": "fedpeft.methods.mam:MAM",
    "compacter": "fedpeft.methods.compacter:Compacter",
    "said": "fedpeft.methods.said:SAID",
    "full": "fedpeft.methods.full:Full",
}


def method_class(name: str) -> type[Method[Any]]:
    """Return the class of a method.

    Raises:
        UserError: unknown method.
    """
    if not isinstance(name, str) or name not in REGISTRY:
        raise UserError(f"method.name = '{name}': unknown method{nearest(str(name), REGISTRY)}")
    module, _, attribute = REGISTRY[name].partition(":")
    return getattr(import_module(module), attribute)


def settings_for(values: Mapping[str, Any]) -> MethodSettings:
    """Validate a method's settings, ``{"name": "slash", "d": 1024}``, and fill in defaults.

    Raises:
        UserError: unknown method, unknown setting, or a value out of range.
    """
    from pydantic import ValidationError

    name = values.get("name", "slash")
    settings = method_class(name).Settings
    unknown = [key for key in values if key not in settings.model_fields]
    if unknown:
        keys = [key for key in settings.model_fields if key != "name"]
        has = f"it has: {', '.join(keys)}" if keys else "it has none"
        raise UserError(f"unknown key 'method.{unknown[0]}': not a setting of {name}; {has}")
    try:
        return settings.model_validate({**values, "name": name})
    except ValidationError as error:
        errors = error.errors()
        key = errors[0]["loc"][0]  # the rest of loc is a variant of a union; each has a message
        messages = [variant["msg"] for variant in errors if variant["loc"][0] == key]
        expected = ", or ".join(dict.fromkeys(plain_message(message) for message in messages))
        raise UserError(f"method.{key} = {errors[0]['input']!r}: expected {expected}") from None


def default_lr(name: str) -> float:
    """Return a method's default local learning rate."""
    return method_class(name).lr


def build_method(settings: MethodSettings, shape: BackboneShape, seed: int) -> Method[Any]:
    """Return the method with these settings on a backbone of this shape."""
    return method_class(settings.name)(settings, shape, seed)
