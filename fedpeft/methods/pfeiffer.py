"""Adapter of Pfeiffer et al. 2021 (arXiv 2005.00247, section 3)."""

from __future__ import annotations

from typing import Literal

from fedpeft.methods.adapter import Adapter, AdapterSettings


class PfeifferSettings(AdapterSettings):
    """Settings of Pfeiffer's adapter."""

    name: Literal["pfeiffer"]


class Pfeiffer(Adapter[PfeifferSettings]):
    """Insert a bottleneck f after the FFN: ``LN(u + x)`` becomes ``LN(u + x + f(LN(u + x)))``.

    f(h) = ReLU(h W_down) W_up; u is the FFN's output, x its residual, and LN the block's pretrained
    LayerNorm both times.
    """

    Settings = PfeifferSettings
    lr = 3e-3
    source = "Pfeiffer et al. 2021, section 3"
    adapted = (("ffn_sum", "output"),)
