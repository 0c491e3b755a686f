"""The ``[federation]`` section of an experiment."""

from __future__ import annotations

from math import inf, nan
from typing import Annotated, Literal, get_args

from pydantic import Field, PlainValidator

from fedpeft.experiment.settings import Names
from fedpeft.methods.settings import MOST, Section

Strategy = Literal[
    "fedavg",
    "fedavgm",
    "fedadam",
    "fedyogi",
    "fedadagrad",
    "fedmedian",
    "fedtrimmedavg",
    "geometric_median",
    "centered_clipping",
    "krum",
    "multikrum",
    "bulyan",
]

#: Default server learning rate; the strategies that select or trim clients do not have one.
SERVER_LR = {"fedavg": 1.0, "fedavgm": 1.0, "fedadam": 0.01, "fedyogi": 0.01, "fedadagrad": 0.01}


def _update_norm(value: object) -> object:
    if value == "auto":
        return value
    try:
        norm = float(str(value))
    except ValueError:
        norm = nan
    if not 0 <= norm < inf:
        raise ValueError("'auto' or a finite number of at least 0")
    return norm


UpdateNorm = Annotated[Literal["auto"] | float, PlainValidator(_update_norm)]


class FederationSection(Section):
    """Rounds, sampling of clients and aggregation."""

    clients: int = Field(10, ge=1, le=MOST, description="number of clients")
    rounds: int = Field(10, ge=1, le=MOST, description="number of rounds")
    fraction: float = Field(1.0, gt=0, le=1, description="share of clients asked each round")
    per_round: int = Field(
        0, ge=0, description="number of clients asked each round; 0 = by fraction"
    )
    mode: Literal["sync", "async"] = Field(
        "sync",
        description="sync: rounds wait for their clients | async: as many clients as a round has "
        "train at any time, and each round takes the next replies",
    )
    buffer: int = Field(10, ge=1, le=MOST, description="async: replies that make a round")
    staleness: float = Field(
        0.5,
        ge=0,
        le=10,
        description="async: an update that started s rounds ago counts (1 + s) ^ -staleness",
    )
    strategy: Strategy = Field("fedavg", description=" | ".join(get_args(Strategy)))
    weighting: Literal["examples", "uniform"] = Field(
        "uniform",
        description="weight of a client: uniform | examples (its number of examples)",
    )
    server_lr: float | None = Field(
        None,
        gt=0,
        description="server learning rate; default: 1 for fedavg and fedavgm, 0.01 for fedadam, "
        "fedyogi and fedadagrad",
    )
    server_momentum: float = Field(0.9, ge=0, lt=1, description="fedavgm: momentum")
    tau: float = Field(
        1e-3, gt=0, description="fedadam, fedyogi, fedadagrad: added to the denominator"
    )
    trim: float = Field(
        0.2,
        ge=0,
        lt=0.5,
        description="fedtrimmedavg: share of clients dropped at either end of each coordinate",
    )
    byzantine: int = Field(
        0,
        ge=0,
        description="krum, multikrum, bulyan, mixing by nnm: malicious clients of a round to "
        "tolerate",
    )
    mixing: Literal["none", "nnm", "bucketing"] = Field(
        "none",
        description="robust strategies, before the rule: none | nnm (each update becomes a mean "
        "with its nearest neighbors) | bucketing (means of random buckets)",
    )
    bucket: int = Field(2, ge=2, le=MOST, description="bucketing: updates per bucket")
    radius: float = Field(
        0.0,
        ge=0,
        description="centered_clipping: largest distance to the center; 0 = the median distance",
    )
    secure: bool = Field(
        False,
        description="secure aggregation: the server learns the sum of the updates and no single "
        "one; wire.up is uniform4 unless set",
    )
    min_success: int = Field(
        1, ge=1, description="valid replies a round needs; with fewer the run stops"
    )
    max_update_norm: UpdateNorm = Field(
        "auto",
        description="auto: clip updates at twice the median norm of the round, count them less the "
        "more they were clipped, and claimed examples up to the upper quartile; not with privacy "
        "for clients | L2 norm above which an update counts as failed | 0 = no limit; at a "
        "deployed server auto and 0 also refuse norms above 10,000 times the square root of the "
        "number of parameters; with secure sums a number shortens, and auto follows the norms of "
        "the last round",
    )
    timeout: float = Field(3600.0, gt=0, description="maximum seconds per round")
    deadline: float | None = Field(
        None,
        gt=0,
        description="seconds after which a round goes on without clients that have not replied; "
        "default: no deadline",
    )
    over_selection: float = Field(
        1.0,
        ge=1,
        le=10,
        description="ask this many times the clients of a round, and go on when as many as without "
        "it have replied",
    )
    partial: bool = Field(
        False, description="with a deadline: clients stop in time and send what they have trained"
    )
    fednova: bool = Field(
        False,
        description="divide each update by its local steps, times the round's mean number of steps",
    )
    mixed_weights: bool = Field(
        False,
        description="whether a node may hold the frozen weights in another form than "
        "engine.weights (fedpeft node up --weights)",
    )
    node_wait: float = Field(60.0, gt=0, description="seconds to wait for nodes to connect")
    personal: Names = Field(
        (), description="parameters that each client keeps to itself: head, or parameter names"
    )
    evaluation: Literal["server", "clients"] = Field(
        "server",
        description="where to evaluate: server (dev set) | clients (a share of the dev set each)",
    )
