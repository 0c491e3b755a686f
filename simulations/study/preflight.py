"""Check the settings and files of all runs of a study before the first one starts."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from clients.data.partitioning import check_kind
from fedpeft.backbones.checkpoints import checkpoint
from fedpeft.errors import UserError
from fedpeft.experiment.config import Experiment
from fedpeft.experiment.settings import LocalSection
from fedpeft.runs.folder import RESULT
from fedpeft.runtime import Runtime
from fedpeft.tasks import TaskInfo, checked_info
from simulations.engines.ray import require_ray
from simulations.study.cells import Cell, error_in
from simulations.study.folder import StudyFolder
from simulations.tracking import require_trackers


def check_cells(folder: StudyFolder, cells: Sequence[Cell]) -> None:
    """Check what a cell without a result needs, as far as that takes neither weights nor texts.

    Raises:
        UserError: a cell names missing data, a missing backbone, settings that do not fit the
            task or the backbone, or a package that is not installed.
    """
    # Many cells share a task, a backbone or a method: check each once.
    info_of, folder_of = lru_cache(None)(checked_info), lru_cache(None)(checkpoint)

    @lru_cache(None)
    def check_parameters(experiment: Experiment, info: TaskInfo) -> None:
        _ = Runtime(experiment, known=info).parameters

    def check(experiment: Experiment) -> None:
        if experiment.engine.kind == "ray":
            require_ray("engine.kind = 'ray'")
        require_trackers(experiment.output.track)
        if experiment.backbone != "tiny":
            folder_of(experiment.backbone)
        partition = experiment.partition
        column = partition.column if partition.kind == "natural" else ""
        info = info_of(experiment.task, column)
        check_kind(info, experiment)
        # Seed and learning rate vary most and do not matter here.
        alike = experiment.model_copy(update={"seed": 0, "local": LocalSection()})
        check_parameters(alike, info)

    for cell in cells:
        if not (folder.run_of(cell).path / RESULT).exists():
            try:
                check(cell.experiment)
            except UserError as error:
                raise error_in(cell.labels, error) from None
