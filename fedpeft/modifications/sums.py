"""Changed weights ``W + D`` that exist only while a function uses them.

All sums of a backbone, from the forward pass to the end of the backward pass, would take as much
memory as the backbone. So each is computed where a function gets it, and again where the backward
pass needs it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, Self

from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks


@contextmanager
def summed(model: nn.Module, changes: Mapping[str, Tensor]) -> Iterator[dict[str, Tensor]]:
    """Yield stand-ins for changed weights, for a forward pass while the context is open.

    Args:
        model: the backbone.
        changes: name of a weight -> its change [1, *shape].
    """
    existing: dict[int, _Sum] = {}
    with saved_tensors_hooks(partial(_without_sum, existing), _with_sum):
        yield {
            name: _Sum.of(model.get_parameter(name), change, existing)
            for name, change in changes.items()
        }


class _Sum(Tensor):
    """A weight; functions of PyTorch get the sum with its change instead.

    Attributes:
        change: [1, *shape].
        existing: sums by the addresses of their numbers, while they exist.
    """

    change: Tensor
    existing: dict[int, _Sum]

    @classmethod
    def of(cls, weight: Tensor, change: Tensor, existing: dict[int, _Sum]) -> Self:
        made = weight.detach().as_subclass(cls)
        made.change, made.existing = change, existing
        return made

    def compute(self) -> Tensor:
        # Not change[0]: its backward pass allocates zeros as large as the weight.
        return self.as_subclass(Tensor) + self.change.squeeze(0)

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        types: tuple[type, ...],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if func.__name__ == "__get__":  # an attribute
            value = super().__torch_function__(func, types, args, kwargs or {})
            if not isinstance(value, Tensor):  # such as shape and dtype, which a sum shares
                return value
        with _computed() as plain:
            return func(*plain(args), **plain(kwargs or {}))


@contextmanager
def _computed() -> Iterator[Callable[[Any], Any]]:
    """Yield a function that replaces each ``_Sum`` inside arguments by its sum."""
    sums: list[tuple[_Sum, int]] = []

    def plain(value: Any) -> Any:
        if isinstance(value, _Sum):
            total = value.compute()
            value.existing[total.data_ptr()] = value
            sums.append((value, total.data_ptr()))
            return total
        if isinstance(value, dict):
            return {name: plain(part) for name, part in value.items()}
        return type(value)(map(plain, value)) if isinstance(value, list | tuple) else value

    try:
        yield plain
    finally:
        for value, address in sums:
            del value.existing[address]


def _without_sum(existing: Mapping[int, _Sum], saved: Tensor) -> Tensor | Callable[[], Tensor]:
    """Return what is kept of a tensor for the backward pass: of a sum, how to compute it."""
    of = existing.get(saved.untyped_storage().data_ptr())
    if of is None:
        return saved
    shape, strides = saved.shape, saved.stride()
    return lambda: of.compute().as_strided(shape, strides)


def _with_sum(kept: Tensor | Callable[[], Tensor]) -> Tensor:
    return kept if isinstance(kept, Tensor) else kept().detach()
