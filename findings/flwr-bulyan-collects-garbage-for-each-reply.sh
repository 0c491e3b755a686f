#!/usr/bin/env bash
# flwr 1.41.0: the strategy Bulyan starts a full garbage collection for each reply that it selects,
# so the time of a round depends on what the server process has imported, not on the vectors.
#
# Why it matters: CPython then goes through every object of the process. With torch, transformers
# and a few more libraries in memory that takes 0.3 to 1.4 s, so eleven clients with 40 numbers each
# cost a server ten seconds a round; without them, milliseconds. Profiles of small servers do not
# show it. gc.freeze() after the imports makes it cheap again.
#
# Reason: ArrayRecord.to_numpy_ndarrays(keep_input=False) ends with gc.collect(), "to force GC".
# QFedAvg calls it as well; FedAvg and Krum do not.
#
# Seen: "full collections in a round: Krum 0, Bulyan 7".
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet flwr==1.41.0
"$folder/venv/bin/python" - <<'PYTHON'
import gc

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.app.message.message import make_message
from flwr.app.metadata import Metadata
from flwr.serverapp.strategy import Bulyan, Krum

full = 0


def count(phase: str, info: dict[str, int]) -> None:
    global full
    full += phase == "start" and info["generation"] == 2


def replies(number: int) -> list[Message]:
    made = []
    for client in range(number):
        metadata = Metadata(1, f"m{client}", 0, client + 1, "", "", 0.0, 60.0, "train")
        request = make_message(metadata, RecordDict({"c": ConfigRecord()}))
        arrays = ArrayRecord({"v": Array(np.full(40, float(client)))})
        content = RecordDict({"arrays": arrays, "metrics": MetricRecord({"num-examples": 1.0})})
        made.append(Message(content, reply_to=request))
    return made


seen = {}
for strategy in (Krum(num_malicious_nodes=2), Bulyan(num_malicious_nodes=2)):
    given = replies(11)
    gc.collect()
    full = 0
    gc.callbacks.append(count)
    arrays, _ = strategy.aggregate_train(1, given)
    gc.callbacks.remove(count)
    assert arrays is not None
    seen[type(strategy).__name__] = full
print("full collections in a round:", ", ".join(f"{name} {times}" for name, times in seen.items()))
assert seen == {"Krum": 0, "Bulyan": 7}, seen
PYTHON
