"""Fill in the generated parts of the documentation.

A page marks a generated part by the comments ``<!-- generated: NAME -->`` and ``<!-- end -->``. The
function NAME of ``docs/parts`` makes it from the code, from a small run, or from committed results.

``python docs/generate.py --update`` fills them in, in place: people also read the pages in the
repository. ``python docs/generate.py build/docs`` copies docs/ and the pictures of results for the
site, with the parts filled in whose tables are committed elsewhere.
"""

from __future__ import annotations

import argparse
import re
import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "docs"
sys.path[:0] = [str(ROOT), str(SOURCE)]

from parts import (  # noqa: E402  (the path is set above)
    api,
    families,
    fleet,
    heads,
    malicious,
    open_rows,
    reference,
    results,
    small_messages,
    strangers,
    texts,
    turns,
)

PARTS: dict[str, Callable[..., str]] = {
    **api.PARTS,
    **families.PARTS,
    **fleet.PARTS,
    **heads.PARTS,
    **malicious.PARTS,
    **open_rows.PARTS,
    **reference.PARTS,
    **results.PARTS,
    **small_messages.PARTS,
    **strangers.PARTS,
    **texts.PARTS,
    **turns.PARTS,
}
PICTURE = Path("images") / "score-against-bytes.svg"
_PART = re.compile(r"(<!-- generated: (\w+)(?: (\S+))? -->\n).*?(<!-- end -->)", re.S)
#: Pages of tables that are committed elsewhere, in simulations/benchmarks/results.
ELSEWHERE = [
    SOURCE / "results" / f"{name}.md" for name in ("benchmarks", "bits", "methods", "privacy")
]
#: Pages whose generated parts are committed: all others.
COMMITTED = [
    page
    for page in sorted(SOURCE.rglob("*.md"))
    if page not in ELSEWHERE and _PART.search(page.read_text("utf-8"))
]
_COPIED = (".css", ".png", ".svg")


def fill(text: str) -> str:
    """Replace the generated parts of a page.

    Raises:
        KeyError: no function has the part's name.
    """

    def filled(match: re.Match[str]) -> str:
        part = PARTS[match[2]](*filter(None, [match[3]]))
        return f"{match[1]}\n{part}\n\n{match[4]}"

    return _PART.sub(filled, text)


def generate(target: Path) -> None:
    """Copy all pages, style sheets and images to ``target``, which is replaced."""
    shutil.rmtree(target, ignore_errors=True)
    for path in sorted(SOURCE.rglob("*")):
        copy = target / path.relative_to(SOURCE)
        if path in ELSEWHERE:
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_text(fill(path.read_text("utf-8")), encoding="utf-8")
        elif path.suffix in (".md", *_COPIED):
            _copy(path, copy)
    studies = ROOT / "simulations" / "studies" / "results"
    for figure in studies.glob("*/figures/*.svg"):
        _copy(figure, target / "results" / "figures" / figure.parts[-3] / figure.name)
    for figure in results.BENCHMARKS.glob("*.svg"):
        _copy(figure, target / "results" / "figures" / "benchmarks" / figure.name)


def _copy(path: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(path, target)


def update() -> None:
    """Fill in the parts that are committed, in place."""
    for page in COMMITTED:
        page.write_text(fill(page.read_text("utf-8")), encoding="utf-8")
    results.picture(SOURCE / PICTURE)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line.

    Raises:
        SystemExit: --help, or invalid arguments (exit code 2).
    """
    parser = argparse.ArgumentParser(
        description="Fill in the generated parts of the documentation.",
        epilog="Example: python docs/generate.py build/docs",
    )
    parser.add_argument(
        "folder",
        nargs="?",
        type=Path,
        metavar="FOLDER",
        help="copy all pages and pictures there, for the site; the folder is replaced",
    )
    parser.add_argument(
        "--update", action="store_true", help="fill in the committed parts and the picture in place"
    )
    options = parser.parse_args(arguments)
    if (options.folder is None) != options.update:
        parser.error("expected either FOLDER or --update")
    if options.update:
        update()
        return
    folder = options.folder.resolve()
    if SOURCE.is_relative_to(folder) or folder.is_relative_to(SOURCE):
        parser.error(
            f"FOLDER '{options.folder}' is replaced, so it cannot be in or above {SOURCE}; "
            f"choose another, such as build/docs"
        )
    generate(folder)


if __name__ == "__main__":
    main()
