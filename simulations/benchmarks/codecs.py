"""The time of coding: milliseconds of a vector, and the share of a whole round.

First case: encoding and decoding random changes of several lengths, in this process. Second case:
a simulated run on real weights, profiled; ``share`` is the time of all coding, of all clients and
the server, over the time of the rounds.

Example: python -m simulations.benchmarks.codecs --glue ../shared/data/glue
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median

import numpy as np

from fedpeft.experiment.config import Experiment
from fedpeft.profiling import Stopwatch
from fedpeft.wire import eden
from simulations.benchmarks.common import Report, Row, arguments_of, record, script, slash_d
from simulations.simulation import prepare, simulate

RATES = (0.2, 1, 2, 4, 8)
METHODS = ("slash", "lora")
CODECS = {
    "1 up, delta 1 down": ["wire.up=eden1", "wire.down=delta1"],
    "4 up, 8 down": ["wire.up=eden4", "wire.down=eden8"],
}


def vector_times(size: int, rate: float, repeats: int) -> Row:
    """Return the median milliseconds of encoding and decoding a vector [size]."""
    change = np.random.default_rng(0).standard_normal(size)
    encode, decode = [], []
    for number in range(repeats):
        began = time.perf_counter()
        code = eden.encode(change, rate, np.random.default_rng(number), True)
        between = time.perf_counter()
        eden.decode(code, size, rate, np.random.default_rng(number))
        encode.append(1e3 * (between - began))
        decode.append(1e3 * (time.perf_counter() - between))
    return {
        "numbers": size,
        "bits": rate,
        "encode, ms": round(median(encode), 3),
        "decode, ms": round(median(decode), 3),
        "bytes": eden.encoded_size(size, rate),
    }


def round_share(options: argparse.Namespace, method: str, codec: str) -> Row:
    """Return the share of coding in a profiled run."""
    settings = [
        f"backbone={options.backbone}",
        f"method.name={method}",
        f"method.d={slash_d(options.backbone)}" if method == "slash" else "method.rank=2",
        *CODECS[codec],
        *([f"task.path={options.glue}", "task.name=sst2"] if options.glue else []),
        f"task.train_limit={options.examples}",
        "task.eval_limit=16",
        f"federation.clients={options.clients}",
        f"federation.rounds={options.rounds}",
        f"output.eval_every={options.rounds}",
        "local.batch_size=8",
        "engine.threads=1",
        "engine.device=cpu",
        "output.plots=false",
    ]
    with tempfile.TemporaryDirectory() as scratch:
        experiment = Experiment.load("", settings)
        folder, _ = prepare(experiment, Path(scratch) / "run")
        with Stopwatch().running() as watch:
            simulate(folder, experiment)
        rounds = sum(line["seconds"] for line in folder.rounds())
    coding = watch.seconds["coding"]
    return {
        "method": method,
        "codecs": codec,
        "coding, s": round(coding, 4),
        "rounds, s": round(rounds, 2),
        "share": f"{coding / rounds:.2%}",
    }


def main(arguments: Sequence[str] | None = None) -> list[Report]:
    """Run the benchmark from its command line."""
    arguments = sys.argv[1:] if arguments is None else arguments
    parser = arguments_of(__doc__, 51)
    parser.add_argument("--backbone", default="minilm", help="minilm (default), tiny")
    parser.add_argument("--glue", type=Path, help="folder of GLUE files; default: made-up texts")
    parser.add_argument("--clients", type=int, default=8, help="clients (8)")
    parser.add_argument("--examples", type=int, default=240, help="of all clients (240)")
    parser.add_argument("--rounds", type=int, default=2, help="rounds of one epoch (2)")
    parser.add_argument("--sizes", type=int, nargs="+", default=[1_794, 19_202, 100_000])
    options = parser.parse_args(arguments)
    times = [vector_times(size, rate, options.repeats) for size in options.sizes for rate in RATES]
    shares = [round_share(options, method, codec) for method in METHODS for codec in CODECS]
    names = ("backbone", "clients", "examples", "rounds", "repeats")
    settings = {name: getattr(options, name) for name in names}
    reports = [
        Report({"repeats": options.repeats}, times, {"times": "medians"}, {"times": times}),
        Report(settings, shares, {"share": "coding of clients and server"}, {"shares": shares}),
    ]
    for case, report in zip(("one vector", "whole rounds"), reports, strict=True):
        record("codecs", case, report, arguments, options.results)
    return reports


if __name__ == "__main__":
    script(main)
