"""``fedpeft simulate --profile``: where a run's time went, and a trace of some training steps."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fedpeft.config import Experiment
from fedpeft.errors import UserError
from fedpeft.files import write_json
from fedpeft.profiling import Phase, Stopwatch

PROFILE, TRACE = "profile.json", "trace.json"
WARM, TRACED = 2, 10  # steps before the trace, and in it


def require_local(experiment: Experiment) -> None:
    """Raise UserError unless clients train in this process."""
    if experiment.engine.kind != "local":
        raise UserError(
            f"--profile: engine.kind = '{experiment.engine.kind}' trains in other processes; "
            f"profile with engine.kind=local"
        )


@contextmanager
def profiled(folder: Path) -> Iterator[dict[str, float]]:
    """Watch a run while the context is open; yields what becomes the seconds of each phase.

    Then writes ``profile.json``, seconds and shares of the phases (what the trace costs is in
    ``rest``), and, of a run of more than two steps, ``trace.json``: a torch profiler trace of some
    steps, for chrome://tracing or ui.perfetto.dev.
    """
    import torch
    from torch.profiler import ProfilerActivity, profile, schedule

    activities = [ProfilerActivity.CPU]
    if torch.cuda.is_available():
        activities.append(ProfilerActivity.CUDA)
    trace = profile(
        activities=activities,
        schedule=schedule(wait=0, warmup=WARM, active=TRACED, repeat=1),
        on_trace_ready=lambda found: found.export_chrome_trace(str(folder / TRACE)),
    )

    def finish() -> None:
        if torch.cuda.is_available():
            torch.cuda.synchronize()  # else a phase only counts the calls

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
    shares = {name: round(each / whole, 4) for name, each in seconds.items()}
    write_json(folder / PROFILE, {"whole": whole, "seconds": seconds, "shares": shares})
