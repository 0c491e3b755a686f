"""The ``[adversary]`` section of an experiment, and what an attack needs of other settings."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from pydantic import Field

from fedpeft.experiment.federation import FederationSection
from fedpeft.experiment.names import Label
from fedpeft.experiment.robust import tolerated
from fedpeft.experiment.settings import NestedSection, WireSection
from fedpeft.methods.settings import Section
from fedpeft.wire import slopes
from fedpeft.wire.codecs import continues

Attack = Literal[
    "sign_flip",
    "scaling",
    "gaussian",
    "alie",
    "alie_optimal",
    "ipm",
    "ipm_optimal",
    "mimic",
    "label_flip",
    "backdoor",
]


class AdversarySection(Section):
    """Malicious clients of a simulation."""

    fraction: float = Field(0.0, ge=0, lt=1, description="share of the clients that are malicious")
    attack: Attack = Field(
        "sign_flip",
        description="what they send: sign_flip (minus their update) | scaling (their update times "
        "strength) | gaussian (noise) | alie, ipm (just within, or against, the honest updates) | "
        "alie_optimal, ipm_optimal (with the strength that moves the strategy furthest) | mimic "
        "(the update of one honest client) | label_flip, backdoor (trained on changed examples)",
    )
    strength: float | None = Field(
        None,
        description="scaling: factor, default -10 | gaussian: length relative to the mean honest "
        "update, 10 | alie: standard deviations, default by the number of clients | ipm: factor, "
        "0.5 | backdoor: factor, default clients of a round per malicious one",
    )
    trigger: str = Field("cf", min_length=1, description="backdoor: word put before the text")
    target: Label = Field(
        "", description="backdoor: class of texts with the trigger; empty = the last"
    )


#: Attacks with a strength.
_STRONG = ("scaling", "gaussian", "alie", "ipm", "backdoor")


def too_many(adversary: AdversarySection, federation: FederationSection, asked: int) -> str:
    """Return a line if more of the ``asked`` clients of a round attack than tolerated, else ""."""
    attackers, most = round(adversary.fraction * asked), tolerated(federation, asked)
    if attackers <= most:
        return ""
    mixing = f" after {federation.mixing}" if federation.mixing != "none" else ""
    return (
        f"warning: about {attackers} of {asked} clients attack in a round, and "
        f"{federation.strategy}{mixing} tolerates {most}"
    )


def in_adversary(
    adversary: AdversarySection,
    federation: FederationSection,
    wire: WireSection,
    nested: NestedSection,
) -> Iterator[str]:
    """Yield one line per contradiction."""
    attack, here = adversary.attack, f"adversary.attack = '{adversary.attack}'"
    fields = type(adversary).model_fields.items()
    changed = [key for key, field in fields if getattr(adversary, key) != field.default]
    if not adversary.fraction:
        for key in changed:
            yield (
                f"adversary.{key} = {getattr(adversary, key)!r}: no client is malicious; set "
                f"adversary.fraction, or leave it out"
            )
        return
    if not 0 < round(adversary.fraction * federation.clients) < federation.clients:
        yield (
            f"adversary.fraction = {adversary.fraction:g}: is "
            f"{round(adversary.fraction * federation.clients)} of {federation.clients} clients; "
            f"expected some clients, and not all"
        )
    if adversary.strength is not None and attack not in _STRONG:
        yield f"adversary.strength = {adversary.strength:g}: {attack} has none; leave it out"
    for key in ("trigger", "target"):
        if key in changed and attack != "backdoor":
            yield f"adversary.{key} = {getattr(adversary, key)!r}: is for backdoor, not {attack}"
    if attack == "backdoor" and federation.evaluation == "clients":
        yield f"{here}: its success is measured at the server; set federation.evaluation = 'server'"
    if attack == "label_flip":
        return
    if continues(wire.down) or wire.up in slopes.CODECS or wire.up.startswith("topk"):
        yield (
            f"{here}: replaces updates that are changes of a vector; expected wire.up and "
            f"wire.down = a number format or eden1 ... eden8, got '{wire.up}' and '{wire.down}'"
        )
    if nested.d:
        yield f"{here}: replaces updates of the same numbers; leave out nested.d"
