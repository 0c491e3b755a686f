"""Trees of settings: laid over one another, key by key."""

from __future__ import annotations

import pytest

from fedpeft.errors import UserError
from fedpeft.overrides import apply_override, leaves, merged, set_key


def test_changes_win_and_nothing_given_is_changed() -> None:
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
def test_another_method_clears_the_settings_of_the_first(order: tuple[str, ...]) -> None:
    new = {"name": "lora", "rank": 3}
    changes = {"method": {key: new[key] for key in order}}
    assert merged({"method": {"name": "slash", "d": 9}}, changes) == {"method": new}
    same = {"method": {"name": "slash", "position": "x"}}
    assert merged({"method": {"name": "slash", "d": 9}}, same)["method"]["d"] == 9


def test_leaves_are_named_in_full_and_lists_are_values() -> None:
    tree = {"a": {"b": {"c": 1}, "d": [1, {"e": 2}]}, "f": 3}
    assert [*leaves(tree)] == [("a.b.c", 1), ("a.d", [1, {"e": 2}]), ("f", 3)]
    assert merged({}, tree) == tree


def test_a_value_is_no_section() -> None:
    with pytest.raises(UserError, match=r"^seed\.x: 'seed' is a value, not a section"):
        set_key({"seed": 1}, "seed.x", 2)
    with pytest.raises(UserError, match=r"^-s seed\.x=2: 'seed' is a value, not a section"):
        apply_override({"seed": 1}, "seed.x=2")
