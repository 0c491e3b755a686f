"""Shared tests over the registry, and each method against a literal forward or peft."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from literal import literal_encoder
from models import METHODS, batch_of, build_model, random_vectors
from torch import Tensor

from fedpeft.backbones import KNOWN_SHAPES, Backbone
from fedpeft.errors import UserError
from fedpeft.methods import REGISTRY, build_method, settings_for
from fedpeft.model import TaskModel, layout_of
from fedpeft.modifications import applied
from fedpeft.tasks.encoding import Batch

ATTENTION = ["sdpa", "eager"]


@pytest.fixture(params=ATTENTION)
def attention(request: pytest.FixtureRequest, backbone: Backbone) -> Iterator[Backbone]:
    """Both backbones with both attention implementations."""
    before = backbone.model.config._attn_implementation
    backbone.model.set_attn_implementation(request.param)
    yield backbone
    backbone.model.set_attn_implementation(before)


def states(model: TaskModel, vectors: Tensor, batch: Batch) -> Tensor:
    """Return the last hidden states [N, k + T, width] of the engine, at positions with text."""
    found = model._hidden_states(model.realise(vectors).modifications, batch)
    prompts = found.shape[1] - batch.input_ids.shape[1]
    mask = torch.nn.functional.pad(batch.attention_mask, (prompts, 0), value=1)
    return found * mask[:, :, None]


def per_row(value: Tensor, batch: Batch) -> Tensor:
    """Return a group's value [G, ...] for each of its rows [N, ...]."""
    return value.repeat_interleave(len(batch.read) // len(value), dim=0)


def masked(hidden: Tensor, batch: Batch) -> Tensor:
    """Return hidden states with zeros where there is no text."""
    prompts = hidden.shape[1] - batch.input_ids.shape[1]
    mask = torch.nn.functional.pad(batch.attention_mask, (prompts, 0), value=1)
    return hidden * mask[:, :, None]


def test_without_modifications_the_literal_encoder_is_the_backbone(attention: Backbone) -> None:
    batch = batch_of(attention, 1, 6)
    model = build_model(attention, "linear")
    expected = literal_encoder(attention.model, batch.input_ids, batch.attention_mask)
    found = states(model, random_vectors(model, 1), batch)
    torch.testing.assert_close(found, masked(expected, batch), rtol=0, atol=1e-9)


@pytest.mark.parametrize("position", ["output", "intermediate", "attention"])
@pytest.mark.parametrize("init", ["normal", "uniform", "zeros"])
def test_slash_equals_its_equation(attention: Backbone, position: str, init: str) -> None:
    model = build_model(attention, "slash", d=9, position=position, init=init)
    batch, vectors = batch_of(attention, 2, 3), random_vectors(model, 2)
    place = {"output": "ffn_out", "intermediate": "ffn_mid", "attention": "attn_norm"}[position]
    weights = [
        torch.from_numpy(p.transposed().T.copy()).double() / 9**0.5
        for p in model.method.projections()
    ]

    def shift(site: str, layer: int, hidden: Tensor, source: Tensor) -> Tensor:
        if site != place:
            return hidden
        z_l = torch.stack([weights[layer] @ z for z in vectors[:, :9]])  # z_l = W_l z
        return hidden + per_row(z_l, batch)[:, None]

    expected = literal_encoder(attention.model, batch.input_ids, batch.attention_mask, shift)
    found = states(model, vectors, batch)
    torch.testing.assert_close(found, masked(expected, batch), rtol=0, atol=1e-9)


def test_slash_with_identity_shifts_by_z_itself(tiny: Backbone) -> None:
    model = build_model(tiny, "slash", d=tiny.shape.width, init="identity")
    vectors = random_vectors(model, 2)
    for modification in model.realise(vectors).modifications:
        torch.testing.assert_close(modification.value, vectors[:, : tiny.shape.width])


@pytest.mark.parametrize("length", [1, 3])
def test_jr_warp_equals_its_equation(attention: Backbone, length: int) -> None:
    model = build_model(attention, "jr_warp", d=9, length=length)
    batch, vectors = batch_of(attention, 2, 3), random_vectors(model, 2)
    prompts = []
    for projection in model.method.projections():
        weight = torch.from_numpy(projection.transposed().T.copy()).double() / 9**0.5
        flat = torch.stack([weight @ z for z in vectors[:, :9]])
        prompts.append(per_row(flat.view(2, length, -1), batch))

    def add_before_next_block(site: str, layer: int, hidden: Tensor, source: Tensor) -> Tensor:
        if site != "ffn_norm" or layer + 1 == len(prompts):
            return hidden
        hidden = hidden.clone()
        hidden[:, :length] += prompts[layer + 1]
        return hidden

    expected = literal_encoder(
        attention.model, batch.input_ids, batch.attention_mask, add_before_next_block, prompts[0]
    )
    found = states(model, vectors, batch)
    torch.testing.assert_close(found, masked(expected, batch), rtol=0, atol=1e-9)


def test_jr_warp_reads_the_mask_behind_the_prompt(tiny: Backbone) -> None:
    batch = batch_of(tiny, 1, 4, "mask")
    right = build_model(tiny, "jr_warp", d=4, length=2)
    original = build_model(tiny, "jr_warp", d=4, length=2, reference_compat=True)
    vectors = random_vectors(right, 1)
    hidden = right._hidden_states(right.realise(vectors).modifications, batch)
    rows = torch.arange(4)
    realised = right.realise(vectors)
    for model, offset in ((right, 2), (original, 0)):
        read = hidden[rows, batch.read + offset]
        expected = read @ realised.head_weight[0].T + realised.head_bias[0]
        torch.testing.assert_close(model.outputs(realised, batch), expected)


@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing.*:FutureWarning")  # peft's
def test_lora_equals_peft(attention: Backbone) -> None:
    import copy

    from peft import LoraConfig, get_peft_model

    model = build_model(attention, "lora", rank=2, alpha=6.0)
    batch, vectors = batch_of(attention, 1, 5), random_vectors(model, 1)
    config = LoraConfig(r=2, lora_alpha=6, target_modules=["query", "value"])
    other = get_peft_model(copy.deepcopy(attention.model), config).double().eval()
    names = {"q": "query", "v": "value"}
    own = model.layout.unpack(vectors)
    with torch.no_grad():
        for layer in range(attention.shape.layers):
            block = other.base_model.model.encoder.layer[layer].attention.self
            for site, name in names.items():
                adapter = getattr(block, name)
                adapter.lora_A["default"].weight.copy_(own[f"{layer}.{site}.A"][0])
                adapter.lora_B["default"].weight.copy_(own[f"{layer}.{site}.B"][0])
        expected = other(
            input_ids=batch.input_ids, attention_mask=batch.attention_mask
        ).last_hidden_state
    found = states(model, vectors, batch)
    torch.testing.assert_close(found, masked(expected, batch), rtol=0, atol=1e-9)


@pytest.mark.parametrize("name", METHODS)
def test_groups_do_not_see_each_other(backbone: Backbone, name: str) -> None:
    model = build_model(backbone, name)
    batch, vectors = batch_of(backbone, 3, 2), random_vectors(model, 3)
    together = model.outputs(model.realise(vectors), batch).view(3, 2, -1)
    for group in range(3):
        fields = {
            key: value[2 * group : 2 * group + 2]
            for key, value in vars(batch).items()
            if key != "groups"
        }
        alone = model.outputs(model.realise(vectors[group : group + 1]), Batch(**fields, groups=1))
        torch.testing.assert_close(together[group], alone, rtol=0, atol=1e-10)


@pytest.mark.parametrize("name", ["lora", "slash"])
def test_identity_at_the_start(tiny: Backbone, name: str) -> None:
    settings = {"d": 8, "init": "zeros"} if name == "slash" else {"rank": 2}
    model = build_model(tiny, name, **settings)
    batch = batch_of(tiny, 1, 4)
    start = torch.from_numpy(model.initial(seed=0))[None]
    plain = tiny.model(input_ids=batch.input_ids, attention_mask=batch.attention_mask)
    found = states(model, start, batch)
    torch.testing.assert_close(found, masked(plain.last_hidden_state, batch), rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", METHODS)
def test_training_changes_no_weight_of_the_backbone(tiny: Backbone, name: str) -> None:
    before = {key: value.clone() for key, value in tiny.model.state_dict().items()}
    model = build_model(tiny, name)
    gradient, _ = model.gradients(random_vectors(model, 2), batch_of(tiny, 2, 3))
    assert (gradient != 0).any(dim=0).all(), "a parameter that no example can change"
    assert all(torch.equal(before[key], value) for key, value in tiny.model.state_dict().items())
    assert all(parameter.grad is None for parameter in tiny.model.parameters())


def test_hooks_are_gone_after_an_error(tiny: Backbone) -> None:
    modifications = build_model(tiny, "slash").realise(torch.zeros(1, 78).double()).modifications
    with pytest.raises(ZeroDivisionError), applied(tiny.model, "roberta", modifications):
        raise ZeroDivisionError
    hooks = [m._forward_hooks or m._forward_pre_hooks for m in tiny.model.modules()]
    assert not any(hooks)


COUNTS = [
    ("roberta-large", 3, "linear", {}, 3_075),
    ("roberta-large", 3, "slash", {"d": 1024}, 4_099),
    ("roberta-large", 3, "slash", {"d": 2048}, 5_123),
    ("roberta-large", 3, "slash", {"d": 10_000}, 13_075),
    ("roberta-large", 3, "jr_warp", {"d": 10_000}, 13_075),
    ("roberta-large", 3, "lora", {"rank": 1}, 101_379),
    ("roberta-base", 3, "slash", {"d": 1024}, 3_331),
    ("roberta-base", 3, "slash", {"d": 5000}, 7_307),
    ("roberta-base", 3, "lora", {"rank": 1}, 39_171),
    ("bert-base-cased", 9, "linear", {}, 6_921),
    ("bert-base-cased", 9, "slash", {"d": 1024}, 7_945),
    ("bert-base-cased", 9, "lora", {"rank": 1}, 43_785),
    ("minilm", 2, "slash", {"d": 1024}, 1_794),
]


@pytest.mark.parametrize(("backbone_name", "classes", "name", "settings", "count"), COUNTS)
def test_parameter_counts_of_the_papers(
    backbone_name: str, classes: int, name: str, settings: dict[str, int], count: int
) -> None:
    """Gupta et al. 2023, tables 2 to 4, head included."""
    method = build_method(
        settings_for({"name": name, **settings}), KNOWN_SHAPES[backbone_name], seed=0
    )
    assert layout_of(method, classes).size == count


def test_counts_agree_with_the_reference_table() -> None:
    path = Path(__file__).resolve().parents[2].parent / "shared/reference/counts.json"
    if not path.exists():
        pytest.skip(f"no {path}")
    arguments = {"slash": {"d": "d"}, "jr_warp": {"d": "d"}, "lora": {"r": "rank"}, "linear": {}}
    checked = 0
    for row in json.loads(path.read_text())["rows"]:
        known = arguments.get(row["method"])
        if known is None or row["model"] not in KNOWN_SHAPES or not set(row["args"]) <= set(known):
            continue
        settings = {known[key]: value for key, value in row["args"].items()}
        method = build_method(
            settings_for({"name": row["method"], **settings}), KNOWN_SHAPES[row["model"]], seed=0
        )
        layout = layout_of(method, row["C"] or 1)
        without_head = row["C"] is None
        assert layout.size - without_head * layout.head_size == row["built"], row
        checked += 1
    assert checked >= 8


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"name": "slsh"}, "did you mean 'slash'?"),
        ({"name": "slash", "rank": 2}, "not a setting of slash; it has: d, position, init"),
        ({"name": "linear", "d": 2}, "it has none"),
        ({"name": "slash", "d": 0}, "method.d = 0: expected greater than or equal to 1"),
        ({"name": "lora", "rank": 0}, "method.rank = 0"),
        ({"name": "slash", "init": "ones"}, "method.init = 'ones'"),
    ],
)
def test_wrong_settings_are_refused(values: dict[str, object], words: str) -> None:
    with pytest.raises(UserError, match=words.replace("?", r"\?").replace("(", r"\(")):
        settings_for(values)


def test_identity_needs_d_equal_to_the_width() -> None:
    settings = settings_for({"name": "slash", "init": "identity", "d": 5})
    with pytest.raises(UserError, match=r"method.d = 5: expected 384"):
        build_method(settings, KNOWN_SHAPES["minilm"], seed=0)


def test_every_method_names_its_source() -> None:
    from fedpeft.methods import method_class

    assert all(method_class(name).source and method_class(name).lr > 0 for name in REGISTRY)
