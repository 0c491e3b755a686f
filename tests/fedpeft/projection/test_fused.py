"""The CUDA kernel in Triton's interpreter, and compiled for GPUs that may be absent."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch
from interpreted import CASES, inputs_of, projection_of

from fedpeft.projection import Projection, Selection
from fedpeft.projection.choice import operator
from fedpeft.projection.fused import PROGRAMS, Fused
from fedpeft.projection.operators import Dense

HERE = Path(__file__).parent
CPU, CUDA = torch.device("cpu"), torch.device("cuda")
needs_triton = pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed")

COMPILE = """
import itertools, json
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, compile
from fedpeft.projection.triton_kernels import multiply

kinds = {"x": "*fp32", "key": "*i64", "table": "*fp32", "parts": "*fp32"}
kinds |= dict.fromkeys(("groups", "rows", "columns", "steps"), "i32")
made = {}
for transposed, aligned, capability in itertools.product((0, 1), (0, 1), (80, 90)):
    fixed = {"TRANSPOSED": bool(transposed), "ALIGNED": bool(aligned), "GROUPS": 16}
    fixed |= {"ROWS": 64, "COLUMNS": 32} if aligned else {"ROWS": 32, "COLUMNS": 16}
    names = kinds | dict.fromkeys(fixed, "constexpr")
    places = {(list(names).index(name),): value for name, value in fixed.items()}
    source = ASTSource(multiply, names, places)
    asm = compile(source, target=GPUTarget("cuda", capability, 32)).asm
    assert len(asm["cubin"]) > 1000
    made[f"{transposed}{aligned}{capability}"] = asm["ptx"]
print(json.dumps(made))
"""


def python(folder: Path, *arguments: str, interpret: str = "0") -> str:
    """Run Python with Triton's files in a folder; return what it prints."""
    environment = {**os.environ, "TRITON_INTERPRET": interpret, "TRITON_CACHE_DIR": str(folder)}
    done = subprocess.run(
        [sys.executable, *arguments], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def actual(tmp_path_factory: pytest.TempPathFactory) -> dict[str, torch.Tensor]:
    """What the kernel made of all cases, by ``case/name``."""
    folder = tmp_path_factory.mktemp("interpreted")
    python(folder, str(HERE / "interpreted.py"), str(folder / "made.npz"), interpret="1")
    with np.load(folder / "made.npz") as kept:
        return {name: torch.from_numpy(kept[name]) for name in kept.files}


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The kernel's PTX by transposed, aligned and capability; one process compiles all."""
    made: dict[str, str] = json.loads(python(tmp_path_factory.mktemp("compiled"), "-c", COMPILE))
    return made


@pytest.mark.slow
@needs_triton
@pytest.mark.parametrize("case", range(len(CASES)))
def test_kernel_entries_are_bit_identical_to_the_stream(
    actual: dict[str, torch.Tensor], case: int
) -> None:
    expected = torch.from_numpy(projection_of(case).transposed().T.copy())
    assert torch.equal(actual[f"{case}/entries"], expected)
    assert torch.equal(actual[f"{case}/transposed"], expected)


@pytest.mark.slow
@needs_triton
@pytest.mark.parametrize("case", range(len(CASES)))
def test_kernel_multiplies_in_both_directions_for_all_groups(
    actual: dict[str, torch.Tensor], case: int
) -> None:
    z, cotangent = inputs_of(case)
    dense = operator(projection_of(case), CPU, torch.float64)
    close = {"rtol": 0, "atol": 1e-4, "check_dtype": False}
    torch.testing.assert_close(actual[f"{case}/output"], dense.forward(z.double()), **close)
    gradient = dense.backward(cotangent.double())
    torch.testing.assert_close(actual[f"{case}/gradient"], gradient, **close)
    torch.testing.assert_close(actual[f"{case}/strided"], actual[f"{case}/output"], **close)
    assert actual[f"{case}/none"].shape == (2, 0, dense.rows)


@pytest.mark.long
@needs_triton
@pytest.mark.parametrize("capability", [80, 90])
@pytest.mark.parametrize("aligned", [0, 1])
@pytest.mark.parametrize("transposed", [0, 1])
def test_kernel_compiles_for_gpus(
    compiled: dict[str, str], transposed: int, aligned: int, capability: int
) -> None:
    """Nothing is rounded to tf32, and a block that is 16 neighbours is drawn once, not 16 times."""
    ptx = compiled[f"{transposed}{aligned}{capability}"]
    assert "fma.rn.f32" in ptx and "mma" not in ptx
    drawn = ptx.count("mul.hi.u64")  # two a round, of which the first two are partly constants
    assert drawn < 20 * 4 if aligned else drawn > 18 * 4


@pytest.mark.parametrize(
    ("projection", "device", "dtype"),
    [
        (Projection(0, "a", 8, 8, "normal"), CPU, torch.float32),
        (Projection(0, "a", 8, 8, "normal"), CUDA, torch.float64),
        (Projection(0, "a", 8, 8, "identity"), CUDA, torch.float32),
        (Selection(0, "a", 8, 8), CUDA, torch.float32),
    ],
)
def test_kernel_supports_random_entries_in_float32_on_cuda(
    projection: Projection, device: torch.device, dtype: torch.dtype
) -> None:
    assert not Fused.suits(projection, device, dtype)


def test_operator_uses_the_kernel_if_triton_is_available() -> None:
    projection = Projection(0, "a", 8, 8, "normal")
    assert Fused.suits(projection, CUDA, torch.float32) == (find_spec("triton") is not None)
    assert isinstance(operator(projection, CPU, torch.float32, "regenerated"), Dense)


@pytest.mark.slow
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")
@pytest.mark.parametrize(("rows", "columns"), [(1024, 3000), (1000, 300)])
def test_kernel_on_a_gpu(rows: int, columns: int) -> None:
    """More tiles than programs in a split, so that sums are in several parts."""
    projection = Projection(0, "a", rows, columns, "normal")
    fused = operator(projection, CUDA, torch.float32, "regenerated")
    assert isinstance(fused, Fused) and fused.matrix().shape[0] * columns > PROGRAMS
    expected = torch.from_numpy(projection.transposed().T.copy())
    assert torch.equal(fused.matrix().cpu(), expected)
    x = torch.randn(5, rows, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(fused.backward(x.to(CUDA)).cpu(), x @ expected, rtol=0, atol=1e-3)
