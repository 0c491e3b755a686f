"""What planning chose for the runs of a study, see ``fedpeft.planning``.

It is kept in the study's folder: reading a study then needs neither backbones nor data, and its
runs keep their settings.
"""

from __future__ import annotations

import hashlib
from typing import Any

from fedpeft.experiment.config import Experiment

Known = dict[str, dict[str, Any]]


class Choices:
    """Makes the choices that experiments leave open, each once.

    Args:
        known: what was chosen before, by digest of the settings as the study has them.
        chooses: False for a study that was begun before there were choices: its runs keep the
            values that were the only ones.
    """

    def __init__(self, known: Known | None = None, chooses: bool = True):
        self.known, self.chooses = dict(known or {}), chooses

    def made(self, experiment: Experiment) -> Experiment:
        """Return an experiment with all choices made; see ``planned`` for errors."""
        if not self.chooses and not experiment.wire.budget:
            return experiment
        # Defaults are written as comments: a choice is open or made.
        name = hashlib.sha256(experiment.to_toml(derived=False).encode()).hexdigest()
        kept = self.known.get(name, None if self.chooses else {})
        if kept is not None and not experiment.wire.budget:
            return experiment.with_choices(kept)
        from fedpeft.planning import choices_of, planned  # loads torch

        decided = planned(experiment, kept)
        if self.chooses:
            self.known[name] = choices_of(decided, experiment)
        return decided
