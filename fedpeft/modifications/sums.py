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
from torch.nn import functional


@contextmanager
def summed(model: nn.Module, changes: Mapping[str, Tensor]) -> Iterator[dict[str, Tensor]]:
    """Yield stand-ins for changed weights, for a forward pass while the context is open.

    On a CPU, the gradient of a change to an embedding's weight is sparse.

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
        existing: weights whose sums exist, by the addresses of the sums; shared by all weights.
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

    def looked_up(self, rows: Tensor, **settings: Any) -> Tensor:
        """Return rows of the sum as ``embedding`` does, without computing the others."""
        frozen = functional.embedding(rows, self.as_subclass(Tensor), **settings)
        # The gradient of a parameter has zeros in nearly all rows. A GPU would add a sparse one in
        # any order.
        settings["sparse"] = self.change.is_leaf and not self.change.is_cuda
        return frozen + functional.embedding(rows, self.change.squeeze(0), **settings)

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
        if func is functional.embedding:
            rows, weight = args
            return weight.looked_up(rows, **(kwargs or {}))
        used: dict[int, _Sum] = {}
        try:
            return func(*_computed(args, used), **_computed(kwargs or {}, used))
        finally:
            for address, weight in used.items():
                del weight.existing[address]


def _computed(value: Any, used: dict[int, _Sum]) -> Any:
    """Return arguments with sums instead of weights, and enter the sums' addresses."""
    if isinstance(value, _Sum):
        total = value.compute()
        used[total.data_ptr()] = value.existing[total.data_ptr()] = value
        return total
    if isinstance(value, dict):
        return {name: _computed(part, used) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_computed(part, used) for part in value)
    return value


def _without_sum(existing: Mapping[int, _Sum], saved: Tensor) -> Tensor | Callable[[], Tensor]:
    """Return what is kept of a tensor for the backward pass: of a sum, how to compute it."""
    of = existing.get(saved.untyped_storage().data_ptr())
    if of is None:
        return saved
    shape, strides = saved.shape, saved.stride()
    return lambda: of.compute().as_strided(shape, strides)


def _with_sum(kept: Tensor | Callable[[], Tensor]) -> Tensor:
    return kept if isinstance(kept, Tensor) else kept().detach()
