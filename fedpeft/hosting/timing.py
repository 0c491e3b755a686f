"""The waits of a server, its nodes and its operator; tests of real processes shorten them."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from fedpeft.errors import UserError
from fedpeft.files import PRIVATE, USERS_TEXT, write_together

FILE = "timing.json"  # in the state folder of a server or node
_LIMITS = ("stop", "stop_each", "connection", "beat", "quiet", "silent", "signature")


@dataclass(frozen=True)
class Timing:
    """Waits in seconds.

    Attributes:
        restarts: pauses before the first, second, ... restart of a process.
        health: between two health checks of a process that was ready.
        reconnects: pauses before a node's first, second, ... attempt to connect again.
        pulls: between two pulls of a node, if the server does not hold them.
        interim: until a node's SuperNode is told that its request is being processed.
        updates: between two updates of a followed run's files.
        questions: between two questions to Flower about a followed run; each is a process of 2 s.
        stop: limit for all processes of a server or node together to end.
        stop_each: the part of it that is reserved for each process that is stopped later.
        connection: limit for a node's request to get a connection to the server.
        beat: the same for a heartbeat, for which the SuperNode waits only 5 s.
        quiet: limit of silence of the server until a PING, and as long again until the end.
        silent: of a node's SuperNode, which asks for no work, until it counts as hanging, and as
            long again until it is restarted.
        signature: age after which a refused signature may only be too old: Flower signs again.
    """

    restarts: tuple[float, ...] = (1.0, 2.0, 5.0, 10.0, 30.0)
    health: float = 5.0
    reconnects: tuple[float, ...] = (0.5, 1.0, 2.0, 4.0, 8.0)
    pulls: float = 3.0
    interim: float = 10.0
    updates: float = 1.0
    questions: float = 20.0
    stop: float = 10.0
    stop_each: float = 1.0
    connection: float = 20.0
    beat: float = 4.0
    quiet: float = 15.0
    silent: float = 60.0
    signature: float = 5.0

    def scaled(self, factor: float) -> Timing:
        """Return this with all pauses multiplied by a factor.

        Limits stay: with shorter ones, a slow machine would exceed them.
        """
        changed: dict[str, Any] = {}
        for name, value in asdict(self).items():
            if isinstance(value, tuple):
                changed[name] = tuple(factor * each for each in value)
            elif name not in _LIMITS:
                changed[name] = factor * value
        return replace(self, **changed)

    @classmethod
    def read(cls, state: Path) -> Timing:
        """Return the timing of a state folder: the values in its file, and defaults for others.

        Raises:
            UserError: the file is damaged, or has an unknown key.
        """
        path = state / FILE
        try:
            values = json.loads(path.read_text(encoding=USERS_TEXT))
        except FileNotFoundError:
            return cls()
        except OSError as error:
            raise UserError(f"'{path}' cannot be read ({error.strerror})") from None
        except ValueError:
            values = None
        known = {field.name: field.default for field in fields(cls)}
        if not isinstance(values, dict):
            raise UserError(f"'{path}' is damaged: expected a JSON object; correct or remove it")
        given: dict[str, Any] = {}
        for name, value in values.items():
            if name not in known:
                raise UserError(f"'{path}': unknown key '{name}'; expected {', '.join(known)}")
            if not _fits(value, isinstance(known[name], tuple)):
                expected = "a list of seconds" if isinstance(known[name], tuple) else "seconds"
                expected += " above 0, at most a day"
                raise UserError(f"'{path}': '{name}' is {json.dumps(value)}; expected {expected}")
            given[name] = tuple(value) if isinstance(value, list) else value
        return cls(**given)

    def write(self, state: Path) -> None:
        """Write the timing into an existing state folder."""
        content = json.dumps(asdict(self), indent=2) + "\n"
        write_together({state / FILE: (content.encode(), PRIVATE)}, replace=True)


def _fits(value: Any, several: bool) -> bool:
    """Return whether a value of JSON is a number of seconds, or a list of ``several``."""
    if several:
        return isinstance(value, list) and bool(value) and all(_fits(each, False) for each in value)
    return type(value) in (int, float) and 0 < value <= 86_400
