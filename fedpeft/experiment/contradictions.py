"""Settings that are valid alone and contradict each other."""

from __future__ import annotations

from collections.abc import Iterator

from fedpeft.experiment.adversary import AdversarySection
from fedpeft.experiment.federation import FederationSection
from fedpeft.experiment.privacy import PrivacySection
from fedpeft.experiment.robust import ROBUST
from fedpeft.experiment.settings import EngineSection, HeadSection, TaskSection
from fedpeft.methods import method_class
from fedpeft.methods.settings import MethodSettings
from fedpeft.vector import HEAD

#: Strategies that use only the mean of the clients' updates, to which the noise is added.
MEAN_BASED = ("fedavg", "fedavgm", "fedadam", "fedyogi", "fedadagrad")


def in_federation(federation: FederationSection, sampled: int) -> Iterator[str]:
    """Yield one line per contradiction, with ``sampled`` clients per round."""
    if federation.per_round > federation.clients:
        yield (
            f"federation.per_round = {federation.per_round}: expected at most "
            f"federation.clients = {federation.clients}"
        )
    if federation.min_success > sampled:
        yield (
            f"federation.min_success = {federation.min_success}: only {sampled} clients are asked "
            f"each round"
        )
    if federation.personal and federation.evaluation == "server":
        yield (
            f"federation.personal = '{','.join(federation.personal)}': only the clients have "
            f"them; expected federation.evaluation = 'clients'"
        )


def in_task(task: TaskSection) -> Iterator[str]:
    """Yield one line per contradiction."""
    for key in ("train", "dev", "labels"):
        if getattr(task, key) and task.name != "custom":
            yield f"task.{key} = '{getattr(task, key)}': is for task.name=custom, not {task.name}"
    if task.labels and task.kind == "score":
        yield f"task.labels = '{','.join(task.labels)}': a score has no classes; leave it out"
    elif len(task.labels) == 1 or len(set(task.labels)) < len(task.labels):
        yield f"task.labels = '{','.join(task.labels)}': expected two or more different names"


def in_head(head: HeadSection, method: MethodSettings) -> Iterator[str]:
    """Yield one line per contradiction, also with the method."""
    if head.steepness and method.name == "linear":
        yield f"head.steepness = {head.steepness:g}: 'linear' trains only the head; leave it out"
    if head.kind == "likelihood":
        for key in ("d", "rank", "labels", "steepness"):
            if (value := getattr(head, key)) != type(head).model_fields[key].default:
                yield f"head.{key} = {value}: head.kind = 'likelihood' trains no head; leave it out"
    elif head.words:
        yield (
            f"head.words = '{','.join(head.words)}': is for head.kind = 'likelihood', not "
            f"'{head.kind}'"
        )
    if head.d and head.rank:
        yield f"head.rank = {head.rank}: has no effect with head.d = {head.d}; leave one out"


def in_start(
    head: HeadSection,
    federation: FederationSection,
    privacy: PrivacySection,
    adversary: AdversarySection,
) -> Iterator[str]:
    """Yield one line for each setting with which clients send no sums of their features."""
    if head.start != "sums":
        return
    because = {
        f"privacy.unit = '{privacy.unit}'": privacy.unit != "none",
        "federation.secure = true": federation.secure,
        f"federation.strategy = '{federation.strategy}'": federation.strategy in ROBUST,
        f"federation.mode = '{federation.mode}'": federation.mode == "async",
        f"federation.personal = '{','.join(federation.personal)}'": _keeps_head(federation),
        f"adversary.fraction = {adversary.fraction:g}": adversary.fraction > 0,
        f"head.kind = '{head.kind}'": head.kind != "linear",
    }
    for setting in (setting for setting, holds in because.items() if holds):
        yield f"head.start = 'sums': not with {setting}; expected head.start = 'random'"


def _keeps_head(federation: FederationSection) -> bool:
    return any(f"{name}.".startswith(HEAD) for name in federation.personal)


def in_engine(engine: EngineSection, method: MethodSettings) -> Iterator[str]:
    """Yield one line per contradiction, also with the method."""
    if engine.dtype == "float64" and engine.autocast not in ("off", "auto"):
        yield f"engine.autocast = '{engine.autocast}': has no effect with dtype 'float64'"
    if engine.weights != "float32":
        if engine.dtype != "float32":
            yield f"engine.weights = '{engine.weights}': expected engine.dtype = 'float32'"
        if engine.weights == "bfloat16" and engine.autocast == "float16":
            yield "engine.autocast = 'float16': engine.weights = 'bfloat16' sets it to 'bfloat16'"
    if not method_class(method.name).grouped:
        why = f"method '{method.name}' changes whole weights; leave it out, or use another method"
        if engine.weights != "float32":
            yield f"engine.weights = '{engine.weights}': {why}"
        if engine.checkpointing:
            yield f"engine.checkpointing = true: {why}"
    if engine.cohort > 1 and not method_class(method.name).grouped:
        yield (
            f"engine.cohort = {engine.cohort}: method '{method.name}' changes whole "
            f"weights and trains one client at a time; leave it at 0"
        )


def in_privacy(
    privacy: PrivacySection, federation: FederationSection, sampled: int
) -> Iterator[str]:
    """Yield one line per contradiction, also with ``sampled`` clients per round."""
    fields = type(privacy).model_fields.items()
    changed = [key for key, field in fields if getattr(privacy, key) != field.default]
    if privacy.unit == "none":
        for key in changed:
            yield (
                f"privacy.{key} = {getattr(privacy, key)}: nothing is protected; set privacy.unit "
                f"= 'example', 'client' or 'both', or leave it out"
            )
        return
    if not privacy.clients:
        for key in changed:
            if key.startswith("client_"):
                yield (
                    f"privacy.{key} = {getattr(privacy, key)}: is about whole clients; expected "
                    f"privacy.unit = 'client' or 'both', not '{privacy.unit}'"
                )
    if privacy.unit == "client":
        unused = ["clip", "clipping", "physical_batch", "rank"]
        if privacy.client_epsilon is not None or privacy.client_noise_multiplier is not None:
            unused += ["epsilon", "noise_multiplier"]
        for key in (key for key in unused if key in changed):
            yield (
                f"privacy.{key} = {getattr(privacy, key)}: is not used with privacy.unit = "
                f"'client'; leave it out"
            )
    yield from _in_mechanism(privacy, federation, sampled)
    if privacy.examples:
        yield from _in_noise("privacy.", privacy.epsilon, privacy.noise_multiplier, privacy.clip)
    if privacy.clients:
        epsilon, sigma, delta = privacy.of_clients()
        yield from _in_noise("privacy.client_", epsilon, sigma, privacy.client_clip)
        if delta is not None and delta * federation.clients >= 1:
            yield (
                f"privacy.client_delta = {delta:g}: expected less than 1 / federation.clients = "
                f"{1 / federation.clients:g}"
            )
    if privacy.central or privacy.distributed:
        yield from _in_central(privacy, federation)
    if privacy.distributed:
        yield from _in_distributed(privacy, federation)
    elif privacy.local and privacy.client_quantile:
        yield (
            f"privacy.client_quantile = {privacy.client_quantile}: only the server sees the norms "
            f"of several clients; with client_noise = 'clients' leave it out"
        )


def in_rank(privacy: PrivacySection, method: MethodSettings) -> Iterator[str]:
    """Yield one line if the method has no matrices that RGP could reparametrize."""
    if privacy.rank and method.name != "full":
        yield (
            f"privacy.rank = {privacy.rank}: RGP is for full fine-tuning; expected method.name = "
            f"'full', not '{method.name}', or privacy.rank = 0"
        )


def _in_noise(
    prefix: str, epsilon: float | None, sigma: float | None, clip: float
) -> Iterator[str]:
    if (epsilon is None) == (sigma is None):
        yield (
            f"{prefix}epsilon and {prefix}noise_multiplier: expected one of the two (the noise is "
            f"calibrated for epsilon, or given), got {'neither' if epsilon is None else 'both'}"
        )
    if clip == 0 and (epsilon is not None or sigma):
        yield f"{prefix}clip = 0: noise protects nothing without clipping; expected more than 0"


def _in_mechanism(
    privacy: PrivacySection, federation: FederationSection, sampled: int
) -> Iterator[str]:
    here, apart = f"privacy.mechanism = '{privacy.mechanism}'", privacy.separation
    if privacy.mechanism == "gaussian":
        if apart:
            yield (
                f"privacy.separation = {apart}: is for privacy.mechanism = 'banded' or 'blt'; "
                f"leave it out"
            )
        return
    if not privacy.central:
        yield (
            f"{here}: is for noise of the server; expected privacy.unit = 'client' or 'both', and "
            f"privacy.client_noise = 'server'"
        )
    if privacy.client_quantile:
        yield (
            f"privacy.client_quantile = {privacy.client_quantile:g}: {here} needs one clip for all "
            f"rounds; leave it out"
        )
    if apart * sampled > federation.clients:
        yield (
            f"privacy.separation = {apart}: {sampled} clients a round, at least {apart} rounds "
            f"apart, need {apart * sampled:,} clients, and federation.clients is "
            f"{federation.clients:,}; expected at most {federation.clients // sampled}"
        )


def _in_distributed(privacy: PrivacySection, federation: FederationSection) -> Iterator[str]:
    here = "privacy.client_noise = 'secure'"
    if not federation.secure:
        yield f"{here}: is noise of sums under masks; set federation.secure = true"
    if privacy.client_quantile:
        yield (
            f"privacy.client_quantile = {privacy.client_quantile:g}: {here} has a fixed clip, "
            f"because no noise covers the norms; leave it out"
        )
    if not privacy.client_clip:
        yield (
            f"privacy.client_clip = 0: {here} needs a clip, which sets the distance of the levels "
            f"also without noise; expected more than 0"
        )
    if federation.max_update_norm != "auto":
        yield (
            f"federation.max_update_norm = {federation.max_update_norm:g}: with {here} updates are "
            f"clipped at privacy.client_clip; leave it out"
        )


def _in_central(privacy: PrivacySection, federation: FederationSection) -> Iterator[str]:
    if federation.weighting != "uniform":
        yield (
            "federation.weighting = 'examples': noise for clients is matched to uniform weights; "
            "leave weighting at 'uniform' or set privacy.client_noise = 'clients'"
        )
    if federation.strategy not in MEAN_BASED:
        yield (
            f"federation.strategy = '{federation.strategy}': noise on the mean of the clients "
            f"works only with strategies that average: expected one of {', '.join(MEAN_BASED)}, "
            f"or privacy.client_noise = 'clients'"
        )
