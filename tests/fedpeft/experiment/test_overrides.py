"""Changes to trees of settings."""

from __future__ import annotations

import pytest

from fedpeft.errors import UserError
from fedpeft.experiment.config import Experiment
from fedpeft.experiment.overrides import apply_override, leaves, merged, set_key


def test_merged_prefers_changes_and_mutates_neither_tree() -> None:
    values = {"seed": 1, "task": {"name": "sst2", "path": "a"}}
    changes = {"task": {"path": "b"}, "local": {"lr": 0.1}}
    assert merged(values, changes) == {
        "seed": 1,
        "task": {"name": "sst2", "path": "b"},
        "local": {"lr": 0.1},
    }
    assert values == {"seed": 1, "task": {"name": "sst2", "path": "a"}}
    assert changes == {"task": {"path": "b"}, "local": {"lr": 0.1}}


@pytest.mark.parametrize("order", [("name", "rank"), ("rank", "name")])
def test_merged_clears_the_section_for_another_method(order: tuple[str, ...]) -> None:
    new = {"name": "lora", "rank": 3}
    changes = {"method": {key: new[key] for key in order}}
    assert merged({"method": {"name": "slash", "d": 9}}, changes) == {"method": new}
    same = {"method": {"name": "slash", "position": "x"}}
    assert merged({"method": {"name": "slash", "d": 9}}, same)["method"]["d"] == 9


def test_leaves_have_full_keys_and_lists_are_values() -> None:
    tree = {"a": {"b": {"c": 1}, "d": [1, {"e": 2}]}, "f": 3}
    assert [*leaves(tree)] == [("a.b.c", 1), ("a.d", [1, {"e": 2}]), ("f", 3)]
    assert merged({}, tree) == tree


def test_setting_a_key_below_a_value_is_refused() -> None:
    with pytest.raises(UserError, match=r"^seed\.x: 'seed' is a value, not a section"):
        set_key({"seed": 1}, "seed.x", 2)
    with pytest.raises(UserError, match=r"^-s seed\.x=2: 'seed' is a value, not a section"):
        apply_override({"seed": 1}, "seed.x=2")


def test_numbers_name_columns_and_other_values_are_refused_in_words() -> None:
    experiment = Experiment.load(
        "", ["task.name=custom", "task.text=0", "task.label=1.50", "task.labels=[0, 1.0]"]
    )
    assert (experiment.task.text, experiment.task.label) == ("0", "1.5")
    assert experiment.task.labels == ("0", "1")
    with pytest.raises(UserError, match=r"^task.text = True: expected text; put it in quotes$"):
        Experiment.load("", ["task.text=true"])
    assert Experiment.load("", ['task.text="true"']).task.text == "true"


@pytest.mark.parametrize("key", ["task.text", "task.labels", "backbone"])
def test_settings_that_no_file_can_hold_are_refused(key: str) -> None:
    with pytest.raises(UserError, match=rf"^{key} = .*: is not valid Unicode$"):
        Experiment.load("", [f"{key}=a,\udcff"])  # as the shell's bytes arrive
