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
from typing import Any, Self

from pydantic import (
    BaseModel,
    Field,
    SerializeAsAny,
    ValidationError,
    field_validator,
    model_validator,
)
from pydantic_core import ErrorDetails

from fedpeft.errors import UserError, nearest
from fedpeft.settings import (
    SERVER_LR,
    EngineSection,
    FederationSection,
    LocalSection,
    MethodSettings,
    OutputSection,
    PartitionSection,
    Representation,
    Section,
    TaskSection,
    WireSection,
)


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
        needed = 2 * federation.byzantine + 3  # Blanchard et al. 2017, proposition 1
        if federation.strategy == "krum" and self.clients_per_round < needed:
            raise UserError(
                f"federation.byzantine = {federation.byzantine}: krum needs {needed} clients a "
                f"round, there are {self.clients_per_round}"
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
