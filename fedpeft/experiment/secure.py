"""The ``[secure]`` section of an experiment, and what ``federation.secure`` excludes."""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import Field

from fedpeft.errors import UserError
from fedpeft.experiment.adversary import AdversarySection
from fedpeft.experiment.contradictions import MEAN_BASED
from fedpeft.experiment.federation import FederationSection
from fedpeft.experiment.privacy import PrivacySection
from fedpeft.experiment.settings import LocalSection, NestedSection, WireSection
from fedpeft.methods.settings import MOST, Section
from fedpeft.secure.thresholds import MOST as MOST_CLIENTS
from fedpeft.secure.thresholds import threshold
from fedpeft.wire.codecs import continues, rate_of

DEFAULT_CODEC = "uniform4"


class SecureSection(Section):
    """Whom secure aggregation protects from, see ``federation.secure``."""

    colluders: int = Field(
        1, ge=0, le=MOST, description="clients of a round that may work together with the server"
    )
    threshold: int = Field(
        0,
        ge=0,
        le=MOST,
        description="clients that must stay to the end of a round; 0 = the smallest number at "
        "which every sum contains half of the honest clients, or four fifths of the clients in "
        "rounds of more than 128",
    )
    buckets: int = Field(
        1,
        ge=1,
        le=MOST,
        description="sums of a round, each over other clients; robust strategies compare them",
    )


def in_secure(
    secure: SecureSection,
    federation: FederationSection,
    privacy: PrivacySection,
    wire: WireSection,
    local: LocalSection,
    nested: NestedSection,
    adversary: AdversarySection,
    asked: int,
) -> Iterator[str]:
    """Yield one line per contradiction, with ``asked`` clients in a round."""
    here, uniform = "federation.secure = true", rate_of(wire.up, "uniform") is not None
    if not federation.secure:
        if secure != SecureSection():
            yield "[secure]: has no effect without federation.secure = true; leave it out"
        if uniform:
            yield f"wire.up = '{wire.up}': is for sums under masks; set federation.secure = true"
        return
    if wire.budget:
        yield f"{here}: wire.budget chooses codecs that do not add up; leave it out"
    if not uniform:
        yield (
            f"{here}: the levels of wire.up = '{wire.up}' do not add up; expected uniform1 to "
            f"uniform8"
        )
    if wire.head not in ("", wire.up):
        yield f"{here}: the head travels in the levels of wire.up; leave out wire.head"
    yield from _in_sums(here, secure, federation, asked)
    if federation.mode == "async":
        yield f"{here}: a sum needs clients that train together; expected federation.mode = 'sync'"
    if privacy.clients and not privacy.distributed:
        yield (
            f"{here}: privacy.client_noise = '{privacy.client_noise}' is noise on single updates "
            f"or by a server that sees them; expected privacy.client_noise = 'secure'"
        )
    if continues(wire.down):
        yield (
            f"{here}: clients mask for those who received the same, and wire.down = '{wire.down}' "
            f"sends steps; expected a number format or eden1 ... eden8"
        )
    yield from _in_updates(here, federation, local, nested, adversary)


def _in_sums(
    here: str, secure: SecureSection, federation: FederationSection, asked: int
) -> Iterator[str]:
    """Yield one line per contradiction in the sums of a round."""
    if asked % secure.buckets:
        yield (
            f"secure.buckets = {secure.buckets}: {asked} clients of a round cannot be divided into "
            f"sums of equal size; expected a divisor"
        )
        return
    summed = asked // secure.buckets
    if not 3 <= summed <= MOST_CLIENTS:
        yield f"{here}: {summed} clients in a sum; expected 3 to {MOST_CLIENTS}"
    else:
        try:
            threshold(summed, secure.colluders, secure.threshold)
        except UserError as error:
            yield str(error)
    averages = federation.strategy in MEAN_BASED
    if secure.buckets == 1 and not averages:
        yield (
            f"{here}: strategy '{federation.strategy}' compares updates, and there is one sum; set "
            f"secure.buckets, or one of {', '.join(MEAN_BASED)}"
        )
    if secure.buckets > 1 and averages:
        yield (
            f"secure.buckets = {secure.buckets}: strategy '{federation.strategy}' does not compare "
            f"sums; leave it out"
        )


def _in_updates(
    here: str,
    federation: FederationSection,
    local: LocalSection,
    nested: NestedSection,
    adversary: AdversarySection,
) -> Iterator[str]:
    """Yield one line per setting that makes updates of other forms, or changes single ones."""
    if nested.d:
        yield f"{here}: a sum is over the same numbers; leave out nested.d"
    if federation.partial:
        yield f"{here}: steps of single clients stay hidden; leave out federation.partial"
    if adversary.fraction and adversary.attack != "label_flip":
        yield (
            f"{here}: adversary.attack = '{adversary.attack}' changes updates that nobody sees; "
            f"expected adversary.attack = 'label_flip'"
        )
    if local.perturbations:
        yield f"{here}: slopes are not masked; expected local.perturbations = 0"
