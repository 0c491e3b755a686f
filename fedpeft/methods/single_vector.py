"""Base of SLaSh and JR-WARP: one trained vector z and fixed random projections of it."""

from __future__ import annotations

from math import sqrt
from typing import Literal, TypeVar

import numpy as np

from fedpeft.methods.base import Method
from fedpeft.methods.settings import MethodSettings
from fedpeft.projection import Distribution

Init = Literal["normal", "uniform", "zeros", "identity"]
SettingsT = TypeVar("SettingsT", bound=MethodSettings)


class SingleVector(Method[SettingsT]):
    """Train z in R^d; z and every projection have entries of variance 1/d.

    The bound in Gupta et al. 2023, appendix B.2, for the uniform distribution contradicts this
    variance; this follows the released code, which has it.
    """

    d: int
    init: Init

    def parameters(self) -> dict[str, tuple[int, ...]]:
        """Return z [d]."""
        return {"z": (self.d,)}

    def initial(self, generator: np.random.Generator) -> dict[str, np.ndarray]:
        """Draw z with variance 1/d, normal for ``identity``; or zeros."""
        if self.init == "zeros":
            return super().initial(generator)
        if self.init == "uniform":
            bound = sqrt(3 / self.d)
            return {"z": generator.uniform(-bound, bound, self.d)}
        return {"z": generator.normal(0, 1 / sqrt(self.d), self.d)}

    @property
    def distribution(self) -> Distribution:
        """Distribution of the projections."""
        return self.init if self.init in ("uniform", "identity") else "normal"
