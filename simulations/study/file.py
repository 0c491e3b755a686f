"""The study file: a base experiment, axes, and optionally a search for the best settings.

::

    title = "Communication against accuracy"

    [base]                            # an experiment, as in its own file
    task.name = "sst2"
    federation.rounds = 10

    [axes]                            # the cells are all combinations
    seed = [0, 1, 2]                  # values of one key, by its full name
    method = [                        # or choices of several keys, each with a label
        { label = "SLaSh 256", method.name = "slash", method.d = 256 },
        { label = "LoRA 1", method.name = "lora", method.rank = 1 },
    ]

    [[cells]]                         # or a list, crossed with the axes; a label may be several
    label = { task = "RTE", method = "SLaSh 1K" }
    task.name = "rte"

    [search]                          # each combination of the axes but seed at its best
    over.local.lr = [1e-3, 1e-2]
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any, Self

from pydantic import Field, ValidationError, model_validator

from fedpeft.errors import UserError, nearest, plain_message
from fedpeft.experiment.config import Experiment
from fedpeft.files import USERS_TEXT
from fedpeft.methods.settings import Section

CELLS = "cell"  # the axis that [[cells]] makes
SEED = "seed"  # the axis whose values repeat a measurement


class SearchSection(Section):
    """Search for settings of each combination, on examples held out of its training set."""

    over: dict[str, Any] = Field(
        {},
        description="key = values, or low, high, log of a range; a choice on an axis may have "
        "its own `over`",
    )
    by: tuple[str, ...] | None = Field(
        None, description="axes with a choice of their own; default: all but seed"
    )
    trials: int = Field(0, ge=0, description="so many random ones; 0 = all combinations")
    validation: float = Field(0.2, gt=0, lt=1, description="share of the training examples")
    seed: int = Field(0, ge=0, description="of the trials' runs, and of random trials")
    set: dict[str, Any] = Field({}, description="settings of the trials only, as fewer rounds")


class ReportSection(Section):
    """Targets and budgets of the report."""

    targets: dict[str, float] = Field({}, description="task = score that is to be reached")
    budgets: tuple[int, ...] = Field(
        (), description="bytes a client may send up in a whole run (payload)"
    )


class Published(Section):
    """A score of a paper, shown in a separate column next to the measured ones."""

    source: str = Field(min_length=1, description="paper, table, backbone and budget")
    where: dict[str, str] = Field(description="label on some axes")
    score: float = Field(description="in our unit: an accuracy of 94.1 % is 0.941")
    deviation: float | None = None


class StudyFile(Section):
    """A study file; ``simulations.study.cells`` makes its runs."""

    title: str = ""
    about: str = Field("", description="what is asked, for the report")
    base: dict[str, Any] = Field({}, description="the settings that all cells begin with")
    axes: dict[str, Any] = Field({}, description="key or name = values or choices")
    cells: tuple[dict[str, Any], ...] = ()
    search: SearchSection | None = None
    report: ReportSection = ReportSection()
    published: tuple[Published, ...] = ()

    @model_validator(mode="after")
    def _check(self) -> Self:
        if not self.axes and not self.cells:
            raise UserError("no cells: expected [axes] with at least one list, or [[cells]]")
        if CELLS in self.axes and self.cells:
            raise UserError(f"axes.{CELLS}: [[cells]] are an axis of this name; choose another")
        return self


def parse(text: str) -> StudyFile:
    """Return the study of a TOML text.

    Raises:
        UserError: not TOML, an unknown key, a wrong value, no cells.
    """
    try:
        return StudyFile.model_validate(tomllib.loads(text))
    except tomllib.TOMLDecodeError as error:
        raise UserError(f"not valid TOML: {error}") from None
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        if first["type"] == "extra_forbidden":
            hint = nearest(key, StudyFile.model_fields) if len(first["loc"]) == 1 else ""
            if key in Experiment.model_fields:
                hint = "; is it an experiment file? `fedpeft simulate FILE` runs one"
            if first["loc"][0] == "search":
                hint = f"; settings to try stand below over: search.over.{key[7:]} = [...]"
            raise UserError(f"unknown key '{key}'{hint}") from None
        if first["type"] == "missing":
            raise UserError(f"{key}: is missing") from None
        message = plain_message(first["msg"])
        raise UserError(f"{key} = {first['input']!r}: expected {message}") from None


def read(path: Path) -> tuple[StudyFile, str]:
    """Return the study of a file, and its text.

    Raises:
        UserError: the file cannot be read, or see ``parse``.
    """
    if not path.is_file():
        raise UserError(f"no study file '{path}'")
    try:
        text = path.read_text(encoding=USERS_TEXT)
    except UnicodeDecodeError:
        raise UserError(f"{path}: not UTF-8 text; is it a study file?") from None
    try:
        return parse(text), text
    except UserError as error:
        raise UserError(f"{path}: {error}") from None
