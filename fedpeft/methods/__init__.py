"""The registry of methods: a method is one file here and one line below."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any

from fedpeft.errors import UserError, nearest, plain_message

if TYPE_CHECKING:
    from fedpeft.methods.base import Method
    from fedpeft.settings import MethodSettings
    from fedpeft.sites import BackboneShape

# Imported when first used: methods import torch, and the command line must start fast.
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
        UserError: no such method.
    """
    if not isinstance(name, str) or name not in REGISTRY:
        raise UserError(f"method.name = '{name}': unknown method{nearest(str(name), REGISTRY)}")
    module, _, attribute = REGISTRY[name].partition(":")
    return getattr(import_module(module), attribute)


def settings_for(values: Mapping[str, Any]) -> MethodSettings:
    """Check a method's settings, ``{"name": "slash", "d": 1024}``, and fill in its defaults.

    Raises:
        UserError: unknown method, a setting it does not have, a value outside its range.
    """
    from pydantic import ValidationError

    name = values.get("name", "slash")
    settings = method_class(name).Settings
    unknown = [key for key in values if key not in settings.model_fields]
    if unknown:
        own = [key for key in settings.model_fields if key != "name"]
        has = f"it has: {', '.join(own)}" if own else "it has none"
        raise UserError(f"unknown key 'method.{unknown[0]}': not a setting of {name}; {has}")
    try:
        return settings.model_validate({**values, "name": name})
    except ValidationError as error:
        first, *others = error.errors()
        key = first["loc"][0]  # what follows names a variant of its type: each has its own message
        messages = [each["msg"] for each in (first, *others) if each["loc"][0] == key]
        expected = ", or ".join(dict.fromkeys(plain_message(message) for message in messages))
        raise UserError(f"method.{key} = {first['input']!r}: expected {expected}") from None


def default_lr(name: str) -> float:
    """Return the local learning rate a method uses when none is given."""
    return method_class(name).lr


def build_method(settings: MethodSettings, shape: BackboneShape, seed: int) -> Method[Any]:
    """Return the method of these settings on a backbone of this shape."""
    return method_class(settings.name)(settings, shape, seed)
