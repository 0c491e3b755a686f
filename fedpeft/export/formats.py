"""The formats of exports."""

from __future__ import annotations

from typing import Literal

Format = Literal["hf", "peft", "onnx", "sentence-transformers", "vector"]
