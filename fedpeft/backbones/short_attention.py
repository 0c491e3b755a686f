"""Attention over short texts in bfloat16 on a CPU, by batched matrix products.

PyTorch's fused attention works on one text and head at a time. Its backward pass in bfloat16 is
slower than in float32, and its softmax is not vectorized for rows whose length is no multiple of
the vector width.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

#: Smallest and largest number of keys for which products took less CPU time than fused attention in
#: float32, forward and backward, with 16 texts and 12 heads of width 32 (torch 2.13, one thread).
MIN_KEYS, MAX_KEYS = 9, 64
#: float32 numbers in an AVX-512 vector. Softmax over 16 keys takes a tenth of the time over 13.
_VECTOR = 16
_MASKED = torch.finfo(torch.float32).min  # not -inf: a row without keys would be NaN


def attend(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scale: float, dtype: torch.dtype
) -> Tensor:
    """Return softmax(scale * query key^T) value in ``dtype``, [N, heads, queries, width of a head].

    The softmax is computed in float32 or a higher precision. So are the products with up to 16
    keys, where this takes no more time; with more keys they are computed in ``dtype``.

    Args:
        query: [N, heads, queries, width of a head].
        key: [N, heads, keys, width of a head].
        value: like ``key``.
        mask: True for keys that a query attends to, bool [N or 1, 1, queries or 1, keys]; None =
            all.
        scale: factor of the scores.
        dtype: dtype of the output.
    """
    keys = key.shape[2]
    padded = keys + -keys % _VECTOR
    if mask is None:
        bias = query.new_zeros((1, 1, 1, padded), dtype=torch.float32)
        bias[..., keys:] = _MASKED
    else:
        if mask.stride(2) == 0:  # the same for all queries
            mask = mask[:, :, :1]
        bias = torch.full((*mask.shape[:-1], padded), _MASKED)
        bias[..., :keys].masked_fill_(mask, 0.0)
    inner = torch.promote_types(dtype, torch.float32) if padded == _VECTOR else dtype
    output: Tensor = _Attend.apply(query, key, value, bias, scale, inner)
    return output.to(dtype)


class _Attend(torch.autograd.Function):
    """Attention by products; saves the attention weights for the backward pass."""

    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        bias: Tensor,
        scale: float,
        dtype: torch.dtype,
    ) -> Tensor:
        """Return the output in ``dtype``; see ``attend``.

        ``bias`` [N or 1, 1, queries or 1, S] is added to the scores.
        """
        rows, heads, queries, width = query.shape
        size = bias.shape[-1]
        q = query.to(dtype).contiguous().view(-1, queries, width)
        k, v = (_padded(part, size, dtype) for part in (key, value))
        with torch.autocast("cpu", enabled=False):
            scores = torch.bmm(q, k.mT).view(rows, heads, queries, size)
            scores = torch.add(bias, scores.to(_softmax_dtype(dtype)), alpha=scale)
            weights = torch.softmax(scores, -1).to(dtype).view(-1, queries, size)
            output = torch.bmm(weights, v).view(query.shape)
        ctx.save_for_backward(q, k, v, weights)
        ctx.scale, ctx.shape, ctx.dtypes = scale, key.shape, (query.dtype, key.dtype, value.dtype)
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of query, key and value."""
        q, k, v, weights = ctx.saved_tensors
        rows, heads, keys, width = ctx.shape
        gradient, exact = gradient.contiguous().view(q.shape), _softmax_dtype(q.dtype)
        scores = torch._softmax_backward_data(
            torch.bmm(gradient, v.mT).to(exact), weights.to(exact), -1, exact
        )
        scores = scores.mul_(ctx.scale).to(q.dtype)
        gradients = torch.bmm(scores, k), torch.bmm(scores.mT, q), torch.bmm(weights.mT, gradient)
        query, key, value = (
            part.view(rows, heads, -1, width).to(dtype)
            for part, dtype in zip(gradients, ctx.dtypes, strict=True)
        )
        return query, key[:, :, :keys], value[:, :, :keys], None, None, None


def _softmax_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype of the softmax."""
    return torch.promote_types(dtype, torch.float32)


def _padded(part: Tensor, size: int, dtype: torch.dtype) -> Tensor:
    """Return keys or values [N, heads, keys, width] as [N * heads, size, width], filled with 0."""
    rows, heads, keys, width = part.shape
    padded = part.new_empty((rows, heads, size, width), dtype=dtype)
    padded[:, :, :keys] = part
    padded[:, :, keys:] = 0
    return padded.view(-1, size, width)
