"""The adapter of Houlsby et al. 2019 (arXiv 1902.00751, section 2.1): two in every block."""

from __future__ import annotations

from typing import Literal

from fedpeft.methods.adapter import Adapter, AdapterSettings


class HoulsbySettings(AdapterSettings):
    """Settings of Houlsby's adapter."""

    name: Literal["houlsby"]


class Houlsby(Adapter[HoulsbySettings]):
    """h <- h + f(h) after the attention and after the FFN, each before residual and LayerNorm."""

    Settings = HoulsbySettings
    lr = 1e-3
    source = "Houlsby et al. 2019, section 2.1"
    places = (("attn_out", "self"), ("ffn_out", "self"))
