"""The table of families and methods, made from the maps of sites."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

from parts.markdown import table

#: What a decoder, or an attention without transformers' interface, means for a family.
_KINDS = {1: "encoder", 2: "encoder-decoder"}


@lru_cache
def refusals() -> dict[str, dict[str, str]]:
    """Return family -> method -> why the family refuses it, "" if it works.

    Families are those of transformers' default configurations, methods have default settings.
    """
    from transformers import AutoConfig

    from fedpeft.backbones.families import FAMILIES
    from fedpeft.backbones.known import shape_of_config
    from fedpeft.errors import UserError
    from fedpeft.methods import REGISTRY, build_method, settings_for

    reasons: dict[str, dict[str, str]] = {}
    for family in FAMILIES:
        gated = {"feed_forward_proj": "gated-gelu"} if family.endswith("-gated") else {}
        config = AutoConfig.for_model(family.removesuffix("-gated"), **gated)
        reasons[family] = {}
        for name in REGISTRY:
            try:
                build_method(settings_for({"name": name}), shape_of_config(config), seed=0)
                reasons[family][name] = ""
            except UserError as error:
                reasons[family][name] = str(error)
    return reasons


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
    methods = list(next(iter(found.values())))
    rows = [
        [f"`{name}`", *("yes" if not found[family][name] else "-" for family in found)]
        for name in methods
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


PARTS: dict[str, Callable[..., str]] = {
    "families": families,
    "family_matrix": matrix,
    "family_reasons": reasons,
}
