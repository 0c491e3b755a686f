"""DP-SGD on one client's examples (Abadi et al. 2016, arXiv 1607.00133, algorithm 1).

A step takes each of the n examples with probability q, clips each one's gradient to an L2 norm of
at most C, adds N(0, sigma^2 C^2) to every coordinate of the sum and divides by the expected batch
q n, which does not depend on the data. The gradients are exact and cover the whole task vector.

Guarantee: with a sigma > 0 and a secure noise source, a step is one run of the Poisson-subsampled
Gaussian mechanism with (sigma, q) for adding or removing one example. How many examples the client
has, and how many tokens they are long, is not protected.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from fedpeft.norms import row_norms
from fedpeft.privacy.accounting import Mechanism
from fedpeft.privacy.noise import Noise, poisson
from fedpeft.privacy.whole_weights import example_gradients
from fedpeft.profiling import phase
from fedpeft.tasks.batching import collate
from fedpeft.tasks.encoding import Encoded
from fedpeft.tasks.parts import parts_by_length

if TYPE_CHECKING:
    from fedpeft.model import TaskModel

#: gamma of automatic clipping (Bu et al. 2023, arXiv 2206.07136, equation 5 and section 4).
STABILITY = 0.01


@dataclass(frozen=True)
class DPSGD:
    """How one client trains privately in one round.

    Attributes:
        mechanism: sigma, q and the number of steps.
        clip: C; 0 = no clipping.
        clipping: "flat" cuts longer gradients to C, "automatic" scales all to C |g| / (|g| + 0.01).
        physical_batch: examples in memory at once, over all clients of a cohort.
        noise: where this client's randomness in this round comes from.

    The clients of a cohort differ in mechanism and noise only.

    Raises:
        ValueError: noise without a clip to match it.
    """

    mechanism: Mechanism
    clip: float
    clipping: str
    physical_batch: int
    noise: Noise

    def __post_init__(self) -> None:
        if self.mechanism.noise_multiplier and not self.clip > 0:
            raise ValueError(f"Expected clip={self.clip} above 0, because there is noise.")


def poisson_batches(private: DPSGD, examples: int) -> list[np.ndarray]:
    """Return the steps' batches: indices in [0, examples), each taken with probability q."""
    rate, steps = private.mechanism.sampling_rate, private.mechanism.steps
    return [poisson(private.noise, examples, rate) for _ in range(steps)]


def private_gradients(
    model: TaskModel,
    vectors: Tensor,
    data: Sequence[Encoded],
    batches: Sequence[np.ndarray],
    private: Sequence[DPSGD],
) -> Tensor:
    """Return each client's noisy mean gradient [K, P] at its task vector, of ``vectors`` [K, P].

    The batches may be of any size, also empty; they pass through memory in physical batches.
    """
    total = torch.zeros_like(vectors)
    rows = max(1, private[0].physical_batch // len(private))
    # By length, so that little is padded; a sum does not mind the order.
    for chosen in parts_by_length(data, batches, model.costs.each, rows):
        with phase("data"):
            pad_id = model.backbone.tokenizer.pad_token_id
            part = collate(data, chosen, pad_id, vectors.device, model.dtype)
        # Nested, so that nothing keeps one part's gradients [N, P] while the next are made.
        total += clipped_sums(example_gradients(model, vectors, part)[0], len(vectors), private[0])
    for row, each in zip(total, private, strict=True):
        _add_noise(row, each)
    expected = [p.mechanism.sampling_rate * len(d) for p, d in zip(private, data, strict=True)]
    return total / total.new_tensor(expected)[:, None]


def clipped_sums(gradients: Tensor, groups: int, private: DPSGD) -> Tensor:
    """Return the sum [G, P] of every group's clipped rows of ``gradients`` [N, P].

    A gradient that is not finite has no direction to cut it along, and one that is so long that its
    factor is no normal number would be cut with too few digits: both count as zero.
    """
    # The 1e-6: rounding of factor and product must not leave a norm above C.
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
    factors = factors.where(exact, 0.0).to(gradients.dtype).view(groups, 1, -1)
    return (factors @ gradients.view(groups, factors.shape[2], -1)).squeeze(1)


def _add_noise(total: Tensor, private: DPSGD) -> None:
    """Add N(0, sigma^2 C^2) to a client's sum [P], in place; the addition is in float64."""
    scale = private.mechanism.noise_multiplier * private.clip
    if scale:
        noise = torch.from_numpy(private.noise.normal(len(total))).mul_(scale)
        total.copy_(noise.add_(total.cpu()))
