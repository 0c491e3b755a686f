"""DP-SGD on one client's examples (Abadi et al. 2016, arXiv 1607.00133, algorithm 1).

A step samples each of the n examples with probability q, clips each gradient to an L2 norm of at
most C, adds N(0, sigma^2 C^2) to every coordinate of their sum and divides by the expected batch
size q n, which does not depend on the data (n may be a public number instead). Gradients are exact
and cover the whole task vector. With a rank, they are those of gradient carriers of this rank, and
the noisy mean is turned into an update of the task vector (``fedpeft.privacy.rgp``).

Guarantee: with sigma > 0 and a secure noise source, a step is one run of the Poisson-subsampled
Gaussian mechanism with (sigma, q) for adding or removing one example. The number of the client's
examples, unless a public number takes its place, and their lengths in tokens are not protected.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from fedpeft.batches.encoded import Encoded
from fedpeft.privacy.accounting import Mechanism
from fedpeft.privacy.noise import Noise, poisson
from fedpeft.privacy.norms import row_norms
from fedpeft.privacy.rgp import carriers_of
from fedpeft.privacy.whole_weights import example_gradients

if TYPE_CHECKING:
    from fedpeft.model import TaskModel

#: gamma of automatic clipping (Bu et al. 2023, arXiv 2206.07136, equation 5 and section 4).
STABILITY = 0.01


@dataclass(frozen=True)
class DPSGD:
    """One client's private training in one round.

    The clients of a cohort may differ in mechanism and noise only.

    Attributes:
        mechanism: sigma, q and the number of steps.
        clip: C; 0 = no clipping.
        clipping: "flat" scales gradients longer than C to C; "automatic" scales every gradient g
            to the norm C |g| / (|g| + 0.01).
        physical_batch: examples in memory at once, over all clients of a cohort.
        noise: the random numbers of this client in this round.
        examples: the number n that others may know; None = the client's number of examples.
        rank: rank of the gradient carriers (RGP), for full fine-tuning; 0 = whole gradients.

    Raises:
        ValueError: there is noise but no clip.
    """

    mechanism: Mechanism
    clip: float
    clipping: str
    physical_batch: int
    noise: Noise
    examples: int | None = None
    rank: int = 0

    def __post_init__(self) -> None:
        if self.mechanism.noise_multiplier and not self.clip > 0:
            raise ValueError(f"Expected clip={self.clip} above 0, because noise is added.")


def poisson_batches(private: DPSGD, examples: int) -> list[np.ndarray]:
    """Return one batch per step: indices in [0, examples), each included with probability q."""
    rate, steps = private.mechanism.sampling_rate, private.mechanism.steps
    return [poisson(private.noise, examples, rate) for _ in range(steps)]


def private_gradients(
    model: TaskModel,
    vectors: Tensor,
    data: Sequence[Encoded],
    batches: Sequence[np.ndarray],
    private: Sequence[DPSGD],
    fixed: Tensor | None = None,
) -> Tensor:
    """Return each client's noisy mean gradient [K, P] at its task vector in ``vectors`` [K, P].

    Batches may have any size, including 0; they are processed in physical batches. Gradients of
    numbers that are ``fixed``, bool [K or more, P], are zero before they are clipped.
    """
    rank, noise = private[0].rank, private[0].noise
    carriers = carriers_of(model, vectors, rank, noise) if rank else None
    size = carriers.layout.size if carriers else vectors.shape[1]
    total = vectors.new_zeros(len(vectors), size)
    rows = max(1, private[0].physical_batch // len(private))
    # Gradients of whole weights come from the modules' padded inputs.
    for part in model.passes(data, batches, rows, packs=model.method.grouped):
        if carriers:
            gradients = carriers.example_gradients(model, vectors, part)[0]
        else:
            gradients = example_gradients(model, vectors, part)[0]
        if fixed is not None:
            rows_of = gradients.view(len(vectors), -1, gradients.shape[1])
            rows_of.masked_fill_(fixed[: len(vectors), None], 0)
        total += clipped_sums(gradients, len(vectors), private[0])
        del gradients  # [N, P]; otherwise kept while the next ones are computed
    for row, client in zip(total, private, strict=True):
        _add_noise(row, client)
    expected = [
        p.mechanism.sampling_rate * (p.examples or len(d))
        for p, d in zip(private, data, strict=True)
    ]
    mean = total / total.new_tensor(expected)[:, None]
    return carriers.lift(model.layout, mean) if carriers else mean


def clipped_sums(gradients: Tensor, groups: int, private: DPSGD) -> Tensor:
    """Return the sum [G, P] of each group's clipped rows of ``gradients`` [N, P], which change.

    Two kinds of gradients count as zero: those that are not finite, because they have no
    direction, and those so long that the scaling factor is subnormal and has too few digits.
    """
    # 1e-6: rounding of the factor and the product must not leave a norm above C.
    norms = row_norms(gradients) * (1 + 1e-6)
    finite = norms.isfinite()
    if not finite.all():
        gradients = gradients.where(finite[:, None], 0.0)
    if not private.clip:
        factors = torch.ones_like(norms)
    elif private.clipping == "automatic":
        factors = private.clip / (norms + STABILITY)
    else:
        factors = (private.clip / norms).clamp(max=1.0)
    exact = finite & (factors >= torch.finfo(gradients.dtype).tiny)
    factors = factors.where(exact, 0.0).to(gradients.dtype).view(groups, -1, 1)
    # PyTorch can be set to round the factors of matrix products (TF32, bfloat16), which may leave a
    # gradient longer than C. Elementwise products and sums keep the digits of their dtype.
    return gradients.view(groups, factors.shape[1], -1).mul_(factors).sum(1)


def _add_noise(total: Tensor, private: DPSGD) -> None:
    """Add N(0, sigma^2 C^2) to a client's sum [P] in place; the addition uses float64."""
    scale = private.mechanism.noise_multiplier * private.clip
    if scale:
        noise = torch.from_numpy(private.noise.normal(len(total))).mul_(scale)
        total.copy_(noise.add_(total.cpu()))
