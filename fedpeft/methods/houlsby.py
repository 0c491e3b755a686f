"""Adapter of Houlsby et al. 2019 (arXiv 1902.00751, section 2.1)."""

from __future__ import annotations

from typing import Literal

from fedpeft.methods.adapter import Adapter, AdapterSettings


class HoulsbySettings(AdapterSettings):
    """Settings of Houlsby's adapter."""

    name: Literal["houlsby"]


class Houlsby(Adapter[HoulsbySettings]):
    """Insert a bottleneck after attention and FFN: ``h <- h + ReLU(h W_down) W_up``.

    Both are before the residual connection.
    """

    Settings = HoulsbySettings
    lr = 1e-3
    source = "Houlsby et al. 2019, section 2.1"
    adapted = (("attn_out", "self"), ("ffn_out", "self"))
