"""Write a page as one HTML text: styles, scripts and data are inside, and nothing is loaded."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedpeft.page.colours import COLOURS, variables

if TYPE_CHECKING:
    from jinja2 import Environment

ASSETS = Path(__file__).parent / "assets"
TABLES = ("page.js",)  # scripts of a page without data: tooltips, legends and sortable tables
_PARTS = ("text.js", "chart.js", "parts.js", "details.js")
_VIEWS = (
    "runs.js",
    "list.js",
    "study.js",
    "places.js",
    "start.js",
    "server.js",
    "node.js",
    "live.js",
)
VIEWS = (*TABLES, *_PARTS, *_VIEWS)


@cache
def environment(*folders: Path) -> Environment:
    """Return the templates of ``folders`` and of all pages; values are escaped."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    return Environment(
        loader=FileSystemLoader([*folders, ASSETS]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


@cache
def frame(scripts: Sequence[str]) -> Mapping[str, Any]:
    """Return the values that base.html needs: colors, scripts, and the page's policy."""
    script = "\n" + "\n".join((ASSETS / name).read_text(encoding="utf-8") for name in scripts)
    return {"colours": variables(), "script": script, "policy": policy(script)}


def policy(script: str) -> str:
    """Return the Content-Security-Policy of a page: it runs one script and loads nothing.

    ``connect-src`` lets a live page receive its updates; a file has no origin to connect to.
    """
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return (
        f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; "
        f"img-src data:; connect-src 'self'; base-uri 'none'; form-action 'none'"
    )


def page(data: Mapping[str, Any]) -> str:
    """Return the page that shows ``data`` as text of HTML.

    Args:
        data: JSON values, without NaN: ``view`` ("runs", "list", "study", "server" or "node"),
            ``title``, ``live`` (whether a server sends updates) and the entries of the view, see
            the scripts.
    """
    values = {**data, "colours": len(COLOURS)}
    return environment().get_template("view.html").render(data=values, **frame(VIEWS))


def live_policy() -> str:
    """Return the Content-Security-Policy of the pages of ``page`` for a header.

    ``frame-ancestors`` has no effect in a page itself.
    """
    return f"{frame(VIEWS)['policy']}; frame-ancestors 'none'"
