"""What SLaSh and JR-WARP share: one trained vector z and random projections of it."""

from __future__ import annotations

from math import sqrt
from typing import Literal, TypeVar

import numpy as np

from fedpeft.methods.base import Method
from fedpeft.projection import Distribution
from fedpeft.settings import MethodSettings

Init = Literal["normal", "uniform", "zeros", "identity"]
SettingsT = TypeVar("SettingsT", bound=MethodSettings)


class SingleVector(Method[SettingsT]):
    """Trains z in R^d; z and every projection come from one distribution of variance 1/d.

    The bound that Gupta et al. 2023, appendix B.2, print for the uniform one contradicts that
    variance; the released code keeps the variance, and so does this.
    """

    d: int
    init: Init

    def parameters(self) -> dict[str, tuple[int, ...]]:
        """Return the one vector z, [d]."""
        return {"z": (self.d,)}

    def initial(self, generator: np.random.Generator) -> dict[str, np.ndarray]:
        """Draw z with variance 1/d, or zeros; ``identity`` keeps the normal one."""
        if self.init == "zeros":
            return {"z": np.zeros(self.d)}
        if self.init == "uniform":
            bound = sqrt(3 / self.d)
            return {"z": generator.uniform(-bound, bound, self.d)}
        return {"z": generator.normal(0, 1 / sqrt(self.d), self.d)}

    @property
    def distribution(self) -> Distribution:
        """The distribution of the projections."""
        return self.init if self.init in ("uniform", "identity") else "normal"
