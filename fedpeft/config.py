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

from fedpeft.contradictions import in_engine, in_federation, in_privacy, in_task
from fedpeft.errors import UserError, nearest, plain_message
from fedpeft.overrides import apply_override
from fedpeft.privacy.settings import PrivacySection
from fedpeft.settings import (
    SERVER_LR,
    EngineSection,
    FederationSection,
    HeadSection,
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
        "minilm", min_length=1, description="minilm, tiny (for tests), a hub name, a local folder"
    )
    representation: Representation | None = Field(
        None,
        description="what the head reads: mask | cls | mean; default: mean for minilm; "
        "tags: every word, whatever this says",
    )
    task: TaskSection = TaskSection()
    method: SerializeAsAny[MethodSettings] = Field(
        default={"name": "slash"},
        validate_default=True,
        description="the method's own settings; see `fedpeft methods`",
    )
    head: HeadSection = HeadSection()
    partition: PartitionSection = PartitionSection()
    federation: FederationSection = FederationSection()
    local: LocalSection = LocalSection()
    privacy: PrivacySection = PrivacySection()
    wire: WireSection = WireSection()
    engine: EngineSection = EngineSection()
    output: OutputSection = OutputSection()

    @field_validator("method", mode="before")
    @classmethod
    def _method(cls, value: Any) -> Any:
        from fedpeft.methods import settings_for

        return settings_for(value) if isinstance(value, Mapping) else value

    @model_validator(mode="after")
    def _check(self) -> Self:
        for problem in (
            *in_federation(self.federation, self.clients_per_round),
            *in_task(self.task),
            *in_engine(self.engine, self.method),
            *in_privacy(self.privacy, self.federation),
        ):
            raise UserError(problem)
        defaults = self.derived()
        if self.representation is None:
            object.__setattr__(self, "representation", defaults["representation"])
        for path in ("local.lr", "federation.server_lr"):
            name, key = path.split(".")
            section = getattr(self, name)
            if getattr(section, key) is None:
                # A copy: the section may be the class's default, which all experiments share.
                filled = section.model_copy(update={key: defaults[path]})
                object.__setattr__(self, name, filled)
        return self

    def derived(self) -> dict[str, Any]:
        """Return the defaults that depend on other settings, by the key they fill in."""
        from fedpeft.methods import default_lr

        return {
            "representation": _default_representation(self.backbone),
            "local.lr": default_lr(self.method.name),
            "federation.server_lr": SERVER_LR.get(self.federation.strategy),
        }

    @property
    def clients_per_round(self) -> int:
        """Number of clients asked each round, at least one."""
        federation = self.federation
        return federation.per_round or max(1, round(federation.fraction * federation.clients))

    @property
    def digest(self) -> str:
        """SHA-256 over all settings but the OPERATIONAL ones, as hexadecimal text."""
        return hashlib.sha256(json.dumps(_deciding(self), sort_keys=True).encode()).hexdigest()

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
            apply_override(values, override)
        return cls.of(values)

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Experiment:
        """Build an experiment from a tree of settings, as TOML gives one.

        Raises:
            UserError: an unknown key, a value outside its range, a contradiction.
        """
        try:
            return cls.model_validate(values)
        except ValidationError as error:
            raise UserError(_explain(error.errors()[0], values)) from None

    @classmethod
    def read(cls, path: Path | None, overrides: Iterable[str] = ()) -> Experiment:
        """Build an experiment from a TOML file (None: the defaults) and overrides."""
        if path is None:
            return cls.load("", overrides)
        if path.exists() and not path.is_file():
            raise UserError(f"'{path}' is no experiment file, but a folder or a device")
        if not path.exists():
            raise UserError(f"no experiment file '{path}'; `fedpeft config > {path}` writes one")
        try:
            return cls.load(path.read_text(encoding="utf-8"), overrides)
        except UnicodeDecodeError:
            raise UserError(f"{path}: not UTF-8 text; is it an experiment file?") from None
        except UserError as error:
            raise UserError(f"{path}: {error}") from None

    def to_toml(self, comments: bool = False, derived: bool = True) -> str:
        """Return the experiment as TOML.

        Args:
            comments: write each key's comment behind it.
            derived: write the defaults that depend on other settings; without them the text can
                be edited and they follow. They then stand there as comments.
        """
        defaults = {} if derived else self.derived()
        top, sections = [], []
        for name in type(self).model_fields:
            value = getattr(self, name)
            if isinstance(value, Section):
                lines = [
                    _toml_line(value, key, comments, defaults.get(f"{name}.{key}"))
                    for key in type(value).model_fields
                ]
                sections.append("\n".join([f"[{name}]", *filter(None, lines)]))
            else:
                top.append(_toml_line(self, name, comments, defaults.get(name)))
        return "\n\n".join(["\n".join(filter(None, top)), *sections]) + "\n"


#: Settings that may change when a run goes on: they decide when it stops, not what it computes.
OPERATIONAL = {
    "federation.timeout",
    "federation.node_wait",
    "federation.min_success",
    "engine.workers",
    "output.plots",
    "output.track",
}


def differing_keys(one: Experiment, other: Experiment) -> list[str]:
    """Return ``"local.lr (0.01 and 0.02)"`` for each setting that differs, OPERATIONAL ones not."""
    ours, theirs = _deciding(one), _deciding(other)
    keys = [*ours, *(key for key in theirs if key not in ours)]
    return [
        f"{key} ({ours.get(key, 'absent')} and {theirs.get(key, 'absent')})"
        for key in keys
        if ours.get(key) != theirs.get(key)
    ]


def _deciding(experiment: Experiment) -> dict[str, Any]:
    """Return the settings that decide what is computed, by their full keys."""
    result: dict[str, Any] = {}
    for name, value in experiment.model_dump().items():
        section = value.items() if isinstance(value, dict) else [("", value)]
        result |= {f"{name}.{key}".rstrip("."): each for key, each in section}
    return {key: value for key, value in result.items() if key not in OPERATIONAL}


def _toml_line(section: Section, key: str, comments: bool, default: Any = None) -> str:
    """Return ``key = value  # comment``, as a comment if the value is the derived default.

    TOML has no null, so a key without a value is left out.
    """
    value = getattr(section, key)
    comment = type(section).model_fields[key].description
    if value is None:  # shown to people, so that they know the key
        return f"{f'# {key} =':<36}# {comment}" if comments and comment else ""
    # A JSON string, number or boolean is a TOML value of the same meaning, but for DEL.
    line = f"{key} = {json.dumps(value, ensure_ascii=False)}".replace("\x7f", "\\u007f")
    if default is not None and value == default:
        line = f"# {line}"
    return f"{line:<36}# {comment}" if comments and comment else line


def _explain(error: ErrorDetails, values: Mapping[str, Any]) -> str:
    """Return one line for the first thing pydantic found wrong."""
    key = ".".join(str(part) for part in error["loc"])
    if error["type"] == "extra_forbidden":
        return f"unknown key '{key}'{nearest(key, _keys_beside(error['loc'], values))}"
    if error["type"] in ("model_type", "model_attributes_type"):
        return f"{key} = {error['input']!r}: is a section; set its keys, such as {key}.name=..."
    message = plain_message(error["msg"])
    hint = ""
    if error["type"] == "literal_error":
        options = [option.strip("' ") for option in message.replace(" or ", ", ").split(",")]
        hint = nearest(str(error["input"]), options)
        return f"{key} = {error['input']!r}: unknown{hint}"
    return f"{key} = {error['input']!r}: expected {message}"


def _keys_beside(location: tuple[int | str, ...], values: Mapping[str, Any]) -> list[str]:
    """Return the full names of the valid keys in the section of an unknown one."""
    section: type[BaseModel] = Experiment
    for part in location[:-1]:
        section = type(section.model_fields[str(part)].default)
    prefix = "".join(f"{part}." for part in location[:-1])
    return [prefix + key for key in section.model_fields]
