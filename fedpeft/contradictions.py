"""Settings that are right by themselves and do not go together."""

from __future__ import annotations

from collections.abc import Iterator

from fedpeft.settings import (
    SERVER_LR,
    EngineSection,
    FederationSection,
    MethodSettings,
    TaskSection,
)


def in_federation(federation: FederationSection, asked: int) -> Iterator[str]:
    """Yield a line for each contradiction; ``asked`` clients take part in a round."""
    strategy = federation.strategy
    if federation.server_lr is not None and strategy not in SERVER_LR:
        yield (
            f"federation.server_lr = {federation.server_lr}: strategy '{strategy}' has none; "
            f"leave it out"
        )
    if federation.per_round > federation.clients:
        yield (
            f"federation.per_round = {federation.per_round}: expected at most "
            f"federation.clients = {federation.clients}"
        )
    if federation.min_success > asked:
        yield (
            f"federation.min_success = {federation.min_success}: only {asked} clients are asked "
            f"each round"
        )
    needed = 2 * federation.byzantine + 3  # Blanchard et al. 2017, proposition 1
    if strategy == "krum" and asked < needed:
        yield (
            f"federation.byzantine = {federation.byzantine}: krum needs {needed} clients a round, "
            f"there are {asked}"
        )
    if strategy == "fedtrimmedavg" and int(federation.trim * asked) < 1:
        yield f"federation.trim = {federation.trim}: cuts nothing off {asked} clients a round"


def in_task(task: TaskSection) -> Iterator[str]:
    """Yield a line for each contradiction."""
    for key in ("train", "dev"):
        if getattr(task, key) and task.name != "custom":
            yield f"task.{key} = '{getattr(task, key)}': is for task.name=custom, not {task.name}"


def in_engine(engine: EngineSection, method: MethodSettings) -> Iterator[str]:
    """Yield a line for each contradiction, with the method too."""
    from fedpeft.methods import method_class

    if engine.kind == "ray" and engine.cohort > 1:
        yield f"engine.cohort = {engine.cohort}: only engine 'local' has cohorts"
    if engine.dtype == "float64" and engine.autocast != "off":
        yield f"engine.autocast = '{engine.autocast}': does nothing with dtype 'float64'"
    if engine.cohort > 1 and not method_class(method.name).grouped:
        yield (
            f"engine.cohort = {engine.cohort}: method '{method.name}' changes whole "
            f"weights, so it trains one client at a time; leave it at 1"
        )
