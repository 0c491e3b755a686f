"""A page holds everything it needs, and its data cannot become HTML."""

from __future__ import annotations

import base64
import hashlib
import json
import re

from fedpeft.page.render import live_policy, page

EVIL = "</script><script>alert(1)</script><!-- <b> & \u2028"


def parts(text: str) -> tuple[str, str]:
    """Return the data and the script of a page."""
    found = re.findall(r"<script[^>]*>(.*?)</script>", text, re.DOTALL)
    assert len(found) == 2
    return found[0], found[1]


def test_data_comes_back_as_it_was_and_stays_text() -> None:
    data = {"view": "runs", "title": EVIL, "live": False, "runs": [{"name": EVIL}]}
    text = page(data)
    read = json.loads(parts(text)[0])
    assert {key: read[key] for key in data} == data
    assert "alert(1)</script>" not in text and "&lt;/script&gt;" in text  # the title


def test_the_policy_allows_exactly_the_script_of_the_page() -> None:
    text = page({"view": "list", "title": "", "live": True})
    digest = base64.b64encode(hashlib.sha256(parts(text)[1].encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in text and f"'sha256-{digest}'" in live_policy()
    assert "default-src 'none'" in text and "unsafe-eval" not in text


def test_the_page_loads_nothing() -> None:
    text = page({"view": "list", "title": "", "live": True})
    addresses = {*re.findall(r"https?://[^\s\"'`)]+", text)}
    assert addresses == {"http://www.w3.org/2000/svg"}  # the name of a namespace
    assert "@import" not in text and not re.findall(r"url\(", text)
    assert "innerHTML" not in text and "insertAdjacentHTML" not in text
