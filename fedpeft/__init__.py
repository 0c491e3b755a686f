"""fedpeft: federated, parameter-efficient fine-tuning of frozen transformers.

``fedpeft.simulate`` runs a federation, ``fedpeft.Experiment`` describes one, ``fedpeft.Trained`` is
the model of a finished run, and ``fedpeft.UserError`` and ``fedpeft.RunFailed`` are its errors.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedpeft.errors import RunFailed, UserError
    from fedpeft.experiment.config import Experiment
    from fedpeft.trained import Trained
    from fedpeft.version import __version__
    from simulations.api import Result, simulate

#: The module of each public name: imported on first use, so that `import fedpeft` is fast.
_MODULES = {
    "Experiment": "fedpeft.experiment.config",
    "Result": "simulations.api",
    "RunFailed": "fedpeft.errors",
    "Trained": "fedpeft.trained",
    "UserError": "fedpeft.errors",
    "__version__": "fedpeft.version",
    "simulate": "simulations.api",
}
__all__ = [
    "Experiment",
    "Result",
    "RunFailed",
    "Trained",
    "UserError",
    "__version__",
    "simulate",
]


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name not in _MODULES:
        raise AttributeError(f"module 'fedpeft' has no attribute '{name}'")
    return getattr(import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
