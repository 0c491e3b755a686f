"""The figures published in the tables' studies are the paper's, all of them and no others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from simulations.study.file import StudyFile

Reference = Callable[[str], dict[str, Any]]
#: The reference's names of methods as the studies label them.
LABELS = {
    "finetuning": "full",
    "adapter": "Pfeiffer m=64",
    "linear": "linear",
    "lora": "LoRA r=8",
    "warp_1": "WARP n=1",
    "warp_8": "WARP n=8",
    "warp_20": "WARP n=20",
    "warp_mnli": "WARP n=20 after MNLI",
    "lora_r1": "LoRA r=1",
    "adapter_m1": "Houlsby m=1",
    "bitfit": "BitFit",
    "slash_d24576_max": "SLaSh max",
    "slash_d9216_max": "SLaSh max",
}


def label_of(name: str) -> str:
    if name in LABELS:
        return LABELS[name]
    method, _, d = name.partition("_d")
    return f"{'SLaSh' if method == 'slash' else 'JR-WARP'} {d}"


def figures(study: StudyFile) -> dict[frozenset[tuple[str, str]], tuple[float, float | None]]:
    return {frozenset(row.where.items()): (row.score, row.deviation) for row in study.published}


def expected(
    places: list[tuple[dict[str, str], dict[str, float], dict[str, float]]],
) -> dict[frozenset[tuple[str, str]], tuple[float, float | None]]:
    """Percentages as fractions, by labels; the averages are not published figures of a cell."""
    return {
        frozenset({**where, "task": task}.items()): (
            pytest.approx(score / 100, abs=1e-9),
            pytest.approx(spread[task] / 100, abs=1e-9) if task in spread else None,
        )
        for where, scores, spread in places
        for task, score in scores.items()
        if task != "Avg"
    }


@pytest.mark.parametrize(
    ("number", "key"), [(2, "table2_roberta_large"), (3, "table3_roberta_base")]
)
def test_published_figures_of_tables_2_and_3(
    number: int, key: str, study: Callable[..., StudyFile], reference: Reference
) -> None:
    rows = reference("results.json")[key]
    places = [
        ({"method": label_of(row["method"])}, row["scores"], row.get("std", {})) for row in rows
    ]
    assert figures(study(f"table{number}")) == expected(places)


def test_published_figures_of_table_4(
    study: Callable[..., StudyFile], reference: Reference
) -> None:
    rows = reference("results.json")["table4_ner_bert_base_cased"]
    wanted_rows = {
        frozenset({("method", label_of(row["method"]))}): (
            pytest.approx(row["val_f1"] / 100, abs=1e-9),
            None,
        )
        for row in rows
    }
    assert figures(study("table4")) == wanted_rows


def test_published_figures_of_table_6(
    study: Callable[..., StudyFile], reference: Reference
) -> None:
    """All but QQP's, which are accuracy there and F1 here."""
    labels = {"rgp": "RGP", "adapter": "Houlsby", "compacter": "Compacter", "lora": "LoRA"}
    kinds = {"non_private": "none", "private": "epsilon 6.7"}
    sixth, places = reference("results.json")["table6_private"], []
    for backbone in ("roberta-large", "roberta-base"):
        for kind, privacy in kinds.items():
            for row in sixth[backbone][kind]:
                method = labels.get(row["method"]) or label_of(row["method"])
                scores = {task: row[task] for task in ("MNLI", "QNLI", "SST-2")}
                where = {"backbone": backbone, "method": method, "privacy": privacy}
                places.append((where, scores, {}))
    assert figures(study("table6")) == expected(places)


def test_published_figures_of_tables_7_to_9(
    study: Callable[..., StudyFile], reference: Reference
) -> None:
    results = reference("results.json")
    seventh = [
        ({"method": f"SLaSh {row['d']}", "position": row["position"]}, row["scores"], {})
        for row in results["table7_position_roberta_base_CLS"]
    ]
    assert figures(study("table7")) == expected(seventh)
    begin = ("z and W random", "z = 0", "W = identity")
    rows = results["table8_init_roberta_large_MASK_d1024"]
    eighth = [({"init": init}, row["scores"], {}) for init, row in zip(begin, rows, strict=True)]
    assert figures(study("table8")) == expected(eighth)
    ninth = [
        (
            {
                "backbone": row["model"],
                "method": f"SLaSh {row['d']}",
                "representation": row["rep"].lower(),
            },
            row["scores"],
            {},
        )
        for row in results["table9_mask_vs_cls"]
    ]
    assert figures(study("table9")) == expected(ninth)
