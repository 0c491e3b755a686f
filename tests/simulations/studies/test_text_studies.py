"""The studies of XSum and en-ro follow He et al. 2022: settings, figures and sizes."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import pytest
from transformers import MBartConfig

from fedpeft.backbones.known import KNOWN_SHAPES, shape_of_config
from fedpeft.methods import build_method
from simulations.study.cells import Cell
from simulations.study.file import StudyFile

Reference = Callable[[str], dict[str, Any]]
#: counts.json's methods as the studies label them.
COUNTED = {
    "prefix l=30": "prefix/PA/MHPA l=r=30 attn (paper 0.1%)",
    "prefix l=200": "prefix l=200 (attn)",
    "prefix l=512": "prefix l=512",
    "prompt l=200": "prompt l=200",
    "BitFit": "bitfit",
    "LoRA (attn) r=200": "LoRA attn r=200",
    "LoRA (ffn) r=102, s=4": "LoRA ffn r=102",
    "LoRA (ffn) r=102, s=1": "LoRA ffn r=102",
    "PA (attn) r=30": "prefix/PA/MHPA l=r=30 attn (paper 0.1%)",
    "PA (attn) r=200": "SA/PA attn r=200",
    "PA (ffn) r=30": "PA ffn r=30",
    "PA (ffn) r=200": "SA/PA ffn r=200",
    "PA (ffn) r=512": "PA ffn r=512",
    "PA (ffn) r=1024": "PA ffn r=1024",
    "scaled PA r=512, s=4": "PA ffn r=512",
    "MH PA (attn) r=30": "prefix/PA/MHPA l=r=30 attn (paper 0.1%)",
    "Pfeiffer r=600": "Pfeiffer r=600",
    "MAM": "MAM l=30 r=512",
}
#: results.json's methods as the studies label them, by table.
LABELS = {
    "table3": {
        "prefix l=200": "prefix l=200",
        "PA(attn) r=200": "PA (attn) r=200",
        "PA(ffn) r=200": "PA (ffn) r=200",
    },
    "table4_mt": {
        "PA(attn) r=200": "PA (attn) r=200",
        "prefix l=200": "prefix l=200",
        "MHPA(attn) r=200": "MH PA (attn) r=200",
        "prefix l=30": "prefix l=30",
        "PA(ffn) r=30": "PA (ffn) r=30",
        "PA(attn) r=30": "PA (attn) r=30",
        "MHPA(attn) r=30": "MH PA (attn) r=30",
    },
    "table5_xsum": {
        "LoRA s=1": "LoRA (ffn) r=102, s=1",
        "PA": "PA (ffn) r=512",
        "scaled PA s=4": "scaled PA r=512, s=4",
        "scaled PA trainable s": "scaled PA r=512, s trained",
    },
    "table6": {
        "full (their run)": "full",
        "bitfit": "BitFit",
        "prompt tuning": "prompt l=200",
        "prefix l=200": "prefix l=200",
        "pfeiffer r=600": "Pfeiffer r=600",
        "LoRA(ffn) r=102": "LoRA (ffn) r=102, s=4",
        "PA(ffn) r=1024": "PA (ffn) r=1024",
        "MAM l=30 r=512": "MAM",
    },
}
#: mBART's blocks have no norm after the FFN, which this adapter needs.
NOT_RUN = ("enro", "Pfeiffer r=600")
SHAPES = {
    "xsum": KNOWN_SHAPES["facebook/bart-large"],
    "enro": shape_of_config(MBartConfig()),  # transformers' defaults are its sizes
}


@pytest.mark.parametrize("name", ["xsum", "enro"])
def test_every_method_fits_the_backbone(name: str, cells: Callable[[str], list[Cell]]) -> None:
    for cell in cells(name):
        method = build_method(cell.experiment.method, SHAPES[name], 0)
        assert all(min(shape) > 0 for shape in method.parameters().values())


@pytest.mark.parametrize(("name", "task"), [("xsum", "XSum"), ("enro", "en-ro")])
def test_settings_are_those_of_the_papers_appendix(
    name: str, task: str, cells: Callable[[str], list[Cell]], reference: Reference
) -> None:
    he = reference("hparams.json")["he2022"]
    (row,) = [row for row in he["table8"] if row["task"] == task]
    for cell in cells(name):
        experiment = cell.experiment
        local, method = experiment.local, experiment.method.name
        assert local.lr == (3e-5 if method == "full" else row["lr"])
        assert (local.max_grad_norm, local.weight_decay, local.warmup, local.schedule) == (
            row["max_grad_norm"],
            row["weight_decay"],
            row["warmup"],
            "linear",
        )
        assert local.steps == 1000 * int(row["steps"].removesuffix("K"))
        assert task == "en-ro" or f"{local.batch_size} sents" == row["batch"]
        assert experiment.task.beams == (1 if method == "prompt" else he["common"]["beams"][task])
        if task == "XSum":
            lengths = experiment.task.max_length, experiment.task.max_target
            common = he["common"]
            assert lengths == (common["max_source_xsum"], common["max_target_xsum"])
        if method == "mam":
            mam = he["mam"]["bart_xsum"]
            values = experiment.method.model_dump()
            assert (values["length"], values["bottleneck"]) == (mam["prefix_l"], mam["ffn_r"])
            assert values["scale"] == mam["s"]


@pytest.mark.parametrize("name", ["xsum", "enro"])
def test_numbers_trained_are_those_of_the_papers_tables(
    name: str, cells: Callable[[str], list[Cell]], reference: Reference
) -> None:
    """The paper counts no biases of adapters, and of a prefix what stays after training."""
    rows = {row["method"]: row for row in reference("counts.json")["rows"]}
    counted = 0
    for cell in cells(name):
        label = cell.labels["method"]
        if label not in COUNTED:
            continue
        settings = cell.experiment.method
        if settings.name == "prefix":
            settings = settings.model_copy(update={"hidden": 0})
        method = build_method(settings, SHAPES[name], 0)
        sizes = [prod(s) for part, s in method.parameters().items() if not part.endswith("bias")]
        # The table counts BART. mBART's encoder and decoder end in one more norm, with a bias.
        more = 2 * 1024 if (name, label) == ("enro", "BitFit") else 0
        assert sum(sizes) == rows[COUNTED[label]]["formula"] + more, label
        counted += 1
    assert counted == {"xsum": 14, "enro": 15}[name]


@pytest.mark.parametrize(("name", "key"), [("xsum", "xsum"), ("enro", "mt")])
def test_published_figures_are_those_of_the_paper(
    name: str, key: str, study: Callable[..., StudyFile], reference: Reference
) -> None:
    """The last table with a row of a method counts: table 6 has the means of three seeds."""
    results, expected = reference("results.json")["he2022"], {}
    for table, labels in LABELS.items():
        for row in results[table]:
            if row["method"] in labels and key in row:
                score = float(row[key].split("/")[-1]) if key == "xsum" else row[key]
                expected[labels[row["method"]]] = pytest.approx(score / 100)
    expected = {label: score for label, score in expected.items() if (name, label) != NOT_RUN}
    # Table 12 is in none of the reference's lists; read in the paper.
    more = {"prefix l=512", "LoRA (attn) r=200", "PA (attn) r=512", "PA (ffn) r=512"}
    actual = {row.where["method"]: row.score for row in study(name).published}
    assert {label: score for label, score in actual.items() if label not in more} == {
        label: score for label, score in expected.items() if label not in more
    }
    assert {*actual} - {*expected} <= more
