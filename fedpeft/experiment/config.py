"""The experiment: one tree of settings, shared by simulation, deployment and studies.

``Experiment`` is built from a TOML file and ``key=value`` overrides, validated as a whole, and
written back with every default filled in. A method's settings are defined in its file
(``fedpeft/methods``); this module gets them from the registry.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from math import ceil
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

from fedpeft.backbones.known import default_representation
from fedpeft.errors import UserError
from fedpeft.experiment import toml, toml_writer
from fedpeft.experiment.adversary import AdversarySection, in_adversary
from fedpeft.experiment.asynchrony import in_asynchrony
from fedpeft.experiment.contradictions import (
    in_engine,
    in_federation,
    in_head,
    in_privacy,
    in_rank,
    in_start,
    in_task,
)
from fedpeft.experiment.devices import DevicesSection, in_devices
from fedpeft.experiment.federation import SERVER_LR, FederationSection
from fedpeft.experiment.mistakes import explain
from fedpeft.experiment.overrides import apply_override, require_unicode
from fedpeft.experiment.privacy import PrivacySection
from fedpeft.experiment.robust import in_robust
from fedpeft.experiment.secure import DEFAULT_CODEC, SecureSection, in_secure
from fedpeft.experiment.settings import (
    EngineSection,
    HeadSection,
    LocalSection,
    NestedSection,
    OutputSection,
    PartitionSection,
    Representation,
    TaskSection,
    WireSection,
)
from fedpeft.experiment.sizes import share_of
from fedpeft.experiment.text_contradictions import in_text
from fedpeft.experiment.wire_contradictions import in_nested, in_wire, in_zeroth_order
from fedpeft.methods import default_lr, settings_for
from fedpeft.methods.settings import MethodSettings, Section

#: Settings that may change when a run is resumed: they decide when it stops, not what it computes.
OPERATIONAL = {
    "federation.timeout",
    "federation.node_wait",
    "federation.min_success",
    "engine.workers",
    "output.plots",
    "output.track",
}


#: Settings that were added later, with the values that runs had before. These values are no part of
#: a digest, so stored runs keep theirs.
ADDED = {"head.start": "random", "head.lr": None, "head.steepness": None, "task.pairs": "joint"}
#: Settings that decide nothing unless another one has a value.
_ONLY_WITH = {"head.sums": ("head.start", "sums"), "head.moments": ("head.start", "sums")}


#: Settings that ``fedpeft.planning`` chooses unless the user has set them.
CHOSEN = (
    *("representation", "task.pairs", "method.init", "local.lr"),
    *("head.lr", "head.steepness", "head.start", "head.sums", "head.moments"),
)


class Experiment(Section):
    """All settings of a run.

    Raises:
        UserError: two settings contradict each other.
    """

    seed: int = Field(0, ge=0, lt=2**64, description="seed of all random numbers of the run")
    backbone: str = Field(
        "minilm",
        min_length=1,
        description="minilm, tiny (for tests), a Hugging Face hub name or a local folder",
    )
    representation: Representation | None = Field(
        None,
        description="what the head reads: mask | cls | mean | unit (the mean, scaled to the length "
        "sqrt(width)) | last (the last token); default: as a sentence encoder's files say (minilm: "
        "unit), last for known decoders, otherwise mask; for tags it reads every word",
    )
    task: TaskSection = TaskSection()
    method: SerializeAsAny[MethodSettings] = Field(
        default={"name": "slash"},
        validate_default=True,
        description="the method and its settings; see `fedpeft methods`",
    )
    head: HeadSection = HeadSection()
    partition: PartitionSection = PartitionSection()
    federation: FederationSection = FederationSection()
    local: LocalSection = LocalSection()
    privacy: PrivacySection = PrivacySection()
    wire: WireSection = WireSection()
    secure: SecureSection = SecureSection()
    nested: NestedSection = NestedSection()
    adversary: AdversarySection = AdversarySection()
    devices: DevicesSection = DevicesSection()
    engine: EngineSection = EngineSection()
    output: OutputSection = OutputSection()

    @field_validator("method", mode="before")
    @classmethod
    def _method(cls, value: Any) -> Any:
        return settings_for(value) if isinstance(value, Mapping) else value

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.federation.secure and "up" not in self.wire.model_fields_set:
            levels = self.wire.model_copy(update={"up": DEFAULT_CODEC})
            object.__setattr__(self, "wire", levels)
        sums = self.secure.buckets
        compared = (sums, "sums") if sums > 1 else (self.clients_per_round, "clients")
        for problem in (
            *in_federation(self.federation, self.clients_per_round),
            *in_robust(self.federation, *compared),
            *in_task(self.task),
            *in_text(self.task, self.head, self.adversary),
            *in_head(self.head, self.method),
            *in_start(self.head, self.federation, self.privacy, self.adversary),
            *in_engine(self.engine, self.method),
            *in_privacy(self.privacy, self.federation, self.clients_per_round),
            *in_rank(self.privacy, self.method),
            *in_zeroth_order(
                self.local, self.head, self.wire, self.federation, self.privacy, self.method
            ),
            *in_wire(self.wire, self.method),
            *in_devices(
                self.devices, self.federation, self.local, self.privacy, self.clients_asked
            ),
            *in_asynchrony(
                self.federation,
                self.privacy,
                self.wire,
                self.nested,
                self.adversary,
                self.engine,
                self.clients_per_round,
            ),
            *in_adversary(self.adversary, self.federation, self.wire, self.nested),
            *in_nested(self.nested, self.federation, self.privacy, self.local, self.wire),
            *in_secure(
                self.secure,
                self.federation,
                self.privacy,
                self.wire,
                self.local,
                self.nested,
                self.adversary,
                self.clients_asked,
            ),
        ):
            raise UserError(problem)
        defaults = self.derived()
        if self.representation is None:
            object.__setattr__(self, "representation", defaults["representation"])
        for path in ("local.lr", "federation.server_lr"):
            name, key = path.split(".")
            section = getattr(self, name)
            if getattr(section, key) is None:
                object.__setattr__(self, name, _filled(section, {key: defaults[path]}))
        return self

    def derived(self) -> dict[str, Any]:
        """Return the defaults that depend on other settings, by full key."""
        return {
            "representation": default_representation(self.backbone),
            "local.lr": default_lr(self.method.name),
            "federation.server_lr": SERVER_LR.get(self.federation.strategy),
        }

    def choices(self) -> dict[str, Any]:
        """Return the values of the settings in ``CHOSEN``, as far as the method has them."""
        return {path: getattr(owner, key) for path, owner, key in self._chosen()}

    def left_open(self) -> dict[str, Any]:
        """Return the values of the settings in ``CHOSEN`` that the user has not set."""
        return {
            path: getattr(owner, key)
            for path, owner, key in self._chosen()
            if key not in owner.model_fields_set
        }

    def _chosen(self) -> Iterator[tuple[str, BaseModel, str]]:
        """Yield each setting in ``CHOSEN``: its full key, its section, and its key there."""
        for path in CHOSEN:
            section, _, key = path.rpartition(".")
            owner = getattr(self, section) if section else self
            if key in type(owner).model_fields:
                yield path, owner, key

    def with_choices(self, values: Mapping[str, Any], kept: bool = False) -> Experiment:
        """Return the experiment with these values, by full key.

        Args:
            values: the values.
            kept: whether they stay where the experiment is printed or changed, as those that a user
                has set.
        """
        fields: dict[str, Any] = dict(self)
        given = set(self.model_fields_set)
        for path, value in values.items():
            *section, key = path.split(".")
            if section:
                fields[section[0]] = _filled(fields[section[0]], {key: value}, kept)
            else:
                fields[key] = value
            given |= {(section or [key])[0]} if kept else set()
        return type(self).model_construct(given, **fields)

    @property
    def clients_per_round(self) -> int:
        """Number of clients asked each round, at least one."""
        federation = self.federation
        return federation.per_round or max(1, round(federation.fraction * federation.clients))

    @property
    def clients_asked(self) -> int:
        """Number of clients that are sent a request each round, with those asked in reserve."""
        return ceil(share_of(self.federation.over_selection, self.clients_per_round))

    @property
    def clients_summed(self) -> int:
        """Number of clients that are asked for a sum under masks, with ``federation.secure``."""
        return self.clients_asked // self.secure.buckets

    @property
    def trainings(self) -> int:
        """Number of trainings of clients in the whole run."""
        federation = self.federation
        if federation.mode == "async":  # those that wait at the end have trained, too
            return federation.rounds * federation.buffer + self.clients_per_round
        return federation.rounds * self.clients_asked

    @property
    def by_likelihood(self) -> bool:
        """Whether classes are predicted by the likelihood of their words, without a head."""
        return self.head.kind == "likelihood"

    @property
    def clips_updates(self) -> bool:
        """Whether the server clips updates at the median of their round."""
        federation, privacy = self.federation, self.privacy
        hidden = privacy.clients or federation.secure
        return federation.max_update_norm == "auto" and not hidden

    @property
    def digest(self) -> str:
        """SHA-256 of all settings except the OPERATIONAL ones, in hexadecimal."""
        return hashlib.sha256(json.dumps(_deciding(self), sort_keys=True).encode()).hexdigest()

    @classmethod
    def load(cls, text: str = "", overrides: Iterable[str] = ()) -> Experiment:
        """Build an experiment from TOML text and overrides such as ``"local.lr=3e-3"``.

        Raises:
            UserError: invalid TOML, an unknown key, a value out of range, a contradiction.
        """
        values = toml.parse(text)
        if {"axes", "cells"} & values.keys():
            raise UserError("this is a study file; `fedpeft study run FILE` runs it")
        for override in overrides:
            apply_override(values, override)
        return cls.of(values)

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Experiment:
        """Build an experiment from a tree of settings, as TOML gives one.

        Raises:
            UserError: an unknown key, a value out of range, a contradiction.
        """
        require_unicode(values)
        try:
            return cls.model_validate(values)
        except ValidationError as error:
            raise UserError(explain(error.errors()[0], cls)) from None

    @classmethod
    def read(cls, path: Path | None, overrides: Iterable[str] = ()) -> Experiment:
        """Build an experiment from a TOML file (None: the defaults) and overrides."""
        if path is None:
            return cls.load("", overrides)
        text = toml.read_text(path)
        try:
            return cls.load(text, overrides)
        except UserError as error:
            raise UserError(f"{path}: {error}") from None

    def to_toml(self, comments: bool = False, derived: bool = True) -> str:
        """Return the experiment as TOML.

        Args:
            comments: append each key's description as a comment.
            derived: write the defaults that depend on other settings as values. Otherwise those
                that the user has not set are comments, and follow when the text is edited.
        """
        if derived:
            return toml_writer.write(self, comments, {})
        follow = self.left_open()
        if "server_lr" not in self.federation.model_fields_set:
            follow["federation.server_lr"] = self.federation.server_lr
        return toml_writer.write(self, comments, follow)


def _filled(section: BaseModel, values: Mapping[str, Any], kept: bool = False) -> Any:
    """Return a copy of a section with these values, set by the user if they are ``kept``."""
    given = section.model_fields_set | (values.keys() if kept else set())
    return type(section).model_construct(given, **{**dict(section), **values})


@lru_cache(maxsize=16)
def parsed(text: str) -> Experiment:
    """Return the experiment of a TOML text that came over the wire; parse it once per process.

    Raises:
        UserError: see ``Experiment.load``.
    """
    return Experiment.load(text)


def differing_keys(one: Experiment, other: Experiment) -> list[str]:
    """Return ``"local.lr (0.01 and 0.02)"`` for each setting that differs, except OPERATIONAL."""
    first, second = _deciding(one), _deciding(other)
    return [
        f"{key} ({first.get(key, 'absent')} and {second.get(key, 'absent')})"
        for key in {**first, **second}
        if first.get(key) != second.get(key)
    ]


def _deciding(experiment: Experiment) -> dict[str, Any]:
    """Return the settings that decide what is computed, by full key."""
    settings: dict[str, Any] = {}
    for name, value in experiment.model_dump().items():
        section = value.items() if isinstance(value, dict) else [("", value)]
        settings |= {f"{name}.{key}".rstrip("."): setting for key, setting in section}
    return {key: value for key, value in settings.items() if _decides(key, value, settings)}


def _decides(key: str, value: Any, settings: Mapping[str, Any]) -> bool:
    if key in OPERATIONAL or (key in ADDED and value == ADDED[key]):
        return False
    other, needed = _ONLY_WITH.get(key, (key, value))
    return bool(settings[other] == needed)
