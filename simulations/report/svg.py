"""Prepare a figure's SVG for a page: unique ids, CSS colors, and tooltips."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from xml.etree import ElementTree

_SVG, _XLINK = "http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"
_SERIES = re.compile(r"series-(\d+)-")


def gid(series: int, count: int) -> str:
    """Return the id that marks a part of a figure as part of a series, for ``inline``."""
    return f"series-{series}-{count}"


def inline(
    text: str,
    name: str,
    title: str,
    colours: Mapping[str, str],
    tips: Mapping[str, Sequence[str]],
) -> str:
    """Return a figure's SVG for a page.

    Args:
        text: SVG written by matplotlib.
        name: name of the figure, and prefix of all its ids.
        title: description for screen readers.
        colours: color -> CSS variable that replaces it.
        tips: id of a part -> tooltip of each of its marks, in drawing order.
    """
    root = ElementTree.fromstring(text)
    for metadata in root.findall(f"{{{_SVG}}}metadata"):
        root.remove(metadata)
    for element in root.iter():
        part = element.get("id", "")
        if match := _SERIES.match(part):
            element.set("data-series", match[1])
        if part in tips:
            marks = list(element.iter(f"{{{_SVG}}}use"))
            for mark, tip in zip(marks, tips[part], strict=True):
                mark.set("data-tip", tip)
    for element in root.iter():
        _rename(element, name)
        if style := element.get("style"):
            for colour, variable in colours.items():
                style = style.replace(colour, f"var({variable})")
            element.set("style", style)
    for size in ("width", "height"):  # the page sets the size; the viewBox keeps the aspect ratio
        root.attrib.pop(size, None)
    root.set("role", "img")
    root.set("aria-label", title)
    ElementTree.register_namespace("", _SVG)
    ElementTree.register_namespace("xlink", _XLINK)
    return ElementTree.tostring(root, encoding="unicode")


def _rename(element: ElementTree.Element, prefix: str) -> None:
    for key, value in list(element.attrib.items()):
        if key == "id":
            element.set(key, f"{prefix}-{value}")
        elif key in ("href", f"{{{_XLINK}}}href") and value.startswith("#"):
            element.set(key, f"#{prefix}-{value[1:]}")
        elif "url(#" in value:
            element.set(key, value.replace("url(#", f"url(#{prefix}-"))
