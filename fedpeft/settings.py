"""The sections of an experiment: every setting with its default, range and comment."""

from __future__ import annotations

from typing import Annotated, Any, Literal, get_args

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, NonNegativeInt

Representation = Literal["mask", "cls", "mean"]
Strategy = Literal[
    "fedavg", "fedavgm", "fedadam", "fedyogi", "fedadagrad", "fedmedian", "fedtrimmedavg", "krum"
]

#: Server learning rate of each strategy that has one; those that pick or trim clients have none.
SERVER_LR = {"fedavg": 1.0, "fedavgm": 1.0, "fedadam": 0.01, "fedyogi": 0.01, "fedadagrad": 0.01}


class Section(BaseModel):
    """A part of the experiment: unknown keys are refused, values cannot be changed later."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


def _listed(value: Any) -> Any:
    """Return ``"q,v"`` as ["q", "v"], so that a list is easily typed."""
    return [part.strip() for part in value.split(",")] if isinstance(value, str) else value


class TaskSection(Section):
    """What is learned, and from which files."""

    name: str = Field(
        "synthetic/sentiment",
        description="a GLUE name (sst2, qnli, ...), synthetic/..., or custom; see `fedpeft tasks`",
    )
    path: str = Field("", description="local folder with the task's files; empty = the hub")
    train: str = Field("", description="custom: file to train on (.tsv .csv .jsonl .parquet)")
    dev: str = Field(
        "", description="custom: file to evaluate on; empty = a share of the training file"
    )
    held_out: float = Field(0.1, gt=0, lt=1, description="custom: that share")
    text: str = Field("text", description="custom: name of the text column")
    text_pair: str = Field("", description="custom: name of the second text column, if any")
    label: str = Field("label", description="custom: name of the label column")
    kind: Literal["classes", "score", "tags"] = Field(
        "classes",
        description="custom: classes (any number, text or numbers) | score | tags (columns hold "
        "lists: words, and a tag for each)",
    )
    labels: Annotated[tuple[str, ...], BeforeValidator(_listed)] = Field(
        (), description="custom: names of the classes in order; empty = those of the training file"
    )
    train_limit: int = Field(0, ge=0, description="use so many training examples; 0 = all")
    eval_limit: int = Field(0, ge=0, description="use so many evaluation examples; 0 = all")
    validation: float = Field(
        0.0,
        ge=0,
        lt=1,
        description="evaluate on this share of the training examples, which are not trained on; "
        "0 = evaluate on the dev set",
    )
    max_length: int = Field(128, ge=8, description="tokens a text is cut to, special ones included")


class PartitionSection(Section):
    """How the training examples are spread over the clients of a simulation."""

    kind: Literal["iid", "dirichlet", "pathological", "quantity", "natural", "bins"] = Field(
        "iid",
        description="iid | dirichlet (labels) | pathological (k classes a client) | "
        "quantity (sizes) | natural (id column) | bins (ranges of a score)",
    )
    alpha: float = Field(0.5, gt=0, description="dirichlet, quantity: smaller = less even")
    classes: int = Field(1, ge=1, description="pathological: classes a client has")
    strictness: float = Field(
        0.8, ge=0, le=1, description="bins: 1 = a client has one range only, 0 = iid"
    )
    column: str = Field("", description="natural: name of the column that says whose example it is")
    min_examples: int = Field(
        1, ge=1, description="smaller clients are filled up from the largest ones"
    )


class FederationSection(Section):
    """Rounds, sampling and aggregation."""

    clients: int = Field(10, ge=1, description="number of clients")
    rounds: int = Field(10, ge=1, description="number of rounds")
    fraction: float = Field(1.0, gt=0, le=1, description="share of the clients asked each round")
    per_round: int = Field(0, ge=0, description="number of clients asked each round; 0 = fraction")
    strategy: Strategy = Field("fedavg", description=" | ".join(get_args(Strategy)))
    weighting: Literal["examples", "uniform"] = Field(
        "uniform",
        description="uniform: all clients weigh the same | examples: by number of examples",
    )
    server_lr: float | None = Field(
        None, gt=0, description="server learning rate; default 1 for fedavg(m), 0.01 adaptive"
    )
    server_momentum: float = Field(0.9, ge=0, lt=1, description="fedavgm: momentum")
    tau: float = Field(1e-3, gt=0, description="fedadam, fedyogi, fedadagrad: adaptivity")
    trim: float = Field(
        0.2, ge=0, lt=0.5, description="fedtrimmedavg: share cut off at either end, each coordinate"
    )
    byzantine: int = Field(0, ge=0, description="krum: number of clients that may be malicious")
    min_success: int = Field(1, ge=1, description="fewer good replies than this stop the run")
    max_update_norm: float = Field(
        0.0, ge=0, description="an update with a larger L2 norm counts as failed; 0 = no limit"
    )
    timeout: float = Field(3600.0, gt=0, description="seconds a round may take")
    node_wait: float = Field(60.0, gt=0, description="seconds to wait for the nodes to connect")
    personal: Annotated[tuple[str, ...], BeforeValidator(_listed)] = Field(
        (), description="parameters that stay at each client: head, or a parameter's name"
    )
    evaluation: Literal["server", "clients"] = Field(
        "server", description="who evaluates: the server on the dev set, or each client a share"
    )


class LocalSection(Section):
    """Training at one client in one round."""

    epochs: int = Field(1, ge=1, description="passes over the client's examples a round")
    steps: int = Field(0, ge=0, description="steps a round instead of epochs; 0 = by epochs")
    batch_size: int = Field(16, ge=1, description="examples a step")
    optimizer: Literal["adamw", "sgd"] = Field("adamw", description="adamw | sgd")
    lr: float | None = Field(None, gt=0, description="learning rate; default: the method's")
    momentum: float = Field(0.0, ge=0, lt=1, description="sgd: momentum")
    weight_decay: float = Field(0.0, ge=0, description="decoupled weight decay of what is trained")
    schedule: Literal["linear", "constant"] = Field(
        "linear", description="learning rate over the whole run: linear to 0, or constant"
    )
    warmup: float = Field(0.0, ge=0, lt=1, description="share of the whole run to warm up in")
    max_grad_norm: float = Field(
        1.0, ge=0, description="gradient norm is cut to this; 0 = never; DP-SGD has privacy.clip"
    )
    proximal_mu: float = Field(0.0, ge=0, description="weight of FedProx's term")


class HeadSection(Section):
    """The linear layer on top."""

    d: int = Field(
        0, ge=0, description="train so many numbers, projected to the head's weights; 0 = weights"
    )


class WireSection(Section):
    """How a task vector travels."""

    codec: Literal["float32", "float16", "float64"] = Field(
        "float32", description="number format of the task vector in a message"
    )


class EngineSection(Section):
    """What runs the clients."""

    kind: Literal["local", "actors", "ray"] = Field(
        "local",
        description="local: in this process | actors: processes that train cohorts, one a GPU | "
        "ray: Flower's simulation, a client at a time in many processes",
    )
    cohort: int = Field(
        0, ge=0, description="local, actors: clients trained together in one batch; 0 = automatic"
    )
    workers: int = Field(
        1, ge=1, description="ray, actors: processes that run clients; actors on GPUs: one a GPU"
    )
    threads: int = Field(0, ge=0, le=1024, description="torch threads a process; 0 = torch decides")
    projections: Literal["stored", "regenerated"] = Field(
        "stored",
        description="in memory | made anew in every pass; the same entries to the bit",
    )
    device: Literal["auto", "cpu", "cuda", "mps"] = Field("auto", description="auto: best there is")
    dtype: Literal["float32", "float64"] = Field("float32", description="numbers of the model")
    autocast: Literal["off", "bfloat16", "float16"] = Field(
        "off", description="lower precision inside the backbone"
    )
    cache_mb: int = Field(
        1024,
        ge=0,
        description="MiB a process keeps of what lies below the first change of texts; 0 = none",
    )


_Tracker = Literal["tensorboard", "mlflow", "wandb"]


class OutputSection(Section):
    """What a run writes besides its results."""

    eval_every: int = Field(1, ge=1, description="evaluate every so many rounds, and the last")
    plots: bool = Field(True, description="draw score, loss and partition at the end")
    track: Annotated[tuple[_Tracker, ...], BeforeValidator(_listed)] = Field(
        (),
        description="also log to: tensorboard | mlflow | wandb (each an extra), in the run folder",
    )


def _blocks(value: Any) -> Any:
    """Return ``"0,6-8"`` as [0, 6, 7, 8]."""
    if isinstance(value, int) and not isinstance(value, bool):
        return [value]
    if not isinstance(value, str) or value == "all":
        return value
    numbers: list[int] = []
    for part in _listed(value):
        first, _, last = part.partition("-")
        ends = first, last or first
        if not all(end.isdecimal() and len(end) < 5 for end in ends) or int(ends[0]) > int(ends[1]):
            raise ValueError("Input should be 'all', or numbers and ranges such as 0,6-11")
        numbers += range(int(ends[0]), int(ends[1]) + 1)
    return numbers


_Matrix = Literal["q", "k", "v", "o", "ffn"]
#: Matrices of a block, in its order; ``ffn`` stands for both of the FFN's.
MatrixSites = Annotated[
    tuple[_Matrix, ...],
    BeforeValidator(_listed),
    AfterValidator(lambda names: tuple(each for each in get_args(_Matrix) if each in names)),
    Field(min_length=1),
]
#: Some of a backbone's blocks, counted from 0.
Blocks = Annotated[
    Literal["all"] | Annotated[tuple[NonNegativeInt, ...], Field(min_length=1)],
    BeforeValidator(_blocks),
]


class MethodSettings(Section):
    """Base of a method's settings; each method's file defines its own."""

    name: str
