"""The commands of a documentation page, run one after another as a reader would."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PATIENCE = 480.0  # seconds for a command in the background to get ready
_BLOCK = re.compile(
    r"(?:^<!-- test: (?P<marker>[^\n]+?) -->\n)?"
    r"^```(?P<language>\w+)(?: title=\"(?P<title>[^\"\n]+)\")?\n"
    r"(?P<text>.*?)^```$",
    re.M | re.S,
)


@dataclass(frozen=True)
class Block:
    """A fenced block of a page.

    A block with a title is a file. The comment ``<!-- test: MARKER -->`` before a block is for
    tests: ``skip``; ``add OPTIONS`` appends options to its fedpeft command, to make it fast;
    ``background until "TEXT"`` leaves it running once it has printed the text.
    """

    language: str
    text: str
    title: str = ""
    marker: str = ""


def blocks(page: Path) -> list[Block]:
    """Return the fenced blocks of a page in order."""
    found = _BLOCK.finditer(page.read_text("utf-8"))
    return [
        Block(match["language"], match["text"], match["title"] or "", match["marker"] or "")
        for match in found
    ]


@dataclass
class Reader:
    """Somebody who types a page's commands in an empty folder."""

    folder: Path
    outputs: list[str] = field(default_factory=list)

    def read(self, page: Path) -> None:
        """Do what a page says, from top to bottom."""
        with ExitStack() as running:
            for block in blocks(page):
                self._do(block, running)

    def _do(self, block: Block, running: ExitStack) -> None:
        if block.marker == "skip":
            return
        if block.title:
            (self.folder / block.title).write_text(block.text, encoding="utf-8")
        elif block.marker.startswith("background until"):
            running.enter_context(self._background(block, block.marker.split('"')[1]))
        elif block.language == "sh":
            self._run(["bash", "-euo", "pipefail", "-c", _command(block)])
        elif block.language == "python":
            self._run([sys.executable, "-c", block.text])

    def _run(self, command: list[str]) -> None:
        done = subprocess.run(
            command,
            cwd=self.folder,
            env=_environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=900,
        )
        self.outputs.append(done.stdout)
        assert done.returncode == 0, f"{command[-1]}\nexit code {done.returncode}\n{done.stdout}"

    @contextmanager
    def _background(self, block: Block, ready: str) -> Iterator[None]:
        path = self.folder / f"background-{len(self.outputs)}.txt"
        with path.open("w") as output:
            process = subprocess.Popen(
                ["bash", "-c", f"exec {block.text}"],
                cwd=self.folder,
                env=_environment(),
                stdout=output,
                stderr=subprocess.STDOUT,
                # A shell starts what runs in its background with SIGINT ignored, and bash keeps it.
                preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
            )
        try:
            end = time.monotonic() + PATIENCE
            while ready not in path.read_text():
                ended = process.poll() is not None or time.monotonic() > end
                assert not ended, f"{block.text}\nnever printed '{ready}':\n{path.read_text()}"
                time.sleep(0.2)
            self.outputs.append(path.read_text())
            yield
        finally:
            process.send_signal(signal.SIGINT)
            assert process.wait(180) == 0, path.read_text()


def _command(block: Block) -> str:
    options = block.marker.removeprefix("add ") if block.marker.startswith("add ") else ""
    return f"{block.text.rstrip()} {options}"


def _environment() -> dict[str, str]:
    """Return the environment of an activated installation of this checkout, offline."""
    programs = [str(Path(sys.executable).parent), os.environ["PATH"]]
    return {
        **os.environ,
        "PATH": os.pathsep.join(programs),
        "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])),
        "HF_HUB_OFFLINE": "1",
    }
