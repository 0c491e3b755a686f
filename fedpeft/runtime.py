"""What an experiment needs in a process, made once and shared by all clients in it."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from functools import cached_property, lru_cache

from fedpeft.backbones import Backbone, backbone_shape, load_backbone, set_threads
from fedpeft.config import Experiment
from fedpeft.errors import UserError
from fedpeft.heads import Head
from fedpeft.methods import build_method
from fedpeft.model import TaskModel
from fedpeft.settings import TaskSection
from fedpeft.tasks import Task, TaskInfo, described, load_task
from fedpeft.tasks.encoding import Encoded, encode
from fedpeft.trainable import Trainable
from fedpeft.version import __version__

#: What two sides must have in common: the keys of ``Runtime.identity``.
COMMON = ("version", "experiment", "projection", "layout", "labels", "backbone")


@dataclass(frozen=True)
class Runtime:
    """Backbone, task and model of one experiment; everything is made when first used.

    Attributes:
        experiment: all settings.
        files: where the task's data lies on this machine, if not where the experiment says.
        known: what the task is, where its data is not here.
    """

    experiment: Experiment
    files: TaskSection | None = None
    known: TaskInfo | None = None

    @cached_property
    def backbone(self) -> Backbone:
        """The frozen backbone, shared by every experiment of the process that names it."""
        engine = self.experiment.engine
        return load_backbone(self.experiment.backbone, engine.device, engine.dtype)

    @cached_property
    def task(self) -> Task:
        """The task's examples."""
        column = self.experiment.partition.column if not self.files else ""
        natural = self.experiment.partition.kind == "natural"
        section = self.files or self.experiment.task
        return load_task(section, self.experiment.seed, column if natural else "")

    @cached_property
    def info(self) -> TaskInfo:
        """What is learned; the data is read only where its labels stand nowhere else."""
        return self.known or described(self.experiment.task) or self.task.info

    @cached_property
    def trainable(self) -> Trainable:
        """Method and head; neither backbone nor data is loaded for them."""
        experiment, info = self.experiment, self.info
        shape = backbone_shape(experiment.backbone)
        method = build_method(experiment.method, shape, experiment.seed)
        if method.around_mask and (experiment.representation != "mask" or info.kind == "tags"):
            here = f"representation = '{experiment.representation}'"
            raise UserError(
                f"{method.around_mask}: stands around the mask that is read, so it needs "
                f"representation = 'mask' and labels of texts; here it is "
                f"{'tags' if info.kind == 'tags' else here}"
            )
        head = Head(info.kind, info.classes, shape.width, experiment.head.d, experiment.seed)
        personal = experiment.federation.personal
        return Trainable(method, head, experiment.engine.dtype, personal)

    @cached_property
    def model(self) -> TaskModel:
        """Backbone, method and head."""
        ours, engine = self.trainable, self.experiment.engine
        return TaskModel(
            self.backbone,
            ours.method,
            ours.head,
            self.info.labels,
            engine.autocast,
            engine.projections,
            engine.cache_mb << 20,
        )

    @cached_property
    def train(self) -> Encoded:
        """The tokenised training examples of all clients."""
        return self._encode("train")

    @cached_property
    def dev(self) -> Encoded:
        """The tokenised evaluation examples."""
        return self._encode("dev")

    @cached_property
    def digest(self) -> str:
        """The experiment's digest."""
        return self.experiment.digest

    @cached_property
    def plan(self) -> dict[str, str]:
        """What two sides must have in common besides the backbone's weights."""
        return {
            "version": __version__,
            "experiment": self.digest,
            "projection": self.trainable.projection_digest,
            "layout": self.trainable.layout.digest,
            "labels": hashlib.sha256(json.dumps(self.info.labels).encode()).hexdigest(),
        }

    @cached_property
    def identity(self) -> dict[str, str]:
        """What two sides must have in common; a node that differs in any of it is refused."""
        return {**self.plan, "backbone": self.backbone.fingerprint}

    @cached_property
    def data_digest(self) -> str:
        """SHA-256 over the tokens and labels of both splits."""
        total = hashlib.sha256()
        for split in (self.train, self.dev):
            for array in (split.tokens, split.offsets, split.labels):
                total.update(array.tobytes())
        return total.hexdigest()

    def _encode(self, split: str) -> Encoded:
        experiment = self.experiment
        longest = self.backbone.longest - self.model.method.tokens
        if experiment.task.max_length > longest:
            raise UserError(
                f"task.max_length = {experiment.task.max_length}: '{experiment.backbone}' reads at "
                f"most {longest} tokens of a text with this method"
            )
        return encode(
            getattr(self.task, split),
            self.backbone.tokenizer,
            str(experiment.representation),
            experiment.task.max_length,
        )


def runtime_of(toml: str, files: TaskSection | None = None, content: str = "") -> Runtime:
    """Return this process's runtime of an experiment's TOML, the same object every time.

    Torch then uses the experiment's number of threads, whatever ran here before.

    Args:
        toml: the experiment.
        files: see ``Runtime``.
        content: digest of what the files hold now; other content, another runtime.
    """
    runtime = _runtime(toml, files, content)
    engine = runtime.experiment.engine
    set_threads(engine.threads, engine.workers if engine.kind != "local" else 1)
    return runtime


@lru_cache(maxsize=4)
def _runtime(toml: str, files: TaskSection | None, content: str) -> Runtime:
    return Runtime(Experiment.load(toml), files)


def forget_runtimes() -> None:
    """Let go of all runtimes of this process: their data, models and kept states."""
    _runtime.cache_clear()
