"""`fedpeft watch` in a process of its own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

_MAIN = "import sys; from fedpeft.cli.app import main; main(sys.argv[1:])"


@dataclass(frozen=True)
class Watch:
    """A running page: its address, which ends with a slash or a token, and its process."""

    address: str
    process: subprocess.Popen[str]

    def seconds(self) -> float:
        """Return the processor time that the server has used."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextmanager
def watching(*arguments: str | Path) -> Iterator[Watch]:
    """Run `fedpeft watch` at a free port while the context is open."""
    command = [sys.executable, "-c", _MAIN, "watch", "--port", "0", *map(str, arguments)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout
            line = process.stdout.readline()
            found = re.search(r"http://\S+", line)
            assert found, line
            yield Watch(found[0], process)
        finally:
            process.terminate()
