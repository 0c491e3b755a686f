"""``wire.budget``: codec and sizes that keep a client's message up within a number of bytes.

The choice follows ``ORDER``, and takes the first step whose message fits:

1. the method's sizes as they are, with the most bits per number, from float32 down to 1 bit. EDEN
   is unbiased, and the mean over clients removes most of its error, whereas a smaller method is
   another, weaker model in every round: 1,794 numbers at 1 bit score 3.9 points more than 1,026 at
   4 bits, in fewer bytes;
2. at 1 bit, the largest sizes that fit (``SIZES``). Below 1 bit, EDEN drops numbers at random, and
   below 0.79 bits its error exceeds the change: 1,026 numbers at 1 bit score 8.2 points more
   than 1,794 at 0.2 bits;
3. fewer bits, down to 0.02, each with the largest sizes that fit: the head alone may exceed the
   budget, and no method size reduces it.

Both differences are of SLaSh on MiniLM, from ``simulations/studies/bits.toml``; see
``docs/explanation/bytes.md``. Sizes that the user has set are kept.

The choice is made once, where a user's command loads an experiment. The experiment that is
digested, written and sent to clients has the codec and sizes as explicit settings and no budget,
so server and clients never choose differently.
"""

from __future__ import annotations

from bisect import bisect_right

from fedpeft.errors import UserError
from fedpeft.experiment.config import Experiment
from fedpeft.experiment.sizes import size_in_bytes
from fedpeft.runtime import Runtime
from fedpeft.tasks import TaskInfo
from fedpeft.updates.transfer import size_up
from fedpeft.wire.framing import train_reply_bytes

#: Steps of the choice: ``wire.up``, and whether the method's sizes may be reduced.
ORDER = (
    *((codec, False) for codec in ("float32", "eden8", "eden4", "eden3", "eden2", "eden1")),
    *((f"eden{rate:g}", True) for rate in (1, 0.5, 0.2, 0.1, 0.05, 0.02)),
)
#: Settings that are a method's size, with their least value, in the order in which they are
#: reduced. EDEN sends at least 32 numbers, so a shorter vector would save nothing below 1 bit.
SIZES = {"d": 32, "bottleneck": 1, "rank": 1, "length": 1}


def message_bytes(experiment: Experiment, info: TaskInfo | None = None) -> int:
    """Return the most bytes of a client's train reply in a round, framing included.

    Loads no weights.

    Args:
        experiment: all settings.
        info: description of the task, if known; otherwise its data may be read.
    """
    payload, privacy = size_up(Runtime(experiment, known=info)), experiment.privacy
    statements = privacy.examples + privacy.charges_clients
    return train_reply_bytes(payload, statements, experiment.federation.partial)


def within_budget(experiment: Experiment) -> Experiment:
    """Return the experiment with the codec and sizes that ``wire.budget`` chooses, and no budget.

    An experiment without a budget is returned as it is.

    Raises:
        UserError: the budget is below the smallest message; or the method does not fit the
            backbone, or the task's data is missing.
    """
    if not experiment.wire.budget:
        return experiment
    budget, info = size_in_bytes(experiment.wire.budget), Runtime(experiment).info
    for codec, reduced in ORDER:
        wire = experiment.wire.model_copy(update={"up": codec, "budget": ""})
        candidate = experiment.model_copy(update={"wire": wire})
        if reduced:
            candidate = _reduced(candidate, budget, info)
        if (least := message_bytes(candidate, info)) <= budget:
            return candidate
    raise UserError(
        f"wire.budget = '{experiment.wire.budget}': the smallest message has {least:,} bytes "
        f"({chosen(candidate)}); expected a budget of at least {least} B"
    )


def chosen(experiment: Experiment) -> str:
    """Return codec and sizes of an experiment: ``wire.up = 'eden1', method.d = 512``."""
    sizes = [
        f"method.{key} = {value}"
        for key, value in experiment.method.model_dump().items()
        if key in SIZES
    ]
    return ", ".join([f"wire.up = '{experiment.wire.up}'", *sizes])


def _reduced(experiment: Experiment, budget: int, info: TaskInfo) -> Experiment:
    """Return the experiment with the largest sizes that fit; with the least if none fit."""
    for key, least in SIZES.items():
        value = getattr(experiment.method, key, None)
        if key in experiment.method.model_fields_set or not isinstance(value, int):
            continue
        if value <= least:
            continue
        full = message_bytes(experiment, info)
        if full <= budget:
            break
        try:
            smallest = message_bytes(_resized(experiment, key, least), info)
        except UserError:  # not every method can have every size
            continue
        if smallest == full:  # a setting that sends no numbers, such as the rank of Uni-LoRA
            continue
        sizes = range(least, value + 1)
        fitting = bisect_right(
            sizes, budget, key=lambda size: message_bytes(_resized(experiment, key, size), info)
        )
        experiment = _resized(experiment, key, sizes[max(0, fitting - 1)])
    return experiment


def _resized(experiment: Experiment, key: str, size: int) -> Experiment:
    # model_copy would add the key to those that the user has set.
    method = type(experiment.method).model_construct(
        experiment.method.model_fields_set, **{**dict(experiment.method), key: size}
    )
    return experiment.model_copy(update={"method": method})
