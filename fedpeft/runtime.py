"""The objects an experiment needs in a process, created once and shared by its clients."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np

from fedpeft.backbones.checkpoints import backbone_digest, backbone_shape
from fedpeft.backbones.hardware import set_threads
from fedpeft.backbones.loading import Backbone, load_backbone
from fedpeft.batches.encoded import Encoded
from fedpeft.errors import UserError
from fedpeft.experiment.config import Experiment
from fedpeft.experiment.settings import TaskSection
from fedpeft.files import digest_of_files
from fedpeft.fitting import check_fitting
from fedpeft.heads import Head, build_head
from fedpeft.methods import build_method
from fedpeft.methods.base import Method
from fedpeft.model import TaskModel
from fedpeft.nested import absent
from fedpeft.optimizers import HeadRate
from fedpeft.parameters import TaskParameters, layout_of
from fedpeft.projection import Projection
from fedpeft.tasks import Kind, Task, TaskInfo, described, load_task, local_files
from fedpeft.tasks.base import Examples
from fedpeft.tasks.encoding import encode
from fedpeft.tasks.label_words import encode_prompted, label_words
from fedpeft.tasks.text_metrics import generates
from fedpeft.tasks.writing import encode_written
from fedpeft.text.likelihood import LikelihoodModel
from fedpeft.text.model import Search, TextModel
from fedpeft.version import __version__

#: Keys of ``Runtime.identity``, which server and node must have in common.
COMMON = ("version", "experiment", "projection", "layout", "labels", "backbone")
#: From so many training examples on, a run that asks few of its clients encodes only theirs.
MANY, _FEW = 100_000, 0.1


@dataclass(frozen=True, eq=False)
class Runtime:
    """Backbone, task and model of one experiment, each created on first use.

    Attributes:
        experiment: all settings.
        files: task section with the paths of this machine's data; None = the experiment's.
        known: description of the task, if its data is not on this machine.
        weights: form in which this machine holds the frozen weights; "" = the experiment's.
        content: digest of the files that it reads, see ``content_of``; "" = not known.
    """

    experiment: Experiment
    files: TaskSection | None = None
    known: TaskInfo | None = None
    weights: str = ""
    content: str = ""

    @property
    def held(self) -> str:
        """Form in which this machine holds the frozen weights."""
        return self.weights or self.experiment.engine.weights

    @cached_property
    def backbone(self) -> Backbone:
        """The frozen backbone, shared by every experiment of the process that names it."""
        name, engine = self.experiment.backbone, self.experiment.engine
        writes = self.info.kind == "text" or self.experiment.by_likelihood
        return load_backbone(name, engine.device, engine.dtype, writes, self.held)

    @cached_property
    def task(self) -> Task:
        """The task's examples."""
        column = self.experiment.partition.column if not self.files else ""
        natural = self.experiment.partition.kind == "natural"
        section = self.files or self.experiment.task
        return load_task(section, self.experiment.seed, column if natural else "")

    @cached_property
    def info(self) -> TaskInfo:
        """Description of the task; its data is read only if it alone has the labels."""
        return self.known or described(self.experiment.task) or self.task.info

    @cached_property
    def _parts(self) -> tuple[Method[Any], Head]:
        """Method and head; they hold no numbers."""
        experiment, info = self.experiment, self.info
        shape = backbone_shape(experiment.backbone)
        method = build_method(experiment.method, shape, experiment.seed)
        check_fitting(experiment, shape, method, info)
        representation = str(experiment.representation)
        apart = experiment.task.pairs == "apart"
        head = build_head(
            info, shape.width, experiment.head, experiment.seed, representation, apart
        )
        return method, head

    @property
    def vector_size(self) -> int:
        """Length P of the task vector, computed without allocating it."""
        return layout_of(*self._parts).size

    @property
    def projected(self) -> int:
        """Count of numbers that the stored projections of method and head take in memory."""
        regenerated = self.experiment.engine.projections == "regenerated"
        streams = [stream for part in self._parts for stream in part.projections()]
        return sum(
            (0 if regenerated else stream.rows * stream.columns)
            if isinstance(stream, Projection)
            else stream.rows
            for stream in streams
        )

    @cached_property
    def parameters(self) -> TaskParameters:
        """Method and head, created without loading backbone or data."""
        method, head = self._parts
        experiment, personal = self.experiment, self.experiment.federation.personal
        parameters = TaskParameters(method, head, experiment.engine.dtype, personal)
        if experiment.nested.d:
            absent(parameters, experiment)  # refuse what cannot be nested
        return parameters

    @property
    def head_rate(self) -> HeadRate | None:
        """How fast the head moves, and the others beside it; None = all alike."""
        head, lr = self.experiment.head, self.experiment.local.lr
        if head.lr is None and not head.steepness:
            return None
        assert lr is not None, "the experiment is filled in"
        return HeadRate(self.parameters.layout.head_size, head.lr or lr, head.steepness or 0.0)

    @cached_property
    def model(self) -> TaskModel:
        """Backbone, method and head."""
        engine, task, labels = self.experiment.engine, self.experiment.task, self.info.labels
        common = self.backbone, self.parameters
        options: dict[str, Any] = {
            "labels": labels,
            "autocast": engine.autocast,
            "projections": engine.projections,
            "cache": engine.cache_mb << 20,
            "checkpointing": engine.checkpointing,
        }
        if self.info.kind == "text":
            model = TextModel(*common, **options)
            model.search = Search(task.max_target, task.beams, generates(self.info.metric))
            return model
        if self.experiment.by_likelihood:
            chosen = self.experiment.head.words
            words = label_words(labels, chosen, self.backbone, task.prompt)
            return LikelihoodModel(*common, words, **options)
        return TaskModel(*common, **options)

    @cached_property
    def train(self) -> Encoded:
        """The encoded training examples of all clients."""
        return self.encode(self.task.train)

    @cached_property
    def encodes_all(self) -> bool:
        """Whether all training examples are encoded at once: they are few, or most are used."""
        federation = self.experiment.federation
        asked = self.experiment.clients_asked * federation.rounds
        return len(self.task.train) < MANY or asked > _FEW * federation.clients

    def training(self, rows: np.ndarray) -> Encoded:
        """Return encoded training examples, by their rows int64 [n]."""
        return (
            self.train.select(rows)
            if self.encodes_all
            else self.encode(self.task.train.select(rows))
        )

    @cached_property
    def lengths(self) -> np.ndarray:
        """Numbers of tokens of training examples: all, or the first of very many, int [n]."""
        first = np.arange(MANY // 10)
        return self.train.lengths if self.encodes_all else self.training(first).lengths

    def load(self) -> None:
        """Load backbone and data now, so that mistakes show and no message waits."""
        _ = self.model, self.dev, self.lengths

    @cached_property
    def dev(self) -> Encoded:
        """The encoded evaluation examples."""
        return self.encode(self.task.dev)

    @cached_property
    def digest(self) -> str:
        """The experiment's digest."""
        return self.experiment.digest

    @cached_property
    def plan(self) -> dict[str, str]:
        """The part of ``identity`` that needs no weights of the backbone."""
        return {
            "version": __version__,
            "experiment": self.digest,
            "projection": self.parameters.projection_digest,
            "layout": self.parameters.layout.digest,
            "labels": hashlib.sha256(json.dumps(self.info.labels).encode()).hexdigest(),
        }

    @cached_property
    def identity(self) -> dict[str, str]:
        """Digests by name; a node that differs from the server in any is refused."""
        return {**self.plan, "backbone": self.backbone.fingerprint}

    @cached_property
    def data_digest(self) -> str:
        """SHA-256 over the tokens and labels of both splits, or the texts of very many examples."""
        total = hashlib.sha256()
        for part in () if self.encodes_all else self.task.train.content():
            total.update(part)
        for split in (self.train, self.dev) if self.encodes_all else (self.dev,):
            for array in (split.tokens, split.offsets, split.labels):
                total.update(array.tobytes())
        return total.hexdigest()

    def encode(self, examples: Examples) -> Encoded:
        """Return examples of the task as the backbone reads them."""
        return encode_examples(examples, self.backbone, self.experiment, self.info.kind)


def encode_examples(
    examples: Examples, backbone: Backbone, experiment: Experiment, kind: Kind
) -> Encoded:
    """Return examples as the backbone reads them.

    Args:
        examples: the texts.
        backbone: its tokenizer is used.
        experiment: how texts are read.
        kind: of the task.
    """
    if kind == "text":
        return encode_written(examples, backbone, experiment.task)
    if experiment.by_likelihood:
        return encode_prompted(examples, backbone, experiment.task)
    task, representation = experiment.task, str(experiment.representation)
    apart = task.pairs == "apart"
    return encode(examples, backbone.tokenizer, representation, task.max_length, apart)


def content_of(experiment: Experiment, files: TaskSection | None = None) -> str:
    """Return the SHA-256 of the files of this machine that a runtime reads, as they are now.

    Args:
        experiment: all settings.
        files: see ``Runtime``.
    """
    data = digest_of_files(local_files(files or experiment.task))
    return hashlib.sha256(f"{data} {backbone_digest(experiment.backbone)}".encode()).hexdigest()


def runtime_of(
    experiment: Experiment,
    files: TaskSection | None = None,
    weights: str = "",
    content: str = "",
) -> Runtime:
    """Return this process's runtime of an experiment: the same object while its files are the same.

    Sets torch's number of threads to the experiment's.

    Args:
        experiment: all settings.
        files: see ``Runtime``.
        weights: see ``Runtime``.
        content: of a run that has begun: it continues with what this process has in memory, also
            if the files have changed since; "" = ``content_of`` the files as they are now.

    Raises:
        UserError: the files are not those of ``content`` any more, and not in memory.
    """
    engine = experiment.engine
    set_threads(engine.threads, engine.workers if engine.kind != "local" else 1)
    return _runtime(experiment, files, weights, content or content_of(experiment, files))


@lru_cache(maxsize=4)
def _runtime(
    experiment: Experiment, files: TaskSection | None, weights: str, content: str
) -> Runtime:
    if content != content_of(experiment, files):
        raise UserError(
            "the files of task or backbone have changed since the run began; restore them, or "
            "begin another run"
        )
    return Runtime(experiment, files, weights=weights, content=content)


def forget_runtimes() -> None:
    """Drop the runtimes of this process. They hold data, models and kept states."""
    _runtime.cache_clear()
