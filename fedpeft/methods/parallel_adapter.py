"""The parallel adapter of He et al. 2022 (section 3.3): reads what its sub-layer reads."""

from __future__ import annotations

from typing import Literal, TypeVar

from pydantic import Field

from fedpeft.methods.adapter import Adapter, AdapterSettings

#: Sub-layer -> (site that changes, site that is read).
PLACES = {"attention": ("heads", "attn_in"), "ffn": ("ffn_out", "attn_norm")}


class ParallelSettings(AdapterSettings):
    """What the parallel adapters have in common."""

    bottleneck: int = Field(16, ge=1, description="width m of the bottleneck (paper: 512; GLUE 16)")
    position: Literal["attention", "ffn"] = Field(
        "ffn", description="ffn: beside the FFN | attention: beside it, before its output matrix"
    )


class ParallelAdapterSettings(ParallelSettings):
    """Settings of the parallel adapter."""

    name: Literal["parallel_adapter"]


SettingsT = TypeVar("SettingsT", bound=ParallelSettings)


class Parallel(Adapter[SettingsT]):
    """h <- h + s f(x), x = the input of the sub-layer whose output is h."""

    @property
    def places(self) -> tuple[tuple[str, str], ...]:
        """One place in every block."""
        return (PLACES[self.settings.position],)


class ParallelAdapter(Parallel[ParallelAdapterSettings]):
    """The parallel adapter with s = 1."""

    Settings = ParallelAdapterSettings
    lr = 3e-3
    source = "He et al. 2022, section 3.3"
