"""Ray actors that come and go (extra ``ray``): those that live get work, at once.

Ray places an actor where a CPU, and a GPU if it needs one, is free. While there is no such place,
because a machine was lost, the actor waits, and nobody waits for it. A machine that comes later is
used.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import Any

from fedpeft.errors import RunFailed

log = logging.getLogger(__name__)
_START = 900.0  # seconds without any actor that works; a large backbone takes minutes to load
_OTHERS = 10.0  # seconds that the first actor waits for the others at the start
_ATTEMPTS = 3  # starts in a row that fail on machines that live


class Placed:
    """Base class of actors: tells where it is."""

    def ready(self) -> tuple[str, str]:
        """Return the address and the id of this actor's machine, once everything is loaded."""
        import ray

        context = ray.get_runtime_context()
        return ray.util.get_node_ip_address(), context.get_node_id()


class Actors:
    """Actors, of which at most ``count`` work at the same time.

    Args:
        make: starts an actor, whose class is a ``Placed``.
        count: how many to start.

    Raises:
        RunFailed: an actor cannot be made, or none has started in time.
    """

    def __init__(self, make: Callable[[], Any], count: int):
        self._make, self._count = make, count
        self._starting: dict[Any, Any] = {}  # actors by Ray's reference to the answer of ``ready``
        self._places: dict[Any, tuple[str, str]] = {}  # of those that work
        self._idle: list[Any] = []
        self._failures, self._since, self._begun = 0, time.monotonic(), False
        for _ in range(count):
            self._start()
        while not self._places:
            self.wait([], 1.0)
        begun = time.monotonic()
        while self._starting and time.monotonic() < begun + _OTHERS:
            self.wait([], 1.0)
        self._begun = True
        if self._starting:
            log.warning("%d of %d actors work", len(self._places), count)

    def take(self) -> Any | None:
        """Return an idle actor, which is now busy; None if there is none."""
        return self._idle.pop(0) if self._idle else None

    def give_back(self, actor: Any) -> None:
        """Note that an actor is idle again."""
        self._idle.append(actor)

    def wait(self, references: Sequence[Any], seconds: float) -> list[Any]:
        """Wait for a moment; return those of ``references`` that are done.

        Raises:
            RunFailed: see the class.
        """
        import ray

        awaited = [*references, *self._starting]
        if not awaited:
            return []
        done, _ = ray.wait(awaited, timeout=seconds)
        for reference in done:
            if reference in self._starting:
                self._started(reference)
        if not self._places and time.monotonic() > self._since + _START:
            raise RunFailed(f"no actor of Ray has worked for {_START:.0f} s; see 'ray status'")
        return [reference for reference in done if reference in references]

    def lose(self, actor: Any, error: Exception | None = None) -> str:
        """End an actor and start another; return the machine that was lost with it, or ""."""
        import ray

        address, machine = self._places.pop(actor)
        self._since = time.monotonic()
        ray.kill(actor)
        self._start()
        lost = error is not None and _is_lost(machine, error)
        if error is not None:
            why = f"its machine, {address}, is lost" if lost else type(error).__name__
            log.warning("an actor ended (%s): %d of %d work", why, len(self._places), self._count)
        return address if lost else ""

    def _start(self) -> None:
        actor = self._make()
        self._starting[actor.ready.remote()] = actor

    def _started(self, reference: Any) -> None:
        """Note that an actor works, or start another one."""
        import ray

        actor = self._starting.pop(reference)
        try:
            place = ray.get(reference)
        except ray.exceptions.RayError as error:
            self._failures += not _is_gone(error)
            if getattr(error, "actor_init_failed", False) or self._failures >= _ATTEMPTS:
                reason = str(error).strip().splitlines()[-1]
                raise RunFailed(f"an actor of Ray did not start: {reason}") from None
            self._start()
            return
        self._failures, self._places[actor] = 0, place
        self._idle.append(actor)
        if self._begun:
            log.warning("an actor has started: %d of %d work", len(self._places), self._count)


def _is_gone(error: Exception) -> bool:
    """Return whether an error says that an actor's machine is gone.

    Ray takes half a minute to be sure. Of a process that ended on a machine that lives, it knows
    within a second; until then an actor is "unavailable".
    """
    import ray

    words = ("node has died", "node was terminated")
    unavailable = isinstance(error, ray.exceptions.ActorUnavailableError)
    return unavailable or any(each in str(error) for each in words)


def _is_lost(machine: str, error: Exception) -> bool:
    """Return whether the machine with this id left the cluster."""
    import ray

    return _is_gone(error) or not any(
        node["NodeID"] == machine and node["Alive"] for node in ray.nodes()
    )
