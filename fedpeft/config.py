"""The experiment: one tree of settings, the same for simulation, deployment and studies.

``Experiment`` is built from a TOML file and ``key=value`` overrides, checked completely, and
written back with every default filled in. A method's own settings live in its file
(``fedpeft/methods``); this module only asks the registry for them.
"""

from __future__ import annotations

import hashlib
import json
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, Self, get_args

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SerializeAsAny,
    ValidationError,
    field_validator,
    model_validator,
)
from pydantic_core import ErrorDetails

from fedpeft.errors import UserError, nearest

Representation = Literal["mask", "cls", "mean"]
Strategy = Literal[
    "fedavg", "fedavgm", "fedadam", "fedyogi", "fedadagrad", "fedmedian", "fedtrimmedavg", "krum"
]

#: Server learning rate of each strategy that has one; those that pick or trim clients have none.
SERVER_LR = {"fedavg": 1.0, "fedavgm": 1.0, "fedadam": 0.01, "fedyogi": 0.01, "fedadagrad": 0.01}


class Section(BaseModel):
    """A part of the experiment: unknown keys are refused, values cannot be changed later."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class TaskSection(Section):
    """What is learned, and from which files."""

    name: str = Field(
        "synthetic/sentiment",
        description="a GLUE name (sst2, qnli, ...), synthetic/..., or custom; see `fedpeft tasks`",
    )
    path: str = Field("", description="local folder with the task's files; empty = the hub")
    train: str = Field("", description="custom: file to train on (.tsv .csv .jsonl .parquet)")
    dev: str = Field("", description="custom: file to evaluate on")
    text: str = Field("text", description="custom: name of the text column")
    text_pair: str = Field("", description="custom: name of the second text column, if any")
    label: str = Field("label", description="custom: name of the label column")
    kind: Literal["classes", "score"] = Field(
        "classes", description="custom: 'classes' (any number, text or numbers) or 'score'"
    )
    train_limit: int = Field(0, ge=0, description="use so many training examples; 0 = all")
    eval_limit: int = Field(0, ge=0, description="use so many evaluation examples; 0 = all")
    max_length: int = Field(128, ge=8, description="tokens a text is cut to, special ones included")


class PartitionSection(Section):
    """How the training examples are spread over the clients of a simulation."""

    kind: Literal["iid", "dirichlet", "pathological", "quantity", "natural", "bins"] = Field(
        "iid",
        description="iid | dirichlet (labels) | pathological (k classes a client) | "
        "quantity (sizes) | natural (id column) | bins (ranges of a score)",
    )
    alpha: float = Field(0.5, gt=0, description="dirichlet, quantity: smaller = less even")
    classes: int = Field(1, ge=1, description="pathological: classes a client has")
    strictness: float = Field(
        0.8, ge=0, le=1, description="bins: 1 = a client has one range only, 0 = iid"
    )
    column: str = Field("", description="natural: name of the column that says whose example it is")
    min_examples: int = Field(
        1, ge=1, description="smaller clients are filled up from the largest ones"
    )


class FederationSection(Section):
    """Rounds, sampling and aggregation."""

    clients: int = Field(10, ge=1, description="number of clients")
    rounds: int = Field(10, ge=1, description="number of rounds")
    fraction: float = Field(1.0, gt=0, le=1, description="share of the clients asked each round")
    per_round: int = Field(0, ge=0, description="number of clients asked each round; 0 = fraction")
    strategy: Strategy = Field("fedavg", description=" | ".join(get_args(Strategy)))
    weighting: Literal["examples", "uniform"] = Field(
        "examples", description="clients weigh by their examples, or all the same"
    )
    server_lr: float | None = Field(
        None, gt=0, description="server learning rate; default 1 for fedavg(m), 0.01 adaptive"
    )
    server_momentum: float = Field(0.9, ge=0, lt=1, description="fedavgm: momentum")
    tau: float = Field(1e-3, gt=0, description="fedadam, fedyogi, fedadagrad: adaptivity")
    trim: float = Field(
        0.2, ge=0, lt=0.5, description="fedtrimmedavg: share cut off at either end, each coordinate"
    )
    byzantine: int = Field(0, ge=0, description="krum: number of clients that may be malicious")
    min_success: int = Field(1, ge=1, description="fewer good replies than this stop the run")
    max_update_norm: float = Field(
        0.0, ge=0, description="an update with a larger L2 norm counts as failed; 0 = no limit"
    )
    timeout: float = Field(3600.0, gt=0, description="seconds a round may take")
    node_wait: float = Field(60.0, gt=0, description="seconds to wait for the nodes to connect")
    evaluation: Literal["server", "clients"] = Field(
        "server", description="who evaluates: the server on the dev set, or each client a share"
    )


class LocalSection(Section):
    """Training at one client in one round."""

    epochs: int = Field(1, ge=1, description="passes over the client's examples a round")
    steps: int = Field(0, ge=0, description="steps a round instead of epochs; 0 = by epochs")
    batch_size: int = Field(16, ge=1, description="examples a step")
    optimizer: Literal["adamw", "sgd"] = Field("adamw", description="adamw | sgd")
    lr: float | None = Field(None, gt=0, description="learning rate; default: the method's")
    momentum: float = Field(0.0, ge=0, lt=1, description="sgd: momentum")
    weight_decay: float = Field(0.0, ge=0, description="decoupled weight decay")
    schedule: Literal["linear", "constant"] = Field(
        "linear", description="learning rate over the whole run: linear to 0, or constant"
    )
    warmup: float = Field(0.0, ge=0, lt=1, description="share of the whole run to warm up in")
    max_grad_norm: float = Field(1.0, ge=0, description="gradient norm is cut to this; 0 = never")
    proximal_mu: float = Field(0.0, ge=0, description="weight of FedProx's term")


class WireSection(Section):
    """How a task vector travels."""

    codec: Literal["float32", "float16", "float64"] = Field(
        "float32", description="number format of the task vector in a message"
    )


class EngineSection(Section):
    """What runs the clients."""

    kind: Literal["local", "ray"] = Field(
        "local", description="local: in this process | ray: Flower's simulation, many processes"
    )
    cohort: int = Field(1, ge=1, description="local: clients trained together in one batch")
    workers: int = Field(1, ge=1, description="ray: processes that run clients")
    threads: int = Field(0, ge=0, description="torch threads a process; 0 = torch decides")
    device: Literal["auto", "cpu", "cuda", "mps"] = Field("auto", description="auto: best there is")
    dtype: Literal["float32", "float64"] = Field("float32", description="numbers of the model")
    autocast: Literal["off", "bfloat16", "float16"] = Field(
        "off", description="lower precision inside the backbone"
    )


class OutputSection(Section):
    """What a run writes besides its results."""

    eval_every: int = Field(1, ge=1, description="evaluate every so many rounds, and the last")
    plots: bool = Field(True, description="draw score, loss and partition at the end")


class MethodSettings(Section):
    """Base of a method's settings; each method's file defines its own."""

    name: str


def _default_representation(backbone: str) -> str:
    """MiniLM was trained for mean pooling; the seed reads [MASK] (section 3.1)."""
    return "mean" if backbone == "minilm" else "mask"


class Experiment(Section):
    """Everything that decides a run's result; ``digest`` names it.

    Settings that contradict each other raise UserError.
    """

    seed: int = Field(0, ge=0, description="every random number of the run derives from it")
    backbone: str = Field(
        "minilm", description="minilm, tiny (for tests), a hub name, or a local folder"
    )
    representation: Representation | None = Field(
        None, description="what the head reads: mask | cls | mean; default: mean for minilm"
    )
    task: TaskSection = TaskSection()
    method: SerializeAsAny[MethodSettings] = Field(
        default={"name": "slash"},
        validate_default=True,
        description="the method's own settings; see `fedpeft methods`",
    )
    partition: PartitionSection = PartitionSection()
    federation: FederationSection = FederationSection()
    local: LocalSection = LocalSection()
    wire: WireSection = WireSection()
    engine: EngineSection = EngineSection()
    output: OutputSection = OutputSection()

    @field_validator("method", mode="before")
    @classmethod
    def _method(cls, value: Any) -> Any:
        from fedpeft.methods import settings_for

        return settings_for(value) if isinstance(value, Mapping) else value

    @model_validator(mode="before")
    @classmethod
    def _fill_in(cls, values: Any) -> Any:
        """Write the defaults that depend on other settings into the experiment."""
        if not isinstance(values, dict):
            return values
        values = dict(values)
        if values.get("representation") is None:
            backbone = values.get("backbone", cls.model_fields["backbone"].default)
            values["representation"] = _default_representation(backbone)
        return values

    @model_validator(mode="after")
    def _check(self) -> Self:
        from fedpeft.methods import default_lr

        federation = self.federation
        server_lr = SERVER_LR.get(federation.strategy)
        if federation.server_lr is not None and server_lr is None:
            raise UserError(
                f"federation.server_lr = {federation.server_lr}: strategy "
                f"'{federation.strategy}' has none; leave it out"
            )
        if federation.per_round > federation.clients:
            raise UserError(
                f"federation.per_round = {federation.per_round}: expected at most "
                f"federation.clients = {federation.clients}"
            )
        if federation.min_success > self.clients_per_round:
            raise UserError(
                f"federation.min_success = {federation.min_success}: only "
                f"{self.clients_per_round} clients are asked each round"
            )
        if self.engine.kind == "ray" and self.engine.cohort > 1:
            raise UserError(
                f"engine.cohort = {self.engine.cohort}: only engine 'local' has cohorts"
            )
        if self.local.lr is None:
            local = self.local.model_copy(update={"lr": default_lr(self.method.name)})
            object.__setattr__(self, "local", local)
        if federation.server_lr is None and server_lr is not None:
            filled = federation.model_copy(update={"server_lr": server_lr})
            object.__setattr__(self, "federation", filled)
        return self

    @property
    def clients_per_round(self) -> int:
        """Number of clients asked each round, at least one."""
        federation = self.federation
        return federation.per_round or max(1, round(federation.fraction * federation.clients))

    @property
    def digest(self) -> str:
        """SHA-256 over all settings, as hexadecimal text."""
        return hashlib.sha256(json.dumps(self.model_dump(), sort_keys=True).encode()).hexdigest()

    @classmethod
    def load(cls, text: str = "", overrides: Iterable[str] = ()) -> Experiment:
        """Build an experiment from TOML text and overrides such as ``"local.lr=3e-3"``.

        Raises:
            UserError: not TOML, an unknown key, a value outside its range.
        """
        try:
            values = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise UserError(f"the experiment file is not valid TOML: {error}") from None
        for override in overrides:
            _apply_override(values, override)
        try:
            return cls.model_validate(values)
        except ValidationError as error:
            raise UserError(_explain(error.errors()[0], values)) from None

    @classmethod
    def read(cls, path: Path | None, overrides: Iterable[str] = ()) -> Experiment:
        """Build an experiment from a TOML file (None: the defaults) and overrides."""
        if path is None:
            return cls.load("", overrides)
        if not path.is_file():
            raise UserError(f"no experiment file '{path}'; `fedpeft config > {path}` writes one")
        try:
            return cls.load(path.read_text(encoding="utf-8"), overrides)
        except UserError as error:
            raise UserError(f"{path}: {error}") from None

    def to_toml(self, comments: bool = False) -> str:
        """Return the complete experiment as TOML, each key with its comment if asked."""
        top, sections = [], []
        for name in type(self).model_fields:
            value = getattr(self, name)
            if isinstance(value, Section):
                lines = [_toml_line(value, key, comments) for key in type(value).model_fields]
                sections.append("\n".join([f"[{name}]", *filter(None, lines)]))
            else:
                top.append(_toml_line(self, name, comments))
        return "\n\n".join(["\n".join(filter(None, top)), *sections]) + "\n"


def differing_keys(one: Experiment, other: Experiment) -> list[str]:
    """Return ``"local.lr (0.01 and 0.02)"`` for every setting that differs."""

    def flat(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
        result: dict[str, Any] = {}
        for key, value in values.items():
            name = f"{prefix}{key}"
            result |= flat(value, f"{name}.") if isinstance(value, dict) else {name: value}
        return result

    ours, theirs = flat(one.model_dump()), flat(other.model_dump())
    keys = [*ours, *(key for key in theirs if key not in ours)]
    return [
        f"{key} ({ours.get(key, 'absent')} and {theirs.get(key, 'absent')})"
        for key in keys
        if ours.get(key) != theirs.get(key)
    ]


def _toml_line(section: Section, key: str, comments: bool) -> str:
    """Return ``key = value  # comment``; TOML has no null, so a key without value is left out."""
    value = getattr(section, key)
    if value is None:
        return ""
    # A JSON string, number or boolean is a TOML value of the same meaning.
    line = f"{key} = {json.dumps(value, ensure_ascii=False)}"
    comment = type(section).model_fields[key].description
    return f"{line:<36}# {comment}" if comments and comment else line


def _apply_override(values: dict[str, Any], override: str) -> None:
    """Set one ``key=value`` in the tree; what is not a TOML value is taken as text."""
    key, equals, text = override.partition("=")
    if not equals or not key:
        raise UserError(f"-s {override}: expected key=value, for example -s local.lr=3e-3")
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = text
    *parents, last = key.split(".")
    node = values
    for parent in parents:
        node = node.setdefault(parent, {})
        if not isinstance(node, dict):
            raise UserError(f"-s {override}: '{parent}' is a value, not a section")
    if last == "name" and parents == ["method"] and node.get("name", value) != value:
        node.clear()  # another method: the old one's settings do not apply to it
    node[last] = value


def _explain(error: ErrorDetails, values: dict[str, Any]) -> str:
    """Return one line for the first thing pydantic found wrong."""
    key = ".".join(str(part) for part in error["loc"])
    if error["type"] == "extra_forbidden":
        return f"unknown key '{key}'{nearest(key, _keys_beside(error['loc'], values))}"
    message = error["msg"].removeprefix("Input should be ")
    hint = ""
    if error["type"] == "literal_error":
        options = [option.strip("' ") for option in message.replace(" or ", ", ").split(",")]
        hint = nearest(str(error["input"]), options)
        return f"{key} = {error['input']!r}: unknown{hint}"
    return f"{key} = {error['input']!r}: expected {message}"


def _keys_beside(location: tuple[int | str, ...], values: dict[str, Any]) -> list[str]:
    """Return the full names of the valid keys in the section of an unknown one."""
    section: type[BaseModel] = Experiment
    for part in location[:-1]:
        section = type(section.model_fields[str(part)].default)
    prefix = "".join(f"{part}." for part in location[:-1])
    return [prefix + key for key in section.model_fields]
