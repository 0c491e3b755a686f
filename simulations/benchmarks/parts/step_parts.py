"""Products that a pass through a frozen backbone needs, and the time of each part of a step."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch
from torch import nn
from torch.autograd import DeviceType
from torch.autograd.profiler_util import FunctionEvent
from torch.nn import functional
from torch.profiler import ProfilerActivity, profile
from transformers.pytorch_utils import Conv1D

from fedpeft.model import TaskModel

#: Parts of a step by the beginnings of operators' names; the first match counts.
PARTS: Mapping[str, tuple[str, ...]] = {
    "products": (
        "aten::addmm",
        "aten::mm",
        "aten::bmm",
        "aten::baddbmm",
        "aten::linear",
        "aten::matmul",
    ),
    "norms": ("aten::native_layer_norm", "aten::layer_norm", "aten::rms_norm", "aten::_fused_rms"),
    "activations": ("aten::gelu", "aten::relu", "aten::silu", "aten::tanh", "aten::threshold"),
    "copies": ("aten::copy_", "aten::_to_copy", "aten::to", "aten::clone", "aten::contiguous"),
    "moves": ("aten::index_select", "_Move"),
    "fills": ("aten::fill_", "aten::zero_", "aten::zeros", "aten::full", "aten::new_"),
}
#: Operators whose children all belong to the attention.
ATTENTION = ("_Attend", "aten::_scaled_dot_product", "aten::scaled_dot_product", "aten::_flash")
NAMES = ("products", "attention", "norms", "activations", "copies", "moves", "fills", "rest")
_CALLS = 20  # of a product in one measurement of its rate

Shape = tuple[int, int]  # inputs and outputs of a linear layer


@dataclass(frozen=True)
class Needed:
    """Linear layers of a backbone, and the multiplications and additions that passes need.

    Attributes:
        shapes: number of layers of each shape in the blocks.
        blocks: number of blocks.
        above: share of the blocks through which gradients flow.
        width: width of the hidden states.
        weights: whether gradients of the weights are needed, too.
    """

    shapes: Mapping[Shape, int]
    blocks: int
    above: float
    width: int
    weights: bool

    def flops(self, lengths: Iterable[int], trains: bool) -> float:
        """Return the floating-point operations for texts of some lengths, without padding."""
        lengths = [*lengths]
        linear = 2 * sum(k * n * count for (k, n), count in self.shapes.items()) * sum(lengths)
        attention = 4 * self.blocks * self.width * sum(length**2 for length in lengths)
        forward = linear + attention
        if not trains:
            return float(forward)
        return forward + self.above * (linear + 2 * attention) + self.weights * linear


def needed(model: TaskModel) -> Needed:
    """Return what passes of a task model need.

    A gradient is needed in the blocks above the first changed one: methods that change only a
    block's output need none inside it, others need a part of it, which is not counted.
    """
    shape, shapes = model.method.shape, dict[Shape, int]()
    for stack in shape.sites.stacks:
        blocks = model.backbone.model.get_submodule(stack.path.removesuffix(".{layer}"))
        for module in blocks.modules():
            if isinstance(module, nn.Linear | Conv1D):
                outputs, inputs = module.weight.shape
                key = (outputs, inputs) if isinstance(module, Conv1D) else (inputs, outputs)
                shapes[key] = shapes.get(key, 0) + 1
    whole = not model.method.grouped
    above = 1.0 if whole else max(0, shape.layers - model.first_block - 1) / shape.layers
    return Needed(shapes, shape.layers, above, shape.width, whole)


def seconds(call: Callable[[], object], device: torch.device) -> float:
    """Return the seconds of a call: CPU seconds of a thread, or wall-clock seconds of a device.

    On a CPU, programs beside this one change wall-clock seconds by a multiple.
    """
    if device.type != "cpu":
        torch.cuda.synchronize(device)
        begun = time.perf_counter()
        call()
        torch.cuda.synchronize(device)
        return time.perf_counter() - begun
    begun = time.process_time()
    call()
    return (time.process_time() - begun) / torch.get_num_threads()


def peak(call: Callable[[], object], device: torch.device) -> float | str:
    """Return the most memory that torch allocates on a GPU in a call, MB; "-" on a CPU."""
    if device.type == "cpu":
        return "-"
    torch.cuda.reset_peak_memory_stats(device)
    call()
    return round(torch.cuda.max_memory_allocated(device) / 1e6)


def matrix_rate(
    shapes: Mapping[Shape, int], tokens: int, dtype: torch.dtype, device: torch.device
) -> float:
    """Return the GFLOP/s of plain products [tokens, k] x [k, n] of all layers together.

    For each shape, the same product is repeated; its time is the median of three measurements.
    """
    total, spent = 0.0, 0.0
    for (k, n), count in shapes.items():
        x = torch.randn(tokens, k, device=device, dtype=dtype)
        weight = torch.randn(n, k, device=device, dtype=dtype)

        def calls(x: torch.Tensor = x, weight: torch.Tensor = weight) -> None:
            with torch.inference_mode():
                for _ in range(_CALLS):
                    functional.linear(x, weight)

        calls()
        total += 2.0 * tokens * k * n * count
        spent += count * median(seconds(calls, device) for _ in range(3)) / _CALLS
    return total / spent / 1e9


def parts_of(call: Callable[[], object], device: torch.device, repeats: int) -> dict[str, float]:
    """Return the seconds of each part of a call, by ``torch.profiler``, median of ``repeats``.

    On a GPU, the seconds in which its kernels run, of one call: they hardly vary, and reading a
    profile takes long. Their sum is less than the seconds of the call.
    """
    runs = [_profiled(call, device) for _ in range(repeats if device.type == "cpu" else 1)]
    return {name: median(run[name] for run in runs) / 1e6 for name in NAMES}


def _profiled(call: Callable[[], object], device: torch.device) -> dict[str, float]:
    """Return the microseconds of each part of a call."""
    cuda = device.type == "cuda"
    with profile(activities=[ProfilerActivity.CPU, *([ProfilerActivity.CUDA] * cuda)]) as profiler:
        call()
        if cuda:
            torch.cuda.synchronize(device)
    spent, kernels = dict.fromkeys(NAMES, 0.0), 0.0
    for event in profiler.events():
        if event.device_type != DeviceType.CPU:  # a kernel, which also counts for its operator
            kernels += event.self_device_time_total
            continue
        spent[part_of(event)] += event.self_device_time_total if cuda else event.self_cpu_time_total
    if cuda:  # with kernels of no operator, such as Triton's
        spent["rest"] = kernels - sum(spent[name] for name in NAMES if name != "rest")
    return spent


def part_of(event: FunctionEvent) -> str:
    """Return the part of a step that an event of the profiler belongs to."""
    outer: Any = event
    while outer is not None:
        if outer.name.startswith(ATTENTION):
            return "attention"
        outer = outer.cpu_parent
    for part, names in PARTS.items():
        if event.name.startswith(names):
            return part
    return "rest"


def tokens_of_batches(lengths: Sequence[int], batch: int) -> int:
    """Return the mean number of tokens of a batch."""
    return max(1, round(batch * sum(lengths) / len(lengths)))
