"""Open a page in the user's browser, if there is a screen to show it on."""

from __future__ import annotations

import os
import sys
import webbrowser


def open_page(address: str) -> bool:
    """Open a page in a browser with a window; return whether there is one.

    Without a screen, ``webbrowser`` would start a text browser in this terminal.
    """
    screen = sys.platform == "darwin" or any(
        os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY")
    )
    return screen and webbrowser.open(address)
