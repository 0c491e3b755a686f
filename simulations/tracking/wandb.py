"""Weights & Biases: ``RUN/wandb``, offline unless WANDB_MODE is set (extra ``wandb``).

``wandb sync RUN/wandb/offline-run-*`` uploads an offline run. A killed process loses rounds that
W&B has not yet written to disk, so a resumed offline run is rewritten from round 1 under its id.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from fedpeft.experiment.config import Experiment
from simulations.tracking.base import Begun, Scalar, settings_of


class WandB:
    """A W&B run of the same name, in the project WANDB_PROJECT or ``fedpeft``."""

    def begin(self, experiment: Experiment, folder: Path, kept: Begun | None) -> Begun:
        """Start or resume the run; see ``Tracker``."""
        import wandb

        mode = os.environ.get("WANDB_MODE") or "offline"
        online = mode != "offline"
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT") or "fedpeft",
            name=folder.resolve().name,
            dir=folder,
            id=kept.run if kept else None,
            resume="allow" if kept and online else None,
            mode=mode,  # type: ignore[arg-type]  # W&B validates it
            config=settings_of(experiment),
            reinit="create_new",
            # Output of the process may hold data, so neither it nor the code is sent.
            settings=wandb.Settings(
                console="off", silent=True, save_code=False, disable_git=True, disable_code=True
            ),
        )
        if online:
            return Begun(self._run.id, max(0, self._run.starting_step - 1))
        for earlier in (folder / "wandb").glob(f"offline-run-*-{self._run.id}"):
            if not earlier.samefile(Path(self._run.dir).parent):
                shutil.rmtree(earlier)
        return Begun(self._run.id)

    def round(self, number: int, values: Mapping[str, float]) -> None:
        """Log a step of the history; see ``Tracker``."""
        self._run.log(dict(values), step=number, commit=True)

    def end(self, result: Mapping[str, Scalar] | None) -> None:
        """Write the summary; see ``Tracker``."""
        if result is not None:
            self._run.summary.update(dict(result))
        self._run.finish(exit_code=0 if result is not None else 1)
