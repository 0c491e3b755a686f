"""Base classes of settings, and the types of settings that several methods share."""

from __future__ import annotations

from typing import Annotated, Any, Literal, get_args

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    NonNegativeInt,
)

from fedpeft.errors import UserError

#: Upper limit of sizes and counts. No useful run has more, and a server could exhaust the memory of
#: its nodes: some lists and arrays have this length before anything else limits it.
MOST = 1_000_000


class Section(BaseModel):
    """A section of the experiment: immutable, refuses unknown keys."""

    # Numbers as texts: "-s task.text=0" names a column.
    model_config = ConfigDict(
        extra="forbid", frozen=True, allow_inf_nan=False, coerce_numbers_to_str=True
    )


class MethodSettings(Section):
    """Base of a method's settings; each method's file defines a subclass."""

    name: str


def listed(value: Any) -> Any:
    """Split ``"q,v"`` into ["q", "v"]; return other values unchanged."""
    return [part.strip() for part in value.split(",")] if isinstance(value, str) else value


def _blocks(value: Any) -> Any:
    """Expand ``"0,6-8"`` to [0, 6, 7, 8]."""
    if isinstance(value, int) and not isinstance(value, bool):
        return [value]
    if not isinstance(value, str) or value in ("all", "upper half"):
        return value
    numbers: list[int] = []
    for part in listed(value):
        first, _, last = part.partition("-")
        ends = first, last or first
        if not all(end.isdecimal() and len(end) < 5 for end in ends) or int(ends[0]) > int(ends[1]):
            raise ValueError(
                "Input should be 'all', 'upper half', or numbers and ranges such as 0,6-11"
            )
        numbers += range(int(ends[0]), int(ends[1]) + 1)
    return numbers


_Matrix = Literal["q", "k", "v", "o", "ffn"]
#: Matrices of a block, sorted in the block's order; ``ffn`` means both matrices of the FFN.
MatrixSites = Annotated[
    tuple[_Matrix, ...],
    BeforeValidator(listed),
    AfterValidator(lambda names: tuple(name for name in get_args(_Matrix) if name in names)),
    Field(min_length=1),
]
#: Blocks of a backbone, counted from 0: ``"all"``, ``"upper half"`` or a list such as ``"0,6-8"``.
Blocks = Annotated[
    Literal["all", "upper half"] | Annotated[tuple[NonNegativeInt, ...], Field(min_length=1)],
    BeforeValidator(_blocks),
]


def chosen_blocks(layers: Blocks, count: int) -> list[int]:
    """Return the chosen blocks of a backbone with ``count`` blocks, in ascending order.

    Raises:
        UserError: a chosen block is not in the backbone.
    """
    if layers in ("all", "upper half"):
        return list(range(0 if layers == "all" else count // 2, count))
    chosen = sorted({int(layer) for layer in layers})
    if chosen[-1] >= count:
        raise UserError(
            f"method.layers: this backbone has no block {chosen[-1]}; expected 0 to {count - 1}"
        )
    return chosen
