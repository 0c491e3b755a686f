"""Federations of 25 clients under attack: rules of the server, attacks, and how data is spread.

All fine-tune a ``tiny`` backbone that was trained on sentences like those of the task before. With
random weights ``tiny`` learns the task only if all of it is trained, which takes twenty times as
long.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

from fedpeft.errors import UserError
from fedpeft.experiment.adversary import too_many
from fedpeft.experiment.config import Experiment
from fedpeft.export import export
from fedpeft.runs.trained import Trained
from simulations.simulation import complete

CLIENTS = 25
USUAL = 5  # attackers in backdoors, and that rules expect where nobody attacks
HONEST, BACKDOOR = "none", "backdoor"
#: Attacks on accuracy.
ATTACKS = (
    "sign_flip",
    "scaling",
    "gaussian",
    "alie_optimal",
    "ipm_optimal",
    "mimic",
    "label_flip",
)
PARTITIONS = {
    "iid": (),
    "Dirichlet 1": ("partition.kind=dirichlet", "partition.alpha=1"),
    "Dirichlet 0.1": ("partition.kind=dirichlet", "partition.alpha=0.1"),
}
MEAN, CLIPPED = "mean, no limit", "mean, clipped (default)"
#: {f} is the number of malicious clients, {share} their share.
_UNLIMITED = "federation.max_update_norm=0"
RULES: dict[str, tuple[str, ...]] = {
    MEAN: (_UNLIMITED,),
    CLIPPED: (),
    "median": (_UNLIMITED, "federation.strategy=fedmedian"),
    "trimmed mean": (_UNLIMITED, "federation.strategy=fedtrimmedavg", "federation.trim={share}"),
    "geometric median": (_UNLIMITED, "federation.strategy=geometric_median"),
    "centered clipping": (_UNLIMITED, "federation.strategy=centered_clipping"),
    "multi-Krum": (_UNLIMITED, "federation.strategy=multikrum", "federation.byzantine={f}"),
    "Bulyan": (_UNLIMITED, "federation.strategy=bulyan", "federation.byzantine={f}"),
    "median after NNM": (
        *(_UNLIMITED, "federation.strategy=fedmedian"),
        *("federation.mixing=nnm", "federation.byzantine={f}"),
    ),
}
_COMMON = (
    "task.train_limit=4000",
    "task.eval_limit=1000",
    "method.name=lora",
    "method.rank=2",
    "local.lr=0.01",
    "local.steps=5",
    "local.batch_size=16",
    "local.schedule=constant",
    "output.plots=false",
    "engine.threads=1",
    "engine.device=cpu",
)
#: Training of the backbone before, on one client's sentences.
_BEFORE = (
    *("backbone=tiny", "method.name=full", "task.name=synthetic/crowd", "task.train_limit=6000"),
    *("federation.clients=1", "federation.rounds=1", "local.epochs=6", "local.lr=0.003"),
    *("local.batch_size=32", "output.plots=false", "engine.threads=1", "engine.device=cpu"),
)


@dataclass(frozen=True)
class Cell:
    """One federation: a rule, an attack by some of the clients, a partition and a seed."""

    rule: str
    attack: str
    attackers: int
    partition: str
    seed: int

    @property
    def key(self) -> str:
        """Return the name of the run in the tables."""
        parts = self.partition, self.rule, self.attack, str(self.attackers), str(self.seed)
        return ", ".join(parts)

    def settings(self, backbone: Path, rounds: int) -> list[str]:
        """Return the settings of its run."""
        numbers = {"f": self.attackers, "share": self.attackers / CLIENTS}
        attack = [f"adversary.fraction={self.attackers / CLIENTS}"]
        more = [
            *PARTITIONS[self.partition],
            *(setting.format(**numbers) for setting in RULES[self.rule]),
            *([] if self.attack == HONEST else [*attack, f"adversary.attack={self.attack}"]),
        ]
        return federation(CLIENTS, more, backbone, rounds, self.seed)


def federation(
    clients: int, more: Sequence[str], backbone: Path, rounds: int, seed: int
) -> list[str]:
    """Return the settings of a federation on the trained backbone, scored after its last round.

    Args:
        clients: all of them train in each round.
        more: settings of this federation alone.
        backbone: see ``trained_backbone``.
        rounds: of the run.
        seed: of the run.
    """
    return [
        f"federation.clients={clients}",
        *_COMMON,
        *more,
        f"backbone={backbone}",
        f"federation.rounds={rounds}",
        f"output.eval_every={rounds}",
        f"seed={seed}",
    ]


def tolerates(rule: str, attackers: int) -> bool | None:
    """Return whether a rule tolerates so many malicious clients; None if it cannot run then."""
    cell = Cell(rule, "sign_flip", attackers, "iid", 0)
    try:
        experiment = Experiment.load("", cell.settings(Path("tiny"), 1))
    except UserError:
        return None
    return not too_many(experiment.adversary, experiment.federation, CLIENTS)


def cells(
    rules: Sequence[str], attacks: Sequence[str], attackers: Sequence[int], seeds: int
) -> Iterator[Cell]:
    """Yield all federations whose rule can run, honest ones first, seed after seed."""
    for seed, partition, attack, count, rule in product(
        range(seeds), PARTITIONS, attacks, attackers, rules
    ):
        if tolerates(rule, count) is not None:
            yield Cell(rule, attack, count, partition, seed)


def trained_backbone(scratch: Path) -> Path:
    """Return the folder of the trained backbone; train it if it is not there yet."""
    folder = scratch / "backbone"
    if not folder.exists():
        complete(Experiment.load("", _BEFORE), scratch / "before")
        export(Trained.read(scratch / "before"), "hf", folder)
    return folder
