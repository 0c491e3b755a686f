"""TensorBoard: event files in ``RUN/tensorboard`` (extra ``tensorboard``)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from fedpeft.config import Experiment
from simulations.tracking.base import Begun, Scalar, numbers_of, settings_of

FOLDER = "tensorboard"


class TensorBoard:
    """A run as scalars, its settings as text, and both on the page of hyper-parameters."""

    def begin(self, experiment: Experiment, folder: Path, kept: Begun | None) -> Begun:
        """Open an event file; see ``Tracker``."""
        from torch.utils.tensorboard import SummaryWriter

        self._settings = settings_of(experiment)
        # Readers drop what a killed session wrote from this step on: no round is there twice.
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
        """Write the result beside the settings; see ``Tracker``."""
        if result is not None:
            metrics = numbers_of(result)
            self._writer.add_hparams(self._settings, metrics, run_name=".", global_step=0)
        self._writer.close()
