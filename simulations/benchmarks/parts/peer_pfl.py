"""pfl-research's simulation of the same experiment, in a separate environment:

python -m venv /tmp/pfl
/tmp/pfl/bin/pip install pfl==0.6.0 'torch<2.14' 'transformers>=5,<6'
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
from pfl.metrics import Weighted
from pfl.model.pytorch import PyTorchModel

from simulations.benchmarks.parts.peer_model import Batch, Classifier, Prepared


class Measured(Classifier):
    """The classifier with the ``metrics`` that pfl requires; pfl always evaluates round 1."""

    def metrics(self, *batch: torch.Tensor) -> dict[str, Any]:
        """Return no metrics: no other side evaluates the clients."""
        return {"none": Weighted(0, 1)}


class Planned(Dataset):
    """A client's examples in the batches of one round."""

    def __init__(self, prepared: Prepared, client: int, number: int):
        super().__init__((np.zeros(prepared.examples(client)),), user_id=str(client))
        self._batches = prepared, client, number

    def iter(self, batch_size: int | None) -> Iterator[Batch]:
        """Yield the batches."""
        prepared, client, number = self._batches
        return prepared.batches(client, number)


def main(arguments: Sequence[str]) -> None:
    """Run the simulation: folder of ``peers``, path of the result."""
    folder, out = Path(arguments[0]), Path(arguments[1])
    prepared = Prepared(folder)
    settings, classifier = prepared.settings, Measured(prepared)
    clients, rounds = settings["clients"], Counter[int]()

    def dataset(client: int) -> Planned:
        rounds[client] += 1  # every client is sampled once per round
        return Planned(prepared, client, rounds[client])

    def optimizer(_: object, lr: float) -> torch.optim.Optimizer:
        return classifier.optimizer(lr)

    data = FederatedDataset(dataset, get_user_sampler("minimize_reuse", list(range(clients))))
    trained = list(classifier.trained().values())
    model = PyTorchModel(classifier, optimizer, torch.optim.SGD(trained, lr=1.0))
    steps = NNTrainHyperParams(
        local_num_epochs=1,
        local_learning_rate=settings["lr"],
        local_batch_size=settings["batch"],
        local_max_grad_norm=settings["max_grad_norm"],
    )
    federation = NNAlgorithmParams(
        central_num_iterations=settings["rounds"],
        evaluation_frequency=settings["rounds"] + 1,
        train_cohort_size=clients,
        val_cohort_size=0,
    )
    backend = SimulatedBackend(training_data=data, val_data=data)
    evaluation = NNEvalHyperParams(local_batch_size=settings["batch"])
    FederatedAveraging().run(federation, backend, model, steps, evaluation)
    assert set(rounds.values()) == {settings["rounds"]}
    np.save(out, classifier.vector())
