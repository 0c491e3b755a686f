"""What each method does to a transformer, from its paper's equation, for ``written_states``.

``written(model, params)`` returns the arguments of ``written_states`` for the parameters of one
group. ``full`` and ``said`` change weights: ``changed_weights`` returns by how much.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import torch
from literal import Params, Seen, fastfood_matrix
from small_families import PRE_NORM
from torch import Tensor
from torch.nn.functional import gelu, relu

from fedpeft.model import TaskModel
from fedpeft.projection import Projection

Site = tuple[str, int]
#: (site, layer, hidden, seen) -> what is added to hidden, or None.
Added = Callable[[str, int, Tensor, Seen], Tensor | None]
ATTENTION = {"q", "k", "v", "heads", "attn_out", "attn_norm"}


def own(site: str) -> str:
    """Return a cross-attention's site as that of a self-attention."""
    if not site.startswith("cross_"):
        return site
    name = site.removeprefix("cross_")
    return f"attn_{name}" if f"attn_{name}" in ATTENTION else name


def adding(added: Added) -> dict[str, Any]:
    def change(site: str, layer: int, hidden: Tensor, seen: Seen) -> Tensor:
        more = added(site, layer, hidden, seen)
        return hidden if more is None else hidden + more

    return {"change": change}


def matrix(projection: Projection) -> Tensor:
    """Return W with entries of variance 1."""
    return torch.from_numpy(projection.transposed().T.copy()).double()


def state_after(model: TaskModel, sub_layer: str) -> str:
    """Return where to add to the state after a sub-layer.

    Without a norm behind a residual sum, the sum gets what its summand gets.
    """
    return f"{sub_layer}_out" if model.backbone.shape.family in PRE_NORM else f"{sub_layer}_norm"


def linear(model: TaskModel, params: Params) -> dict[str, Any]:
    return {}


def slash(model: TaskModel, params: Params) -> dict[str, Any]:
    settings, fixed = model.method.settings, {}
    for projection in model.method.projections():
        site, layer = projection.name.split("/")[1:]
        fixed[site, int(layer)] = matrix(projection) / projection.columns**0.5
    places = {"output": "ffn_out", "intermediate": "ffn_mid"}
    place = places.get(settings.position) or state_after(model, "attn")
    blocks = model.backbone.shape.layers

    def added(site: str, layer: int, hidden: Tensor, seen: Seen) -> Tensor | None:
        if own(site) != place:
            return None
        return fixed[site, layer] @ params["z"]

    assert {layer for _, layer in fixed} == set(range(blocks))
    return adding(added)


def jr_warp(model: TaskModel, params: Params) -> dict[str, Any]:
    length, width = model.method.settings.length, model.backbone.shape.width
    fixed = [matrix(p) / p.columns**0.5 for p in model.method.projections()]
    first, *later = [(W @ params["z"]).view(length, width) for W in fixed]
    place = state_after(model, "ffn")

    def added(site: str, layer: int, hidden: Tensor, seen: Seen) -> Tensor | None:
        if site != place or layer >= len(later):
            return None
        after = hidden.new_zeros(hidden.shape[1] - length, width)
        return torch.cat([later[layer], after])

    return {**adding(added), "prompt": first}


def prompt(model: TaskModel, params: Params) -> dict[str, Any]:
    return {"prompt": params["prompt"]}


def prefix(model: TaskModel, params: Params) -> dict[str, Any]:
    prefixes = {}
    for name in params:
        layer, _, part = name.partition(".")
        if part.endswith("prefix_keys"):
            kind = "cross_kv" if part.startswith("cross") else "kv"
            values = params[name.replace("keys", "values")]
            prefixes[int(layer), kind] = (params[name], values)
    return {"prefix": prefixes}


def bitfit(model: TaskModel, params: Params) -> dict[str, Any]:
    return adding(lambda site, layer, hidden, seen: params.get(f"{layer}.{site}", params.get(site)))


def low_rank(matrices: Params, scale: float) -> dict[str, Any]:
    def added(site: str, layer: int, hidden: Tensor, seen: Seen) -> Tensor | None:
        at = f"{layer}.{site}"
        if f"{at}.A" not in matrices:
            return None
        return scale * (seen[f"{site} <"] @ matrices[f"{at}.A"].T) @ matrices[f"{at}.B"].T

    return adding(added)


def lora(model: TaskModel, params: Params) -> dict[str, Any]:
    settings = model.method.settings
    return low_rank(params, settings.alpha / settings.rank)


def vera(model: TaskModel, params: Params) -> dict[str, Any]:
    down, up = (matrix(p) * (2 / p.columns) ** 0.5 for p in model.method.projections())

    def added(site: str, layer: int, hidden: Tensor, seen: Seen) -> Tensor | None:
        if own(site) not in ("q", "v"):
            return None
        d, b = params[f"{layer}.{site}.d"], params[f"{layer}.{site}.b"]
        return b * ((d * (seen[f"{site} <"] @ down.T)) @ up[: len(b)].T)

    return adding(added)


def uni_lora(model: TaskModel, params: Params) -> dict[str, Any]:
    (selection,) = model.method.projections()
    picked = torch.from_numpy(selection.picked())
    counts = picked.bincount(minlength=selection.columns).double()
    entries = params["theta"][picked] / counts[picked].sqrt()
    matrices, rank = {}, model.method.settings.rank
    weights = {name: shape for name, shape in sizes(model).items() if own(name[1]) in ("q", "v")}
    for (layer, site), (outputs, inputs) in weights.items():
        for name, shape in (("A", (rank, inputs)), ("B", (outputs, rank))):
            matrices[f"{layer}.{site}.{name}"] = entries[: prod(shape)].view(shape)
            entries = entries[prod(shape) :]
    assert len(entries) == 0
    return low_rank(matrices, 1.0)


def sizes(model: TaskModel) -> dict[tuple[int, str], tuple[int, int]]:
    """Return (outputs, inputs) of q and v of every attention, in the order of the computation."""
    shape = model.backbone.shape
    config: Any = model.backbone.model.config
    head = {"qwen3": 8, "t5": 5, "t5-gated": 5}.get(shape.family, shape.width // shape.heads)
    keys = getattr(config, "num_key_value_heads", None) or shape.heads
    result = {}
    for layer in range(shape.layers):
        crossed = layer >= shape.layers - shape.decoder_layers
        for kind in ("", "cross_")[: 1 + crossed]:
            result[layer, f"{kind}q"] = (shape.heads * head, shape.width)
            result[layer, f"{kind}v"] = (keys * head, shape.width)
    return result


def bottleneck(params: Params, at: str, x: Tensor) -> Tensor:
    inner = relu(x @ params[f"{at}.down"].T + params[f"{at}.down_bias"])
    return inner @ params[f"{at}.up"].T + params[f"{at}.up_bias"]


def houlsby(model: TaskModel, params: Params) -> dict[str, Any]:
    def added(site: str, layer: int, hidden: Tensor, seen: Seen) -> Tensor | None:
        if own(site) not in ("attn_out", "ffn_out"):
            return None
        return bottleneck(params, f"{layer}.{site}", hidden)

    return adding(added)


def pfeiffer(model: TaskModel, params: Params) -> dict[str, Any]:
    def added(site: str, layer: int, hidden: Tensor, seen: Seen) -> Tensor | None:
        if site != "ffn_sum":
            return None
        return bottleneck(params, f"{layer}.ffn_sum", seen["normed_sum"])

    return adding(added)


def parallel_adapter(model: TaskModel, params: Params) -> dict[str, Any]:
    settings = model.method.settings
    changed, reads = {"attention": ("heads", "q <"), "ffn": ("ffn_out", "ffn_mid <")}[
        settings.position
    ]

    def added(site: str, layer: int, hidden: Tensor, seen: Seen) -> Tensor | None:
        if own(site) != changed:
            return None
        kind = "cross_" if site.startswith("cross_") else ""
        scale = params.get(f"{layer}.{kind}scale", getattr(settings, "scale", 1.0))
        return scale * bottleneck(params, f"{layer}.{site}", seen[kind + reads])

    return adding(added)


def multihead_parallel_adapter(model: TaskModel, params: Params) -> dict[str, Any]:
    heads = model.backbone.shape.heads

    def added(site: str, layer: int, hidden: Tensor, seen: Seen) -> Tensor | None:
        if own(site) != "heads":
            return None
        kind = site.removesuffix("heads")
        parts = (seen[f"{kind}q"], params[f"{layer}.{kind}keys"], params[f"{layer}.{kind}values"])
        each = zip(*(part.chunk(heads, dim=-1) for part in parts), strict=True)
        return torch.cat([relu(q @ P_k.T) @ P_v for q, P_k, P_v in each], dim=-1)

    return adding(added)


def mam(model: TaskModel, params: Params) -> dict[str, Any]:
    scale = model.method.settings.scale

    def added(site: str, layer: int, hidden: Tensor, seen: Seen) -> Tensor | None:
        if site != "ffn_out":
            return None
        return scale * bottleneck(params, f"{layer}.ffn_out", seen["ffn_mid <"])

    return {**adding(added), **prefix(model, params)}


def compacter(model: TaskModel, params: Params) -> dict[str, Any]:
    def kronecker(at: str) -> Tensor:
        sides = (params["rule"], params[f"{at}_left"], params[f"{at}_right"])
        return sum(torch.kron(A, s @ t) for A, s, t in zip(*sides, strict=True))

    def added(site: str, layer: int, hidden: Tensor, seen: Seen) -> Tensor | None:
        at = f"{layer}.{site}"
        if f"{at}.gain" in params:
            return params[f"{at}.gain"] * normed(model, seen[f"{site} <"]) + params.get(
                f"{at}.bias", 0.0
            )
        if f"{at}.down_left" not in params:
            return None
        inner = gelu(hidden @ kronecker(f"{at}.down").T + params[f"{at}.down_bias"])
        return inner @ kronecker(f"{at}.up").T + params[f"{at}.up_bias"]

    return adding(added)


def normed(model: TaskModel, x: Tensor) -> Tensor:
    raise NotImplementedError("trained norms are tested by merging them")


WRITTEN: dict[str, Callable[[TaskModel, Params], dict[str, Any]]] = {
    "linear": linear,
    "slash": slash,
    "jr_warp": jr_warp,
    "prompt": prompt,
    "prefix": prefix,
    "bitfit": bitfit,
    "lora": lora,
    "vera": vera,
    "uni_lora": uni_lora,
    "houlsby": houlsby,
    "pfeiffer": pfeiffer,
    "parallel_adapter": parallel_adapter,
    "scaled_parallel_adapter": parallel_adapter,
    "multihead_parallel_adapter": multihead_parallel_adapter,
    "mam": mam,
    "compacter": compacter,
}


def changed_weights(model: TaskModel, params: Params) -> Params:
    """Return the change of each weight by ``full`` or ``said``."""
    weights = dict(model.backbone.model.named_parameters())
    if type(model.method).__name__ == "Full":
        return {name: params[name] for name in weights}
    changes = {}
    for projection in model.method.projections():
        name = projection.name.removeprefix("said/")
        shape = weights[name].shape
        change = fastfood_matrix(projection) @ params["theta"] / prod(shape) ** 0.5
        changes[name] = params["lambda"][layer_of(model, name)] * change.view(shape)
    assert set(changes) == set(weights)
    return changes


def layer_of(model: TaskModel, name: str) -> int:
    """Return 1 + block of a weight's name, 0 outside the blocks."""
    numbers = [int(part) for part in name.split(".") if part.isdecimal()]
    first = model.backbone.shape.layers - model.backbone.shape.decoder_layers
    if not numbers:
        return 0
    return 1 + numbers[0] + (first if name.startswith("decoder") else 0)
