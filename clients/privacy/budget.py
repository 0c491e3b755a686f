"""The privacy that a node has left, for its page.

The accountant takes seconds, so it runs in a thread whenever the ledger has changed.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from typing import Any

from clients.folder import NodeFolder, NodeSettings
from fedpeft.errors import UserError
from fedpeft.privacy.accounting import Mechanism, spent
from fedpeft.privacy.ledger_store import Charge, Contents, LedgerDamaged, read_ledger
from fedpeft.privacy.plan import default_delta

_MOST = 10_000  # largest number of further rounds that is computed

Signature = tuple[int, int, int]


class Budget:
    """The privacy spent and left at a node, computed in the background.

    Args:
        folder: of the node.
    """

    def __init__(self, folder: NodeFolder):
        self._folder = folder
        self._known: object = ()  # the ledger's signature and the settings
        self._computed: tuple[list[dict[str, Any]] | None, str] = None, ""
        self._running = threading.Lock()

    def latest(self, settings: NodeSettings) -> tuple[list[dict[str, Any]] | None, str]:
        """Return the units, see ``describe_units``, and a problem with the ledger, or "".

        The units are None before the first result; later, the last result is returned while a new
        one is computed.
        """
        known = self._signature(), settings
        if known != self._known and self._running.acquire(blocking=False):
            self._known = known
            threading.Thread(target=self._compute, args=(settings,), daemon=True).start()
        return self._computed

    def _signature(self) -> Signature | None:
        try:
            status = self._folder.ledger.stat()
        except OSError:
            return None
        return status.st_ino, status.st_mtime_ns, status.st_size

    def _compute(self, settings: NodeSettings) -> None:
        path, result = self._folder.ledger, self._computed
        try:
            result = describe_units(read_ledger(path) if path.exists() else None, settings), ""
        except LedgerDamaged as error:
            result = [], str(error)
        except UserError as error:  # perhaps a charge is being written: the next read tries again
            self._known = ()
            result = self._computed[0], str(error)
        finally:
            self._computed = result  # replaced as a whole: others read it meanwhile
            self._running.release()


def describe_units(contents: Contents | None, settings: NodeSettings) -> list[dict[str, Any]]:
    """Return the privacy of each unit that was charged or has a limit.

    ``{"unit", "spent", "delta", "guessed", "limit", "last", "next", "fits", "capped"}``: ``spent``
    is the epsilon of all charges at ``delta``, None without a bound. ``limit`` is the owner's, or
    None. ``last`` is ``{"run", "round"}`` of the last charge. ``next`` is the epsilon after another
    charge of the same mechanism, and ``fits`` the number of such charges that the limit allows;
    both are None if unknown. ``capped`` is true if ``fits`` is only a lower bound. ``guessed`` is
    true if the delta of the limit depends on the number of rows, which is unknown here; ``delta``
    is then the smallest one in the ledger.

    Args:
        contents: the ledger; None if nothing was ever charged.
        settings: the node's.
    """
    charges: Sequence[Charge] = contents.charges if contents else ()
    units = [unit for unit in ("example", "client") if any(c.unit == unit for c in charges)]
    if settings.max_epsilon is not None and "example" not in units:
        units.insert(0, "example")
    return [
        _described(unit, [charge for charge in charges if charge.unit == unit], settings)
        for unit in units
    ]


def _described(unit: str, charges: Sequence[Charge], settings: NodeSettings) -> dict[str, Any]:
    limit = settings.max_epsilon if unit == "example" else None
    delta, guessed = _delta(charges, settings if limit is not None else None)
    mechanisms = [charge.mechanism for charge in charges]
    epsilon = _epsilon(mechanisms, delta)
    described: dict[str, Any] = {
        **{"unit": unit, "spent": epsilon, "delta": delta, "guessed": guessed, "limit": limit},
        **{"last": None, "next": None, "fits": None, "capped": False},
    }
    ran = [charge for charge in charges if charge.mechanism.steps > 0]
    if not ran or epsilon is None:
        return described
    last = ran[-1]
    following = _epsilon([*mechanisms, last.mechanism], delta)
    described |= {"last": {"run": last.run, "round": last.round}, "next": following}
    if limit is not None and following is not None:
        fits = _fitting(mechanisms, last.mechanism, delta, limit)
        described |= {"fits": fits, "capped": fits >= _MOST}
    return described


def _delta(charges: Sequence[Charge], limited: NodeSettings | None) -> tuple[float, bool]:
    """Return the delta of a unit, and whether it stands in for an unknown one of the limit."""
    smallest = min((charge.delta for charge in charges), default=1e-5)
    if limited is None:
        return smallest, False
    if limited.delta is not None:
        return limited.delta, False
    if isinstance(limited.examples, int):
        return default_delta(limited.examples), False
    return smallest, True


def _fitting(before: Sequence[Mechanism], mechanism: Mechanism, delta: float, limit: float) -> int:
    """Return how many more times a mechanism may run, at most ``_MOST``; by bisection."""

    def fits(count: int) -> bool:
        more = Mechanism(
            mechanism.noise_multiplier,
            mechanism.sampling_rate,
            mechanism.steps * count,
            mechanism.noise,
        )
        return spent([*before, more], delta).epsilon <= limit

    low, high = 0, 1
    while high < _MOST and fits(high):
        low, high = high, min(2 * high, _MOST)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return high if high == _MOST and fits(_MOST) else low


def _epsilon(mechanisms: Sequence[Mechanism], delta: float) -> float | None:
    epsilon = spent(mechanisms, delta).epsilon
    return epsilon if math.isfinite(epsilon) else None
