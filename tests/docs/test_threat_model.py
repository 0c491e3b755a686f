"""A page of the threat model lists every value in the messages between server and site."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

from fedpeft.wire.messages import (
    EvaluateReply,
    HandshakeReply,
    HandshakeRequest,
    PrepareReply,
    PrepareRequest,
    Request,
    TrainReply,
    UnmaskReply,
    UnmaskRequest,
)

PAGE = Path(__file__).parents[2] / "docs" / "explanation" / "values.md"
MESSAGES = (
    *(HandshakeRequest, HandshakeReply, PrepareRequest, PrepareReply, UnmaskRequest, UnmaskReply),
    *(Request, TrainReply, EvaluateReply),
)


def test_the_table_of_values_names_each_field_once_with_chooser_bound_and_reveal() -> None:
    section = PAGE.read_text()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in section.splitlines()]
    listed = [row for row in rows if re.fullmatch(r"`\w+\.\w+`", row[0])]
    sent = [f"`{kind.__name__}.{entry.name}`" for kind in MESSAGES for entry in fields(kind)]
    assert [row[0] for row in listed] == sent
    for value, chooser, bound, reveals in listed:
        side = "server" if "Request." in value else "site"
        assert chooser == side and bound and reveals, value
