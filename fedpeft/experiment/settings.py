"""The sections of an experiment: each setting with its default, range and description."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from fedpeft.experiment.names import Labels, Names
from fedpeft.experiment.sizes import size_in_bytes
from fedpeft.methods.settings import MOST, Section, listed
from fedpeft.wire.codecs import check_codec, check_down, check_up
from fedpeft.wire.scatter import check_scatter, check_sums

Representation = Literal["mask", "cls", "mean", "unit", "last"]

#: Forms of the frozen weights, see ``fedpeft.backbones.compact``.
Weights = Literal["float32", "bfloat16", "int8", "int4"]
#: Names of codecs, see ``fedpeft.wire.codecs``.
Up = Annotated[str, AfterValidator(check_up)]
HeadCodec = Annotated[str, AfterValidator(lambda name: name and check_codec(name, "eden"))]
Sums = Annotated[str, AfterValidator(check_sums)]
Moments = Annotated[str, AfterValidator(check_scatter)]
Down = Annotated[str, AfterValidator(check_down)]


class TaskSection(Section):
    """Data set, its files and how much of it to use."""

    name: str = Field(
        "synthetic/sentiment",
        description="a GLUE task (sst2, qnli, ...), conll2003, synthetic/... or custom; see "
        "`fedpeft tasks`",
    )
    path: str = Field(
        "", description="local folder with the task's files; empty = Hugging Face hub"
    )
    train: str = Field(
        "",
        description="custom: training file (.tsv, .csv, .jsonl, .parquet); or a data set that "
        "`datasets` reads, NAME[/CONFIG][:SPLIT] of the hub or FOLDER[:SPLIT]",
    )
    dev: str = Field(
        "",
        description="custom: evaluation file or data set; empty = the split validation of the "
        "training set's data set, or hold out a share of the training file",
    )
    held_out: float = Field(
        0.1, gt=0, lt=1, description="custom: share to hold out if dev is empty"
    )
    text: str = Field("text", description="custom: text column")
    text_pair: str = Field("", description="custom: second text column, if any")
    label: str = Field("label", description="custom: label column")
    kind: Literal["classes", "score", "tags", "text"] = Field(
        "classes",
        description="custom: classes | score (a number) | tags (the text column holds lists of "
        "words, the label column a list of one tag per word) | text (write the target column)",
    )
    source: str = Field("source", description="text: column of the texts to read")
    target: str = Field("target", description="text: column of the texts to write")
    prompt: str = Field(
        "{source}",
        description="text, and classes with head.kind = 'likelihood': the backbone's input, with "
        "{source} replaced by the text and {pair} by the second text of a pair",
    )
    max_target: int = Field(
        64, ge=2, le=MOST, description="text: maximum tokens of a target, end token included"
    )
    metric: Literal["", "accuracy", "exact", "rougeL", "bleu", "chrf"] = Field(
        "",
        description="text: accuracy (share of the target's tokens that are predicted from those "
        "before them; the default) | exact (share of generated texts equal to the target) | "
        "rougeL | bleu | chrf (all from generated texts, 0 to 1)",
    )
    beams: int = Field(
        1, ge=1, le=64, description="text: beams of the search that generates; 1 = greedy"
    )
    labels: Labels = Field(
        (), description="custom: class names in order; empty = those in the training file"
    )
    train_limit: int = Field(0, ge=0, description="number of training examples to use; 0 = all")
    eval_limit: int = Field(0, ge=0, description="number of evaluation examples to use; 0 = all")
    validation: float = Field(
        0.0,
        ge=0,
        lt=1,
        description="share of the training examples to hold out and evaluate on; 0 = evaluate on "
        "the dev set",
    )
    pairs: Literal["joint", "apart"] = Field(
        "joint",
        description="texts of pairs: joint (in one sequence) | apart (each passes on its own; the "
        "head reads the products and the absolute differences of both)",
    )
    max_length: int = Field(
        128, ge=8, le=MOST, description="maximum tokens per text, special tokens included"
    )


class PartitionSection(Section):
    """Partition of the training examples among the clients of a simulation."""

    kind: Literal["iid", "dirichlet", "pathological", "quantity", "natural", "bins"] = Field(
        "iid",
        description="iid | dirichlet (uneven labels) | pathological (a few classes per client) | "
        "quantity (uneven sizes) | natural (by a column) | bins (ranges of a score)",
    )
    alpha: float = Field(0.5, gt=0, description="dirichlet, quantity: smaller = more uneven")
    classes: int = Field(1, ge=1, description="pathological: classes per client")
    strictness: float = Field(
        0.8, ge=0, le=1, description="bins: 1 = one range of scores per client, 0 = iid"
    )
    column: str = Field("", description="natural: column that names the owner of each example")
    min_examples: int = Field(
        1, ge=1, description="minimum per client; small clients get examples of the largest ones"
    )


class LocalSection(Section):
    """Training of one client in one round."""

    epochs: int = Field(
        1, ge=1, le=10_000, description="passes over the client's examples per round"
    )
    steps: int = Field(
        0, ge=0, le=MOST, description="steps per round instead of epochs; 0 = by epochs"
    )
    batch_size: int = Field(16, ge=1, le=MOST, description="examples per step")
    optimizer: Literal["adamw", "sgd"] = Field("adamw", description="adamw | sgd")
    lr: float | None = Field(None, gt=0, description="learning rate; default: the method's")
    momentum: float = Field(0.0, ge=0, lt=1, description="sgd: momentum")
    weight_decay: float = Field(
        0.0, ge=0, description="decoupled weight decay of the trained parameters"
    )
    schedule: Literal["linear", "constant"] = Field(
        "linear",
        description="learning rate over the whole run: linear (decays to 0) | constant",
    )
    warmup: float = Field(0.0, ge=0, lt=1, description="share of the whole run spent in warmup")
    max_grad_norm: float = Field(
        1.0,
        ge=0,
        description="L2 norm to clip gradients to; 0 = no clipping; DP-SGD uses privacy.clip",
    )
    proximal_mu: float = Field(0.0, ge=0, description="weight of FedProx's proximal term; 0 = none")
    perturbations: int = Field(
        0,
        ge=0,
        le=10_000,
        description="estimate gradients by forward passes along this many random directions per "
        "step (zeroth order); 0 = exact gradients",
    )
    perturbation_scale: float = Field(
        1e-3, gt=0, le=1, description="distance of the points where a direction's slope is measured"
    )


class HeadSection(Section):
    """Layer on top of the backbone that computes logits or scores."""

    kind: Literal["linear", "likelihood"] = Field(
        "linear",
        description="linear (a layer that is trained) | likelihood (nothing is trained: the logit "
        "of a class is that of its word as the next token after task.prompt; for decoders and "
        "encoder-decoders)",
    )
    words: Names = Field(
        (),
        description="likelihood: word of each class, in the order of the labels; their first "
        "tokens differ; empty = the labels",
    )
    d: int = Field(
        0,
        ge=0,
        le=MOST,
        description="train a vector of this length, projected to the head's weights; 0 = train the "
        "weights",
    )
    rank: int = Field(0, ge=0, le=MOST, description="train weights of this rank; 0 = of full rank")
    labels: bool | None = Field(
        None,
        description="add fixed weights made of the class names by the frozen backbone, times a "
        "trained number; default: true with rank or d from 100 named classes on",
    )
    lr: float | None = Field(None, gt=0, description="learning rate; empty = local.lr")
    steepness: float | None = Field(
        None,
        ge=0,
        description="mean length of the head's rows, apart from what all share, from which on the "
        "other numbers are slower: local.lr times the square of steepness / length; 0 or empty = "
        "never, and never for a score",
    )
    start: Literal["random", "sums"] = Field(
        "random",
        description="random (drawn from the seed) | sums (in closed form from sums over the "
        "clients' features, which the clients of the first round send before it)",
    )
    sums: Sums = Field(
        "eden8",
        description="start = 'sums': sums of the features of each class: a number format | "
        "eden0.02 ... eden8",
    )
    moments: Moments = Field(
        "pca32",
        description="start = 'sums': second moments around them: none | a number format | eden0.02 "
        "... eden8 | pcaK (their K principal directions)",
    )


def _size(text: str) -> str:
    if text:
        size_in_bytes(text)
    return text


class WireSection(Section):
    """Encoding of task vectors in messages."""

    budget: Annotated[str, AfterValidator(_size)] = Field(
        "",
        description="bytes of a client's message up in a round, framing included: 500 B | 1 KB "
        "(1,000 bytes) | 2 MB; chooses wire.up and the method's size; empty = no limit",
    )

    up: Up = Field(
        "float32",
        description="a client's update: float32 | float16 | bfloat16 | float64 | eden1 ... eden8 "
        "(bits per number) | eden0.02 ... eden0.99 (a share of the numbers at one bit) | "
        "topk0.001 ... topk1 (the largest numbers; a biased baseline) | scalars (slopes along "
        "local.perturbations directions) | signs (of the slopes, one bit each)",
    )
    head: HeadCodec = Field(
        "",
        description="the head's numbers in a client's update: a number format | eden0.02 ... "
        "eden8; empty = the same as up; from 100 classes on eden4 beside a number format, and "
        "eden1 beside eden2 ... eden8",
    )
    down: Down = Field(
        "float32",
        description="the server's task vector: a number format | eden1 ... eden8 (difference to "
        "the initial vector) | delta0.02 ... delta8 (to what was sent before) | scalars (the "
        "combined slopes of wire.up = scalars or signs, from which clients make the same step)",
    )


class NestedSection(Section):
    """Clients that hold only the first numbers of z."""

    d: int = Field(
        0,
        ge=0,
        le=MOST,
        description="length of z at some clients, the first numbers of the run's z; 0 = all of it "
        "at all clients",
    )
    share: float = Field(
        0.5, gt=0, lt=1, description="share of the clients that hold nested.d numbers of z"
    )


def _renamed_engine(kind: object) -> object:
    if kind == "actors":
        raise ValueError("'local' or 'ray' (the engine 'actors' is now called 'ray')")
    return kind


class EngineSection(Section):
    """Engine that runs the clients of a simulation."""

    kind: Annotated[Literal["local", "ray"], BeforeValidator(_renamed_engine)] = Field(
        "local",
        description="local: in this process | ray: Ray processes that train cohorts, one per GPU",
    )
    cohort: int = Field(0, ge=0, description="clients trained together in one batch; 0 = automatic")
    workers: int = Field(
        1, ge=1, description="ray: processes that train clients; on GPUs: one per GPU"
    )
    threads: int = Field(
        0, ge=0, le=1024, description="torch threads per process; 0 = torch decides"
    )
    projections: Literal["stored", "regenerated"] = Field(
        "stored",
        description="stored (in memory) | regenerated (in every pass); identical to the bit",
    )
    device: Literal["auto", "cpu", "cuda", "mps"] = Field(
        "auto", description="auto: cuda, mps or cpu, the first available"
    )
    dtype: Literal["float32", "float64"] = Field(
        "float32", description="number format of the model"
    )
    autocast: Literal["off", "auto", "bfloat16", "float16"] = Field(
        "off",
        description="lower precision inside the backbone; auto: bfloat16 where the hardware "
        "multiplies it natively",
    )
    weights: Weights = Field(
        "float32",
        description="form in which the frozen weights are held: float32 (that of dtype) | bfloat16 "
        "(and autocast is bfloat16) | int8 | int4 (needs bitsandbytes)",
    )
    checkpointing: bool = Field(
        False,
        description="keep only the states that enter each block, and compute the block again in "
        "the backward pass: less memory, longer steps",
    )
    cache_mb: int = Field(
        1024,
        ge=0,
        le=MOST,
        description="MiB of hidden states that a process caches, those that enter the first "
        "changed block; 0 = none",
    )


_Tracker = Literal["tensorboard", "mlflow", "wandb"]


class OutputSection(Section):
    """Files that a run writes besides its results."""

    eval_every: int = Field(1, ge=1, description="evaluate every N rounds, and after the last")
    plots: bool = Field(True, description="plot score, loss and partition at the end")
    track: Annotated[tuple[_Tracker, ...], BeforeValidator(listed)] = Field(
        (),
        description="trackers to log to in the run folder: tensorboard, mlflow, wandb (install "
        "the extra of the same name)",
    )
