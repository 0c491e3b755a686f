"""The bundle that carries a run to the server and to its nodes: settings, and no code.

Flower sends an app as a bundle (a zip file), installs it at every site and imports the app from
it. Ours holds one ``pyproject.toml`` that names the apps that are installed there; whatever else
a bundle holds would run with the rights of the site, so :func:`check_bundle` refuses it.
"""

from __future__ import annotations

import hashlib
import io
import json
import re
import tomllib
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedpeft.files import write_atomic
from fedpeft.version import __version__

MAX_BYTES = 1_000_000  # of a bundle, packed and unpacked
_PROJECT, _MANIFEST = "pyproject.toml", ".info/CONTENT"
_CONFIG = ("tool", "flwr", "app", "config")
_COMPONENTS = ("tool", "flwr", "app", "components")
_FIXED = {
    ("project", "name"): "fedpeft",
    ("tool", "flwr", "app", "publisher"): "fedpeft",
    (*_COMPONENTS, "serverapp"): "server.app:app",
    (*_COMPONENTS, "clientapp"): "clients.relay:app",
}
# The version becomes part of a path; the handshake tells of a version that does not fit.
_VERSION = re.compile(r"[0-9A-Za-z.+-]{1,32}")
_FREE = {("project", "version"), ("project", "description"), ("project", "license")}


class ForeignBundle(ValueError):
    """A bundle that is not one of ours; its text names what is foreign and may travel."""


def write_bundle(folder: Path, settings: Mapping[str, str | int]) -> None:
    """Write the ``pyproject.toml`` of a run into ``folder``, which must exist.

    ``settings`` becomes Flower's run config.

    Raises:
        ValueError: a setting's name is not letters, digits, ``-`` and ``_``, or what is written
            exceeds :data:`MAX_BYTES`.
    """
    for name in settings:
        if not re.fullmatch(r"[A-Za-z0-9_-]+", name):
            raise ValueError(f"{name!r} is no name of a setting")
    lines = [
        "[project]",
        f'name = "{_FIXED["project", "name"]}"',
        f'version = "{__version__}"',
        'description = "A run of fedpeft: settings only, the code is installed at each site"',
        'license = "Apache-2.0"',
        "[tool.flwr.app]",
        f'publisher = "{_FIXED["tool", "flwr", "app", "publisher"]}"',
        "[tool.flwr.app.components]",
        *(f'{path[-1]} = "{_FIXED[path]}"' for path in _FIXED if path[:-1] == _COMPONENTS),
        "[tool.flwr.app.config]",
        *(f"{name} = {_toml(value)}" for name, value in settings.items()),
    ]
    text = "\n".join(lines) + "\n"
    if len(text.encode()) > MAX_BYTES // 2:  # Flower writes it anew, and adds a manifest
        raise ValueError(f"the settings of the run exceed {MAX_BYTES // 2:,} bytes")
    write_atomic(folder / _PROJECT, text)


def check_bundle(data: bytes) -> None:
    """Check that a bundle, as Flower packs and sends it, is one that :func:`write_bundle` wrote.

    Its only files are ``pyproject.toml`` and Flower's manifest of it; the project is ours, names
    our two apps, and declares nothing else: no dependencies, no build, no further component.

    Raises:
        ForeignBundle: it is not; the text says what is foreign.
    """
    if len(data) > MAX_BYTES:
        raise ForeignBundle(f"the bundle exceeds {MAX_BYTES:,} bytes")
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as bundle:
            _check_entries(bundle.infolist())
            project, manifest = bundle.read(_PROJECT), bundle.read(_MANIFEST)
        values = _leaves(tomllib.loads(project.decode()))
    except ForeignBundle:
        raise
    # What a damaged or encrypted zip file, or a text that is not TOML, raises.
    except (zipfile.BadZipFile, zlib.error, OSError, RuntimeError, ValueError, EOFError):
        raise ForeignBundle("the bundle is damaged or none of Flower's") from None
    # Flower opens every path that the manifest names, wherever it leads.
    expected = f"{_PROJECT},{hashlib.sha256(project).hexdigest()},{len(project) * 8}"
    if manifest != expected.encode():
        raise ForeignBundle(f"the bundle's manifest does not describe its {_PROJECT} alone")
    _check_values(values)


def _check_entries(entries: list[zipfile.ZipInfo]) -> None:
    names = sorted(entry.filename for entry in entries)
    foreign = [name for name in names if name not in (_PROJECT, _MANIFEST)]
    if foreign:
        more = f" and {len(foreign) - 1} more" if len(foreign) > 1 else ""
        raise ForeignBundle(f"the bundle brings its own code: {_shown(foreign[0])}{more}")
    if names != [_MANIFEST, _PROJECT]:
        raise ForeignBundle(f"the bundle must hold one {_PROJECT} and one {_MANIFEST}")
    if sum(entry.file_size for entry in entries) > MAX_BYTES:
        raise ForeignBundle(f"the bundle exceeds {MAX_BYTES:,} bytes")
    if not {entry.compress_type for entry in entries} <= {zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED}:
        raise ForeignBundle("the bundle is packed as Flower packs none")


def _check_values(values: dict[tuple[str, ...], Any]) -> None:
    """Check the leaves of a ``pyproject.toml`` against ours."""
    for path, expected in _FIXED.items():
        found = values.get(path)
        if found != expected:
            named = "nothing" if found is None else _shown(repr(found))
            raise ForeignBundle(f"the bundle names {path[-1]} {named}, expected {expected!r}")
    for path, value in values.items():
        if path[:-1] == _CONFIG:
            fitting = isinstance(value, str | int | float)
        else:
            fitting = path in _FIXED or (path in _FREE and isinstance(value, str))
        if not fitting:
            raise ForeignBundle(f"the bundle declares {_shown('.'.join(path))}")
    if not _VERSION.fullmatch(values.get(("project", "version"), "")):
        raise ForeignBundle("the bundle's version is no version")


def _leaves(table: dict[str, Any], *above: str) -> dict[tuple[str, ...], Any]:
    """Return the values of a TOML document by the path of names that leads to them.

    An empty table is a value, too, so that none is overlooked.
    """
    leaves: dict[tuple[str, ...], Any] = {}
    for name, value in table.items():
        path = (*above, name)
        if isinstance(value, dict) and value:
            leaves |= _leaves(value, *path)
        elif value != {} or path != _CONFIG:
            leaves[path] = value
    return leaves


def _toml(value: str | int) -> str:
    # A JSON string or number is a TOML value of the same meaning, but for DEL.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _shown(text: str) -> str:
    """Return a text from outside as it may stand in a log: short and printable."""
    return "".join(c if c.isprintable() else "?" for c in text[:80])
