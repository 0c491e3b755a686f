"""The adapter of Pfeiffer et al. 2021 (arXiv 2005.00247, section 3): one after every FFN."""

from __future__ import annotations

from typing import Literal

from fedpeft.methods.adapter import Adapter, AdapterSettings


class PfeifferSettings(AdapterSettings):
    """Settings of Pfeiffer's adapter."""

    name: Literal["pfeiffer"]


class Pfeiffer(Adapter[PfeifferSettings]):
    """LN(u + x) becomes LN(u + x + f(LN(u + x))), the block's own LayerNorm both times.

    u is the FFN's output and x its residual.
    """

    Settings = PfeifferSettings
    lr = 3e-3
    source = "Pfeiffer et al. 2021, section 3"
    places = (("ffn_sum", "output"),)
