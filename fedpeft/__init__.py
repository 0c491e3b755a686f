"""fedpeft: federated, parameter-efficient fine-tuning of frozen transformers.

``fedpeft.simulate`` runs a federation, ``fedpeft.Experiment`` describes one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedpeft.experiment.config import Experiment
    from fedpeft.version import __version__
    from simulations.api import simulate

__all__ = ["Experiment", "__version__", "simulate"]


def __getattr__(name: str) -> Any:
    """Import the public API on first use, so that `import fedpeft` is fast."""
    if name == "Experiment":
        from fedpeft.experiment.config import Experiment

        return Experiment
    if name == "simulate":
        from simulations.api import simulate

        return simulate
    if name == "__version__":
        from fedpeft.version import __version__

        return __version__
    raise AttributeError(f"module 'fedpeft' has no attribute '{name}'")
