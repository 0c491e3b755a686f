"""The bundle that carries a run to the server and its nodes: settings, and no code.

Flower sends an app as a bundle (a zip file), installs it at every site and imports the app from
it. A bundle of fedpeft holds one ``pyproject.toml``, which names the apps installed at the site.
Any other content would run with the rights of the site, so :func:`check_bundle` refuses it.
"""

from __future__ import annotations

import hashlib
import io
import json
import logging
import re
import zipfile
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from fedpeft.errors import printable
from fedpeft.experiment.toml import MAX_TEXT, loads
from fedpeft.files import write_atomic
from fedpeft.version import __version__

log = logging.getLogger(__name__)
PLAIN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")  # of runs and their files, not hidden
MAX_BYTES = 1_000_000  # of a bundle, packed and unpacked
_SHOWN = 80  # characters of a bundle's text in a message
_PROJECT, _MANIFEST = "pyproject.toml", ".info/CONTENT"
_CONFIG = ("tool", "flwr", "app", "config")
_COMPONENTS = ("tool", "flwr", "app", "components")
_FIXED = {
    ("project", "name"): "fedpeft",
    ("tool", "flwr", "app", "publisher"): "fedpeft",
    (*_COMPONENTS, "serverapp"): "server.app:app",
    (*_COMPONENTS, "clientapp"): "clients.relay:app",
}
# The version becomes part of a path; the handshake compares it.
_VERSION = re.compile(r"[0-9A-Za-z.+-]{1,32}")
_FREE = {("project", "version"), ("project", "description"), ("project", "license")}


class ForeignBundle(ValueError):
    """A bundle that fedpeft did not write; the text names the difference and may be sent."""


def write_bundle(folder: Path, settings: Mapping[str, str | int]) -> None:
    """Write the ``pyproject.toml`` of a run into ``folder``, which must exist.

    ``settings`` becomes Flower's run config.

    Raises:
        ValueError: the name of a setting has other characters than letters, digits, ``-`` and
            ``_``, or the file has more than 80 % of ``MAX_TEXT``.
    """
    for name in settings:
        if not re.fullmatch(r"[A-Za-z0-9_-]+", name):
            raise ValueError(f"{name!r} is not a valid name of a setting")
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
    longest = MAX_TEXT * 4 // 5  # Flower rewrites it, and adds a manifest
    if len(text.encode()) > longest:
        raise ValueError(f"the settings of the run exceed {longest:,} bytes")
    write_atomic(folder / _PROJECT, text)


def check_bundle(data: bytes) -> dict[str, Any]:
    """Check that a bundle packed by Flower holds what :func:`write_bundle` wrote; return settings.

    Its only files are ``pyproject.toml`` and Flower's manifest of it. The project is fedpeft's,
    names the two apps, and declares no dependencies, build or further component.

    Raises:
        ForeignBundle: it has any other content; the text names it.
    """
    if len(data) > MAX_BYTES:
        raise ForeignBundle(f"the bundle exceeds {MAX_BYTES:,} bytes")
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as bundle:
            _check_entries(bundle.infolist())
            project, manifest = bundle.read(_PROJECT), bundle.read(_MANIFEST)
        values = _leaves(loads(project.decode()))
    except ForeignBundle:
        raise
    # The errors of damaged or encrypted zip files, and of text that is not TOML.
    except (zipfile.BadZipFile, zlib.error, OSError, RuntimeError, ValueError, EOFError):
        raise ForeignBundle("the bundle is damaged, or was not packed by Flower") from None
    # Flower opens every path in the manifest, also outside of the bundle.
    expected = f"{_PROJECT},{hashlib.sha256(project).hexdigest()},{len(project) * 8}"
    if manifest != expected.encode():
        raise ForeignBundle(f"the bundle's manifest does not describe its {_PROJECT} alone")
    _check_values(values)
    return {path[-1]: value for path, value in values.items() if path[:-1] == _CONFIG}


def run_name(settings: Mapping[str, Any]) -> str:
    """Return the name that the operator gave a run; "" if it is not a plain name."""
    name = str(settings.get("out", ""))
    return name if PLAIN_NAME.fullmatch(name) else ""


def checked_install(
    install: Callable[..., Path],
    on_start: Callable[[], object],
    on_settings: Callable[[dict[str, Any]], object] = lambda settings: None,
) -> Callable[..., Path]:
    """Return Flower's ``install_from_fab`` preceded by :func:`check_bundle`.

    Args:
        install: Flower's function.
        on_start: called before the bundle is read.
        on_settings: called with the settings of a bundle that is installed.
    """

    def install_checked(bundle: bytes, **options: Any) -> Path:
        on_start()
        try:
            settings = check_bundle(bundle)
        except ForeignBundle as error:
            log.error("refused: %s", error)
            raise
        on_settings(settings)
        return install(bundle, **options)

    return install_checked


def _check_entries(entries: list[zipfile.ZipInfo]) -> None:
    names = sorted(entry.filename for entry in entries)
    foreign = [name for name in names if name not in (_PROJECT, _MANIFEST)]
    if foreign:
        more = f" and {len(foreign) - 1} more" if len(foreign) > 1 else ""
        raise ForeignBundle(
            f"the bundle brings its own code: {printable(foreign[0], _SHOWN)}{more}"
        )
    if names != [_MANIFEST, _PROJECT]:
        raise ForeignBundle(f"the bundle must hold one {_PROJECT} and one {_MANIFEST}")
    if sum(entry.file_size for entry in entries) > MAX_BYTES:
        raise ForeignBundle(f"the bundle exceeds {MAX_BYTES:,} bytes")
    if not {entry.compress_type for entry in entries} <= {zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED}:
        raise ForeignBundle("the bundle's compression is not one that Flower uses")


def _check_values(values: dict[tuple[str, ...], Any]) -> None:
    """Check the leaves of a ``pyproject.toml``."""
    for path, expected in _FIXED.items():
        value = values.get(path)
        if value != expected:
            named = "nothing" if value is None else printable(repr(value), _SHOWN)
            raise ForeignBundle(f"the bundle names {path[-1]} {named}, expected {expected!r}")
    for path, value in values.items():
        if path[:-1] == _CONFIG:
            allowed = isinstance(value, str | int | float)
        else:
            allowed = path in _FIXED or (path in _FREE and isinstance(value, str))
        if not allowed:
            raise ForeignBundle(f"the bundle declares {printable('.'.join(path), _SHOWN)}")
    if not _VERSION.fullmatch(values.get(("project", "version"), "")):
        raise ForeignBundle("the bundle's version is not valid")


def _leaves(table: dict[str, Any], *above: str) -> dict[tuple[str, ...], Any]:
    """Return the values of a TOML document by their paths of names.

    An empty table counts as a value, so that none is overlooked.
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
    # JSON strings and numbers are valid TOML with the same meaning, except for DEL.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
