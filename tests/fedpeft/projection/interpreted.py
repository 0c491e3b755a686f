"""Run by test_fused: the kernel in Triton's interpreter, which must be asked for before import.

Writes what ``Fused`` makes of each case to a file: entries both ways, products, gradients.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import torch

from fedpeft.projection import Projection
from fedpeft.projection.fused import Fused

#: (rows, columns, distribution, groups): tiles that end inside, several tiles each way, G above 64.
CASES = [
    (48, 70, "normal", 3),
    (37, 20, "uniform", 1),
    (130, 33, "normal", 17),
    (192, 20, "uniform", 70),
]


def projection_of(case: int) -> Projection:
    """Return the projection of a case."""
    rows, columns, distribution, _ = CASES[case]
    return Projection(case, "slash/ffn_out/1", rows, columns, distribution)


def inputs_of(case: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return z [2, G, columns] and a cotangent [2, G, rows]."""
    rows, columns, _, groups = CASES[case]
    draw = torch.Generator().manual_seed(case)
    return torch.randn(2, groups, columns, generator=draw), torch.randn(
        2, groups, rows, generator=draw
    )


def made(case: int) -> dict[str, torch.Tensor]:
    """Return what the kernel makes of a case."""
    fused = Fused(projection_of(case), torch.device("cpu"))
    z, cotangent = inputs_of(case)
    output = fused(z.requires_grad_())
    (gradient,) = torch.autograd.grad(output, z, cotangent)
    z = z.detach()
    return {
        "entries": fused.matrix(),
        "transposed": fused.backward(torch.eye(fused.rows)),
        "output": output.detach(),
        "gradient": gradient,
        "none": fused(z[:, :0]),
        "strided": fused(z.transpose(0, 1)).transpose(0, 1),
    }


if __name__ == "__main__":
    actual = {f"{case}/{name}": t for case in range(len(CASES)) for name, t in made(case).items()}
    np.savez(
        Path(sys.argv[1]), **{name: tensor.detach().numpy() for name, tensor in actual.items()}
    )
