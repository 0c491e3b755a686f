"""Settings of messages, and of the updates in them, that contradict each other."""

from __future__ import annotations

from collections.abc import Iterator

from fedpeft.experiment.contradictions import MEAN_BASED
from fedpeft.experiment.federation import FederationSection
from fedpeft.experiment.privacy import PrivacySection
from fedpeft.experiment.settings import HeadSection, LocalSection, NestedSection, WireSection
from fedpeft.methods import method_class
from fedpeft.methods.settings import MethodSettings
from fedpeft.wire import slopes
from fedpeft.wire.codecs import continues

#: Strategies that combine each slope separately, by codec of the slopes.
_COMBINING = {"scalars": ("fedavg", "fedmedian", "fedtrimmedavg"), "signs": ("fedmedian",)}


def in_zeroth_order(
    local: LocalSection,
    head: HeadSection,
    wire: WireSection,
    federation: FederationSection,
    privacy: PrivacySection,
    method: MethodSettings,
) -> Iterator[str]:
    """Yield one line per contradiction of zeroth-order gradients and their slopes as an update."""
    yield from _in_combined_slopes(local, wire, federation, privacy)
    points = f"local.perturbations = {local.perturbations}"
    if local.perturbations and privacy.examples:
        yield (
            f"{points}: DP-SGD needs the gradient of each example; expected 0 with privacy.unit = "
            f"'{privacy.unit}'"
        )
    if local.perturbations and not method_class(method.name).grouped:
        yield (
            f"{points}: method '{method.name}' changes whole weights, and a pass evaluates one "
            f"task vector of it; expected 0"
        )
    if local.perturbations and head.steepness:
        yield f"{points}: is not slowed by head.steepness = {head.steepness:g}; leave one out"
    if wire.up not in slopes.CODECS:
        return
    codec = f"wire.up = '{wire.up}'"
    if not local.perturbations:
        yield f"{codec}: sends slopes of zeroth-order steps; set local.perturbations"
    if not local.steps:
        yield f"{codec}: the server must know the number of steps; set local.steps"
    if wire.up == "signs" and local.steps > 1:
        yield f"{codec}: clients vote on every step; expected local.steps = 1, not {local.steps}"
    if privacy.local:
        yield f"{codec}: has no place for privacy.client_noise = 'clients'; choose another codec"
    if federation.personal:
        yield (
            f"{codec}: the server repeats a client's steps, for which it needs all parameters; "
            f"leave out federation.personal = '{','.join(federation.personal)}'"
        )


def _in_combined_slopes(
    local: LocalSection, wire: WireSection, federation: FederationSection, privacy: PrivacySection
) -> Iterator[str]:
    """Yield one line per contradiction of a downlink of combined slopes.

    Combined slopes must lead where the combined vectors lead: a client's vector has to be linear in
    its slopes, and the strategy has to combine each slope separately, without memory.
    """
    if wire.down != slopes.DOWN:
        return
    codec, strategy = f"wire.down = '{wire.down}'", federation.strategy
    if wire.up not in slopes.CODECS:
        expected = " or ".join(f"'{name}'" for name in slopes.CODECS)
        yield f"{codec}: combines the slopes of clients; expected wire.up = {expected}"
    elif strategy not in _COMBINING[wire.up]:
        expected = " or ".join(f"'{name}'" for name in _COMBINING[wire.up])
        yield (
            f"{codec}: strategy '{strategy}' cannot combine slopes sent as {wire.up}; expected "
            f"federation.strategy = {expected}"
        )
    if local.optimizer != "sgd":
        yield (
            f"{codec}: steps of '{local.optimizer}' are not linear in the slopes; expected "
            f"local.optimizer = 'sgd'"
        )
    if local.max_grad_norm:
        yield (
            f"{codec}: clipped steps are not linear in the slopes; expected local.max_grad_norm = "
            f"0, not {local.max_grad_norm:g}"
        )
    if local.weight_decay and federation.server_lr not in (None, 1):
        yield (
            f"{codec}: federation.server_lr = {federation.server_lr:g} multiplies slopes and not "
            f"local.weight_decay; leave one of them out"
        )
    if privacy.clients:
        yield (
            f"{codec}: the noise of privacy.unit = '{privacy.unit}' is no step along the "
            f"directions; choose another codec"
        )


def in_wire(wire: WireSection, method: MethodSettings) -> Iterator[str]:
    """Yield one line per contradiction; a budget chooses what the user has not set."""
    if wire.head and wire.up in slopes.CODECS:
        yield (
            f"wire.head = '{wire.head}': wire.up = '{wire.up}' sends slopes, which stand for all "
            f"numbers; leave out wire.head"
        )
    if wire.head and wire.up.startswith("topk"):
        yield (
            f"wire.head = '{wire.head}': wire.up = '{wire.up}' chooses among all numbers; leave "
            f"out wire.head"
        )
    if not wire.budget:
        return
    if "up" in wire.model_fields_set:
        yield (
            f"wire.budget = '{wire.budget}' chooses wire.up, and wire.up = '{wire.up}' is set; "
            f"remove one of them"
        )
    if method.name == "full":
        yield (
            f"wire.budget = '{wire.budget}': method 'full' sends all weights and has no size to "
            f"reduce; choose another method, or set wire.up"
        )


def in_nested(
    nested: NestedSection,
    federation: FederationSection,
    privacy: PrivacySection,
    local: LocalSection,
    wire: WireSection,
) -> Iterator[str]:
    """Yield one line per contradiction of clients that hold only a prefix of z."""
    here, clients = f"nested.d = {nested.d}", federation.clients
    if not nested.d:
        return
    if not 0 < round(nested.share * clients) < clients:
        yield (
            f"nested.share = {nested.share:g}: is {round(nested.share * clients)} of {clients} "
            f"clients; expected some clients, and not all"
        )
    if privacy.clients:
        yield (
            f"{here}: the noise of privacy.unit = '{privacy.unit}' is for updates of the same "
            f"numbers; expected 'none' or 'example'"
        )
    if federation.strategy not in MEAN_BASED:
        yield (
            f"{here}: federation.strategy = '{federation.strategy}' compares updates of the same "
            f"numbers; expected one of {', '.join(MEAN_BASED)}"
        )
    if local.perturbations:
        yield f"{here}: directions of zeroth-order steps are those of all numbers; leave one out"
    if continues(wire.down):
        yield (
            f"{here}: wire.down = '{wire.down}' sends steps of all numbers; expected a number "
            f"format or eden1 ... eden8"
        )
    if wire.budget:
        yield f"{here}: wire.budget = '{wire.budget}' chooses the length of z; leave one out"
