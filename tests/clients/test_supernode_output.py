from __future__ import annotations

import logging

import pytest
from flwr.supercore.error import ApiErrorCode

from clients.outputs import read_supernode


def test_a_node_that_is_not_let_in_is_told_why() -> None:
    """The code is Flower's own: should it change, this fails."""
    code = int(ApiErrorCode.FLEET_NODE_ACTIVATION_FAILED)
    found = read_supernode(f"[code: {code}] Failed to activate SuperNode.")
    assert found is not None
    level, message = found
    assert level == logging.ERROR
    assert "key is not registered" in message and "online already" in message


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("INFO :      Starting Flower SuperNode", (logging.INFO, "Starting Flower SuperNode")),
        ("ERROR :     Exit Code: 305", (logging.ERROR, "Exit Code: 305")),
        ("see https://flower.ai/docs/framework/v1.41.0/en/ref-exit-codes/305.html", None),
    ],
)
def test_other_lines_stay_but_for_pages_that_do_not_help(
    line: str, expected: tuple[int, str] | None
) -> None:
    assert read_supernode(line) == expected
