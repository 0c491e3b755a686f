"""Parallel adapter of He et al. 2022 (section 3.3): reads the input of its sub-layer."""

from __future__ import annotations

from typing import Literal, TypeVar

from pydantic import Field

from fedpeft.methods.adapter import Adapter, AdapterSettings
from fedpeft.methods.settings import MOST

#: Sub-layer -> (site that changes, site that is read).
PLACES = {"attention": ("heads", "attn_in"), "ffn": ("ffn_out", "ffn_in")}


class ParallelSettings(AdapterSettings):
    """Settings that the parallel adapters share."""

    bottleneck: int = Field(
        16, ge=1, le=MOST, description="width m of the bottleneck (paper: 512; GLUE 16)"
    )
    position: Literal["attention", "ffn"] = Field(
        "ffn",
        description="sub-layer in parallel: ffn | attention (before its output matrix)",
    )


class ParallelAdapterSettings(ParallelSettings):
    """Settings of the parallel adapter."""

    name: Literal["parallel_adapter"]


SettingsT = TypeVar("SettingsT", bound=ParallelSettings)


class Parallel(Adapter[SettingsT]):
    """h <- h + s ReLU(x W_down) W_up, where h is the output of a sub-layer and x its input."""

    @property
    def adapted(self) -> tuple[tuple[str, str], ...]:
        """See Adapter."""
        return (PLACES[self.settings.position],)


class ParallelAdapter(Parallel[ParallelAdapterSettings]):
    """Insert a bottleneck parallel to a sub-layer: ``h <- h + ReLU(x W_down) W_up``.

    x is the sub-layer's input, h its output.
    """

    Settings = ParallelAdapterSettings
    lr = 3e-3
    source = "He et al. 2022, section 3.3"
