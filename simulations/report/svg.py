"""A figure's SVG made part of a page: no name twice, the page's colours, a text for each mark."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from xml.etree import ElementTree

_SVG, _XLINK = "http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"
_REFERENCE = re.compile(r"url\(#")
_SERIES = re.compile(r"series-(\d+)-")


def gid(series: int, count: int) -> str:
    """Return the id by which ``inline`` knows that a part of a figure belongs to a series."""
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
        text: what matplotlib wrote.
        name: of the figure; every id in it gets this prefix.
        title: what the figure shows, for those who do not see it.
        colours: colour -> variable of the page that takes its place.
        tips: id of a series' part -> a text for each of its marks, in the order drawn.
    """
    root = ElementTree.fromstring(text)
    for metadata in root.findall(f"{{{_SVG}}}metadata"):
        root.remove(metadata)
    for element in root.iter():
        own = element.get("id", "")
        if match := _SERIES.match(own):
            element.set("data-series", match[1])
        if own in tips:
            marks = list(element.iter(f"{{{_SVG}}}use"))
            for mark, tip in zip(marks, tips[own], strict=True):
                mark.set("data-tip", tip)
    for element in root.iter():
        _rename(element, name)
        if style := element.get("style"):
            for colour, variable in colours.items():
                style = style.replace(colour, f"var({variable})")
            element.set("style", style)
    for size in ("width", "height"):  # the page decides; the viewBox keeps the shape
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
            element.set(key, _REFERENCE.sub(f"url(#{prefix}-", value))
