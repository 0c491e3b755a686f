"""Options that the commands of ``fedpeft server`` share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

State = Annotated[Path, typer.Option("--state", help="Folder that the server keeps its state in.")]
