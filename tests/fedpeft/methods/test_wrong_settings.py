"""Wrong settings of methods are explained in one line with the value and what is expected."""

from __future__ import annotations

import re

import pytest

from fedpeft.backbones.known import KNOWN_SHAPES
from fedpeft.errors import UserError
from fedpeft.experiment.config import Experiment
from fedpeft.methods import REGISTRY, build_method, method_class, settings_for
from fedpeft.runtime import Runtime

TINY = KNOWN_SHAPES["tiny"]  # 2 blocks of width 32, FFN 64


def assert_one_line(caught: pytest.ExceptionInfo[UserError], words: str) -> None:
    assert re.search(re.escape(words), str(caught.value)), caught.value
    assert "\n" not in str(caught.value) and "Value error" not in str(caught.value)


@pytest.mark.parametrize("name", REGISTRY)
def test_unknown_setting_lists_the_settings_of_the_method(name: str) -> None:
    keys = [key for key in method_class(name).Settings.model_fields if key != "name"]
    words = f"it has: {', '.join(keys)}" if keys else "it has none"
    with pytest.raises(UserError) as caught:
        settings_for({"name": name, "nonsense": 1})
    assert_one_line(caught, f"unknown key 'method.nonsense': not a setting of {name}; {words}")


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"name": "slsh"}, "did you mean 'slash'?"),
        ({"name": "slash", "rank": 2}, "not a setting of slash; it has: d, position, layers, init"),
        ({"name": "linear", "d": 2}, "not a setting of linear; it has none"),
        ({"name": "slash", "d": 0}, "method.d = 0: expected greater than or equal to 1, or 'max'"),
        ({"name": "slash", "d": "mx"}, "or 'max'"),
        ({"name": "slash", "d": 1.5}, "method.d = 1.5: expected a valid integer"),
        ({"name": "slash", "init": "ones"}, "method.init = 'ones'"),
        ({"name": "slash", "layers": "6-x"}, "method.layers = '6-x': expected 'all', 'upper half'"),
        ({"name": "slash", "layers": ""}, "and ranges such as 0,6-11"),
        ({"name": "slash", "layers": "-1"}, "method.layers = '-1'"),
        ({"name": "slash", "layers": "5-3"}, "numbers and ranges such as 0,6-11"),
        ({"name": "slash", "layers": []}, "at least 1 item"),
        ({"name": "slash", "layers": [-1]}, "greater than or equal to 0"),
        ({"name": "lora", "rank": 0}, "method.rank = 0"),
        ({"name": "lora", "alpha": 0}, "method.alpha = 0: expected greater than 0"),
        ({"name": "lora", "sites": "q,z"}, "method.sites = 'z': expected 'q', 'k', 'v', 'o' or"),
        ({"name": "lora", "sites": ""}, "method.sites = ''"),
        ({"name": "lora", "sites": []}, "at least 1 item"),
        ({"name": "lora", "sites": 3}, "method.sites = 3"),
        ({"name": "prompt", "placement": "end"}, "expected 'start' or 'template'"),
        ({"name": "prefix", "length": 0}, "method.length = 0"),
        ({"name": "prefix", "hidden": -1}, "method.hidden = -1"),
        ({"name": "houlsby", "bottleneck": 0}, "method.bottleneck = 0"),
        ({"name": "parallel_adapter", "position": "output"}, "'attention' or 'ffn'"),
        ({"name": "scaled_parallel_adapter", "scale": 0}, "method.scale = 0"),
        ({"name": "mam", "scale": -2}, "method.scale = -2"),
        ({"name": "vera", "rank": 0}, "method.rank = 0"),
        ({"name": "jr_warp", "length": 0}, "method.length = 0"),
    ],
)
def test_value_out_of_range_is_refused(values: dict[str, object], words: str) -> None:
    with pytest.raises(UserError) as caught:
        settings_for(values)
    assert_one_line(caught, words)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        (
            {"name": "slash", "d": 65},
            "method.d = 65: slash shifts 2 x 32 activations of this backbone; "
            "expected at most 64, or 'max'",
        ),
        ({"name": "slash", "d": 129, "position": "intermediate"}, "expected at most 128, or 'max'"),
        ({"name": "slash", "d": 33, "layers": "1"}, "slash shifts 1 x 32 activations"),
        (
            {"name": "slash", "d": 8, "layers": "0,9"},
            "method.layers: this backbone has no block 9; expected 0 to 1",
        ),
        (
            {"name": "slash", "d": 5, "init": "identity"},
            "method.d = 5: expected 32, the width of the shifted activations",
        ),
        ({"name": "slash", "d": "max", "init": "identity"}, "method.d = 64: expected 32"),
        (
            {"name": "compacter", "n": 3, "reduction": 4},
            "method.reduction = 4, method.n = 3: the width 32 of the backbone must be a multiple",
        ),
        ({"name": "compacter", "reduction": 5}, "method.reduction = 5, method.n = 4"),
        ({"name": "compacter"}, "method.reduction = 32, method.n = 4"),
        (
            {"name": "uni_lora", "rank": 1, "d": 257},
            "method.d = 257: rank 1 has 256 entries to fill on this backbone; expected at most 256",
        ),
        ({"name": "said", "d": 3}, "method.d = 3: 3 parameters scale layers; expected more"),
    ],
)
def test_value_that_does_not_fit_the_backbone_is_refused(
    values: dict[str, object], words: str
) -> None:
    settings = settings_for(values)
    with pytest.raises(UserError) as caught:
        build_method(settings, TINY, seed=0)
    assert_one_line(caught, words)


@pytest.mark.parametrize(
    "values",
    [
        {"name": "slash", "d": 64},
        {"name": "slash", "d": "max", "init": "identity", "layers": "0"},
        {"name": "compacter", "n": 8, "reduction": 4},
        {"name": "uni_lora", "rank": 1, "d": 256},
        {"name": "said", "d": 4},
    ],
)
def test_largest_fitting_value_is_accepted(values: dict[str, object]) -> None:
    assert build_method(settings_for(values), TINY, seed=0).parameters()


@pytest.mark.parametrize(
    ("toml", "sites"),
    [
        ('sites = ["q", "ffn"]', ("q", "ffn")),
        ('sites = "q,v"', ("q", "v")),
        ('sites = "k , o"', ("k", "o")),
        ("", ("q", "v")),
    ],
)
def test_sites_can_be_a_list_or_a_string(toml: str, sites: tuple[str, ...]) -> None:
    experiment = Experiment.load(f'[method]\nname = "lora"\n{toml}')
    assert experiment.method.sites == sites
    again = Experiment.load(experiment.to_toml(comments=True))
    assert again == experiment and again.digest == experiment.digest
    typed = ["method.name=lora", f"method.sites={','.join(sites)}"]
    assert Experiment.load("", typed) == experiment


@pytest.mark.parametrize(
    ("override", "layers"),
    [("6-8,0", (6, 7, 8, 0)), ("all", "all"), ("[1, 2]", (1, 2)), ("2,4", (2, 4))],
)
def test_blocks_can_be_a_list_or_a_string(override: str, layers: object) -> None:
    experiment = Experiment.load("", [f"method.layers={override}"])
    assert experiment.method.layers == layers
    assert Experiment.load(experiment.to_toml()) == experiment


@pytest.mark.parametrize("name", [name for name in REGISTRY if not method_class(name).grouped])
def test_methods_that_change_weights_refuse_cohorts(name: str) -> None:
    words = f"engine.cohort = 2: method '{name}' changes whole weights"
    with pytest.raises(UserError) as caught:
        Experiment.load("", [f"method.name={name}", "engine.cohort=2"])
    assert_one_line(caught, words)
    assert Experiment.load("", [f"method.name={name}"]).engine.cohort == 0  # automatic


TEMPLATE = [
    "backbone=tiny",
    "method.name=prompt",
    "method.placement=template",
    "task.train_limit=8",
    "task.eval_limit=8",
]


@pytest.mark.parametrize("other", ["representation=cls", "task.name=synthetic/entities"])
def test_template_requires_the_mask_representation(other: str) -> None:
    runtime = Runtime(Experiment.load("", [*TEMPLATE, other]))
    with pytest.raises(UserError) as caught:
        _ = runtime.model
    assert_one_line(caught, "expected representation = 'mask' and labels of texts, got")


def test_template_uses_positions_of_the_backbone() -> None:
    """The tiny backbone has 130 positions; a prompt before the text uses none."""

    def load(*settings: str) -> Runtime:
        return Runtime(Experiment.load("", [*TEMPLATE, "method.length=20", *settings]))

    with pytest.raises(UserError) as caught:
        _ = load("task.max_length=111").parameters
    assert_one_line(caught, "task.max_length = 111: 'tiny' reads at most 110 tokens of a text")
    for fitting in (["task.max_length=110"], ["task.max_length=130", "method.placement=start"]):
        runtime = load(*fitting)
        assert runtime.parameters.method.tokens in (0, 20) and len(runtime.train) == 8
