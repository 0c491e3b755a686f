"""Sizes as text."""

from __future__ import annotations

import pytest

from fedpeft.experiment.sizes import size_in_bytes


@pytest.mark.parametrize(
    ("text", "size"),
    [("140 B", 140), ("1 KB", 1000), ("1KB", 1000), ("1.5 kb", 1500), (" 2 MB ", 2_000_000)],
)
def test_units_are_decimal(text: str, size: int) -> None:
    assert size_in_bytes(text) == size


@pytest.mark.parametrize("text", ["", "1", "KB", "-1 KB", "1 KiB", "1 GB", "1e3 B", "١ KB"])
def test_other_text_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="a size such as '500 B'"):
        size_in_bytes(text)
