"""Settings that ``federation.mode = "async"`` requires or excludes."""

from __future__ import annotations

from collections.abc import Iterator

from fedpeft.experiment.adversary import AdversarySection
from fedpeft.experiment.federation import FederationSection
from fedpeft.experiment.privacy import PrivacySection
from fedpeft.experiment.robust import ROBUST
from fedpeft.experiment.settings import EngineSection, NestedSection, WireSection
from fedpeft.wire.codecs import continues

_KEYS = "buffer", "staleness"


def in_asynchrony(
    federation: FederationSection,
    privacy: PrivacySection,
    wire: WireSection,
    nested: NestedSection,
    adversary: AdversarySection,
    engine: EngineSection,
    training: int,
) -> Iterator[str]:
    """Yield one line per contradiction, with ``training`` clients at a time."""
    here = "federation.mode = 'async'"
    if federation.mode == "sync":
        for key in _KEYS:
            value, default = getattr(federation, key), FederationSection.model_fields[key].default
            if value != default:
                yield (
                    f"federation.{key} = {value:g}: is for federation.mode = 'async'; leave it out"
                )
        return
    if federation.strategy in ROBUST:
        yield (
            f"{here}: strategy '{federation.strategy}' compares updates that start from one "
            f"vector; expected a strategy that averages"
        )
    if privacy.central:
        yield (
            f"{here}: the noise of privacy.client_noise = 'server' is for a random sample of "
            f"clients; expected privacy.client_noise = 'clients'"
        )
    if federation.buffer > training:
        yield (
            f"federation.buffer = {federation.buffer}: more than the {training} clients that train "
            f"at any time; see federation.per_round"
        )
    if federation.over_selection > 1:
        yield f"{here}: no client is in reserve; leave out federation.over_selection"
    if continues(wire.down):
        yield (
            f"wire.down = '{wire.down}': continues from the round before, and in {here} clients "
            f"start from different ones; expected a number format or eden1 ... eden8"
        )
    if engine.cohort > 1:
        yield (
            f"engine.cohort = {engine.cohort}: clients start one by one in {here}; leave it at 0"
        )
    if nested.d:
        yield f"{here}: expected clients that hold the same numbers; leave out nested.d"
    if adversary.fraction and adversary.attack != "label_flip":
        yield f"{here}: attackers wait for a whole round; expected adversary.attack = 'label_flip'"
