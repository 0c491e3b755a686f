"""``fedpeft simulate --profile``: the time of each phase, and a trace of some training steps."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fedpeft.errors import UserError
from fedpeft.experiment.config import Experiment
from fedpeft.files import write_json
from fedpeft.profiling import Phase, Stopwatch

PROFILE, TRACE = "profile.json", "trace.json"
WARM, TRACED = 2, 10  # steps before the trace, and in it


def require_local(experiment: Experiment) -> None:
    """Raise UserError unless clients train in this process."""
    if experiment.engine.kind != "local":
        raise UserError(
            f"--profile: engine.kind = '{experiment.engine.kind}' trains in other processes; "
            f"expected engine.kind = 'local'"
        )


@contextmanager
def profiled(folder: Path) -> Iterator[dict[str, float]]:
    """Profile a run while the context is open; yield a dict that is filled with phase -> seconds.

    Writes ``profile.json`` with seconds and shares of the phases (``rest`` includes the cost of
    the trace), and ``trace.json`` if the run has more than two steps: a torch profiler trace of
    some steps, for chrome://tracing or ui.perfetto.dev.
    """
    import torch
    from torch.profiler import ProfilerActivity, profile, schedule

    activities = [ProfilerActivity.CPU]
    if torch.cuda.is_available():
        activities.append(ProfilerActivity.CUDA)
    trace = profile(
        activities=activities,
        schedule=schedule(wait=0, warmup=WARM, active=TRACED, repeat=1),
        on_trace_ready=lambda ready: ready.export_chrome_trace(str(folder / TRACE)),
    )

    def finish() -> None:
        if torch.cuda.is_available():
            torch.cuda.synchronize()  # kernels run asynchronously

    def ended(phase: Phase) -> None:
        if phase == "optimiser":
            trace.step()

    seconds: dict[str, float] = {}
    began = time.perf_counter()
    with trace, Stopwatch(finish, ended).running() as watch:
        yield seconds
    whole = time.perf_counter() - began
    seconds.update(sorted(watch.seconds.items(), key=lambda item: -item[1]))
    seconds["rest"] = whole - sum(seconds.values())
    shares = {name: round(phase / whole, 4) for name, phase in seconds.items()}
    write_json(folder / PROFILE, {"whole": whole, "seconds": seconds, "shares": shares})
