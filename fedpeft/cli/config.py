"""``fedpeft config``: print a complete experiment file."""

from __future__ import annotations

import sys
from functools import partial

from fedpeft.cli.options import ExperimentFile, Overrides, read_experiment


def config(experiment: ExperimentFile = None, overrides: Overrides = None) -> None:
    """Print the complete experiment file: every key with its value and a comment.

    Example: fedpeft config -s method.name=lora > experiment.toml
    """
    settings = read_experiment(
        experiment, overrides, partial(print, file=sys.stderr), elsewhere=True
    )
    print(settings.to_toml(comments=True, derived=False), end="")
