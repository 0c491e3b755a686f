"""Private summaries at two real nodes: train, predict, and load the export without fedpeft."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from text_runs import saved, table

from clients.folder import NodeFolder
from deployment.loopback import deployment, run
from fedpeft.privacy.ledger import read_ledger

pytestmark = pytest.mark.long
NODES = ("north", "south")
#: Writes one text with transformers alone, in a process that cannot import fedpeft.
ALONE = """
import sys
sys.modules["fedpeft"] = None
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer
folder, source = sys.argv[1:]
model = AutoModelForSeq2SeqLM.from_pretrained(folder)
tokenizer = AutoTokenizer.from_pretrained(folder)
read = tokenizer(source, return_tensors="pt", return_token_type_ids=False)
written = model.eval().generate(**read, num_beams=1, do_sample=False, max_new_tokens=8)
print(tokenizer.decode(written[0], skip_special_tokens=True))
"""


def test_private_summaries_from_two_nodes(tmp_path: Path) -> None:
    backbone, dev = saved("bart", tmp_path / "model"), table(tmp_path / "dev.jsonl", 12)
    settings = [
        f"backbone={backbone}",
        *("task.name=custom", "task.kind=text", "task.source=question", "task.target=answer"),
        *(f"task.train={dev}", f"task.dev={dev}"),  # the server's: nodes have files of their own
        *("task.max_length=24", "task.max_target=8", "task.metric=rougeL"),
        *("method.name=lora", "method.rank=2"),
        *("federation.clients=2", "federation.rounds=2", "local.steps=2", "local.batch_size=8"),
        *("privacy.unit=example", "privacy.epsilon=8"),
        *("engine.threads=1", "output.plots=false"),
    ]
    with deployment(tmp_path) as made:
        for name in NODES:
            made.add_node(name)
            data = tmp_path / f"{name}-data"
            data.mkdir()
            table(data / "train.jsonl")
            columns = ("--kind", "text", "--source", "question", "--target", "answer")
            made.start_node(name, "--data", str(data), *columns, "--backbone", str(backbone))
        result = made.run("summaries", settings)
        ledgers = [read_ledger(NodeFolder(made.node(name)).ledger) for name in NODES]
    assert result["metric"] == "rougeL" and 0 <= result["score"] <= 1
    assert result["rounds"] == 2 and 0 < result["privacy"]["example"]["epsilon"] <= 8
    assert [len(ledger.charges) for ledger in ledgers] == [2, 2]

    folder, out = tmp_path / "summaries", tmp_path / "written.jsonl"
    run("predict", str(folder), str(dev), "--out", str(out))
    written = [json.loads(line)["prediction"] for line in out.read_text().splitlines()]
    assert len(written) == 12
    run("export", str(folder), "--format", "hf", "--out", str(tmp_path / "exported"))
    source = json.loads(dev.read_text().splitlines()[0])["question"]
    alone = subprocess.run(
        [sys.executable, "-c", ALONE, str(tmp_path / "exported"), source],
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
    )
    assert alone.stdout.strip() == written[0]
