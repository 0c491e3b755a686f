"""Changed weights ``W + D`` that exist only while a function uses them.

Keeping all sums until the end of the backward pass would take as much memory as the backbone. So
each is computed when a function uses it, and again when the backward pass needs it. Under autocast,
the 16-bit copies of matrices are kept.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Self

from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.nn import functional


def summed(model: nn.Module, changes: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return stand-ins for changed weights, for ``functional_call``.

    On a CPU, the gradient of a parameter that changes an embedding's weight is sparse.

    Args:
        model: the backbone.
        changes: name of a weight -> its change [1, *shape].
    """
    return {name: _Sum.of(model.get_parameter(name), change) for name, change in changes.items()}


class _Sum(Tensor):
    """A weight; functions of PyTorch get the sum with its change [1, *shape] instead."""

    change: Tensor

    @classmethod
    def of(cls, weight: Tensor, change: Tensor) -> Self:
        made = weight.detach().as_subclass(cls)
        made.change = change
        return made

    def compute(self) -> Tensor:
        # Not change[0]: its backward pass allocates zeros as large as the weight.
        return self.as_subclass(Tensor) + self.change.squeeze(0)

    def looked_up(self, rows: Tensor, **settings: Any) -> Tensor:
        """Return rows of the sum as ``embedding`` does, without computing the others."""
        frozen = functional.embedding(rows, self.as_subclass(Tensor), **settings)
        # Sparse, because only the batch's rows have a gradient. Not for a computed change (SAID),
        # whose backward pass needs dense gradients, nor on a GPU, which adds rows in any order.
        settings["sparse"] = self.change.is_leaf and self.change.is_cpu
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
            if not isinstance(value, Tensor):  # such as shape and dtype
                return value
        if func is functional.embedding:
            rows, weight = args
            return weight.looked_up(rows, **(kwargs or {}))
        sums: dict[int, _Sum] = {}
        with saved_tensors_hooks(partial(_without_sum, sums), _with_sum):
            return func(*_computed(args, sums), **_computed(kwargs or {}, sums))


def _computed(value: Any, sums: dict[int, _Sum]) -> Any:
    """Return arguments with sums, and enter each weight under the address of its sum."""
    if isinstance(value, _Sum):
        total = value.compute()
        sums[total.data_ptr()] = value
        return total
    if isinstance(value, dict):
        return {name: _computed(part, sums) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_computed(part, sums) for part in value)
    return value


def _without_sum(sums: Mapping[int, _Sum], saved: Tensor) -> Tensor | Callable[[], Tensor]:
    """Return what is kept of a tensor for the backward pass: of a sum, how to compute it."""
    weight = sums.get(saved.untyped_storage().data_ptr())
    if weight is None:
        return saved.detach()  # an output itself would refer to the graph that keeps it
    place = saved.shape, saved.stride(), saved.storage_offset()
    return lambda: weight.compute().as_strided(*place)


def _with_sum(kept: Tensor | Callable[[], Tensor]) -> Tensor:
    return kept if isinstance(kept, Tensor) else kept().detach()
