"""Tables of families, methods and exports, made from the maps of sites."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from parts.markdown import table

if TYPE_CHECKING:
    from fedpeft.export import Format
    from fedpeft.methods.base import Method

#: What a decoder, or an attention without transformers' interface, means for a family.
_KINDS = {1: "encoder", 2: "encoder-decoder"}


@lru_cache
def methods() -> dict[str, dict[str, Method[Any] | str]]:
    """Return family -> name -> the method on the family, or why the family refuses it.

    Families are those of transformers' default configurations, methods have default settings.
    """
    from transformers import AutoConfig

    from fedpeft.backbones.families import FAMILIES
    from fedpeft.backbones.known import shape_of_config
    from fedpeft.errors import UserError
    from fedpeft.methods import REGISTRY, build_method, settings_for

    built: dict[str, dict[str, Method[Any] | str]] = {}
    for family in FAMILIES:
        gated = {"feed_forward_proj": "gated-gelu"} if family.endswith("-gated") else {}
        config = AutoConfig.for_model(family.removesuffix("-gated"), **gated)
        built[family] = {}
        for name in REGISTRY:
            try:
                settings = settings_for({"name": name})
                built[family][name] = build_method(settings, shape_of_config(config), seed=0)
            except UserError as error:
                built[family][name] = str(error)
    return built


def refusals() -> dict[str, dict[str, str]]:
    """Return family -> method -> why the family refuses it, "" if it works."""
    return {
        family: {name: value if isinstance(value, str) else "" for name, value in row.items()}
        for family, row in methods().items()
    }


def families() -> str:
    """Return a row for each family: its kind, and what it cannot do."""
    from fedpeft.backbones.families import FAMILIES

    rows = []
    for name, family in FAMILIES.items():
        kind = _KINDS[len(family.stacks)]
        if kind == "encoder" and family.reads_last:
            kind = "decoder"
        norms = "before sub-layers" if family.pre_norm else "after residual sums"
        yes = [("packs", family.packs), ("keeps upper blocks", family.resumes)]
        extras = ", ".join(text for text, has in yes if has) or "-"
        refused = [f"`{method}`" for method, why in refusals()[name].items() if why]
        rows.append([f"`{name}`", kind, norms, extras, ", ".join(refused) or "-"])
    heads = ["model type", "kind", "norms", "passes", "methods that it lacks"]
    return table(heads, rows)


def matrix() -> str:
    """Return the table of methods and families: the pairs that the shared test covers."""
    found = refusals()
    rows = [
        [f"`{name}`", *("yes" if not found[family][name] else "-" for family in found)]
        for name in next(iter(found.values()))
    ]
    return table(["method", *(f"`{family}`" for family in found)], rows)


def reasons() -> str:
    """Return why families lack methods, each reason once."""
    grouped: dict[str, list[str]] = {}
    for family, methods in refusals().items():
        for name, why in methods.items():
            text = why.removeprefix(f"method '{name}': ").partition(";")[0]
            named = {"backbones have ": "", "backbones": "the family", "backbone ": ""}
            for said, short in named.items():
                text = text.replace(f"{family} {said}", short).removeprefix("this ")
            if text:
                grouped.setdefault(text, []).append(f"`{name}` on `{family}`")
    rows = [[text, ", ".join(pairs)] for text, pairs in grouped.items()]
    return table(["reason", "method"], rows)


def exports() -> str:
    """Return a row for each method: exact in each format, or why not, by family if they differ."""
    kinds: list[Format] = ["hf", "peft", "onnx"]
    names = next(iter(methods().values()))
    rows = [[f"`{name}`", *(_export(kind, name) for kind in kinds)] for name in names]
    return table(["method", *(f"`{kind}`" for kind in kinds)], rows)


def _export(kind: Format, name: str) -> str:
    """Return "exact", or the reasons why not, each with its families if others have others."""
    from fedpeft.backbones.families import FAMILIES
    from fedpeft.export.obstacles import Subject, obstacle

    said: dict[str, list[str]] = {}
    for family, built in methods().items():
        if not isinstance(built[name], str):
            reads = "last" if FAMILIES[family].reads_last else "cls"
            why = obstacle(kind, Subject(built[name], reads)) or "exact"
            for words in (f"method '{name}' ", f" for method '{name}'"):
                why = why.replace(words, "")
            said.setdefault(why, []).append(f"`{family}`")
    if len(said) == 1:
        return next(iter(said))
    return "; ".join(f"{why}: {', '.join(families)}" for why, families in said.items())


PARTS: dict[str, Callable[..., str]] = {
    "families": families,
    "family_matrix": matrix,
    "family_reasons": reasons,
    "exports": exports,
}
