"""TensorBoard: event files in ``RUN/tensorboard`` (extra ``tensorboard``)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from fedpeft.experiment.config import Experiment
from simulations.tracking.base import Begun, Scalar, numbers_of, settings_of

FOLDER = "tensorboard"


class TensorBoard:
    """Scalars of a run, its settings as text, and both in the hyperparameter view."""

    def begin(self, experiment: Experiment, folder: Path, kept: Begun | None) -> Begun:
        """Open an event file; see ``Tracker``."""
        from torch.utils.tensorboard import SummaryWriter

        self._settings = settings_of(experiment)
        # Readers drop events of a killed session from this step on, so no round appears twice.
        step = kept.done + 1 if kept else None
        self._writer = SummaryWriter(str(folder / FOLDER), purge_step=step)
        if not kept:
            self._writer.add_text("experiment", f"```toml\n{experiment.to_toml()}```", 0)
        return kept or Begun(FOLDER)

    def round(self, number: int, values: Mapping[str, float]) -> None:
        """Write scalars; see ``Tracker``."""
        for name, value in values.items():
            self._writer.add_scalar(name, value, number)
        self._writer.flush()

    def end(self, result: Mapping[str, Scalar] | None) -> None:
        """Write the settings with the result; see ``Tracker``."""
        if result is not None:
            metrics = numbers_of(result)
            self._writer.add_hparams(self._settings, metrics, run_name=".", global_step=0)
        self._writer.close()
