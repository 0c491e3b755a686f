"""Run the groups of long tests: ``python tests/groups.py all | changed | list [NAME ...]``.

See ``tests/groups.toml``.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from pathlib import Path
from xml.etree import ElementTree

from closure import ROOT, closure

from fedpeft.files import write_atomic

PASSED = ROOT / ".ci" / "passed.toml"
RESULTS = ROOT / "build" / "groups"
_FOLDERS = ("fedpeft", "clients", "server", "simulations", "deployment", "tests", "docs")
#: Folders with a module or package for each command.
COMMANDS = ("fedpeft/cli", "simulations/commands", "deployment/commands")
_VERSIONS = ("flwr", "torch", "transformers")
_HEADER = """\
# Written by `make test-all`: the groups of tests/groups.toml that passed, and digests of what they
# cover. Commit it: `.ci/run` runs the groups whose digest differs.
"""


@dataclass(frozen=True)
class Group:
    """A group of ``tests/groups.toml``."""

    name: str
    tests: Sequence[str]
    commands: Sequence[str] = ()
    files: Sequence[str] = ()
    processes: int = 1
    spread: str = "loadfile"
    always: Sequence[str] = ()

    @property
    def test_files(self) -> set[Path]:
        """The files of its tests."""
        paths = [ROOT / test for test in self.tests]
        inside = {file for path in paths for file in path.rglob("test_*.py")}
        return inside | {path for path in paths if path.is_file()}

    @property
    def covered(self) -> set[Path]:
        """The files whose change may change the result of its tests."""
        commands = {path for name in self.commands for path in _command(name)}
        named = matching(self.files)
        program = [ROOT / "fedpeft" / "cli" / "app.py"] if commands else []
        python = {path for path in named if path.suffix == ".py"}
        modules = closure(self.test_files | commands | python, program)
        return modules | (beside(modules) - matching(self.always)) | named


def _command(name: str) -> set[Path]:
    """Return the files of a command of fedpeft."""
    places = [ROOT / folder / name for folder in COMMANDS]
    files = {path for place in places for path in place.rglob("*.py")}
    files |= {path for path in (place.with_suffix(".py") for place in places) if path.exists()}
    assert files, name
    return files


def beside(modules: set[Path]) -> set[Path]:
    """Return the files that are no Python and belong to a folder with one of these modules.

    The folder is the nearest one above the file that has modules.
    """
    folders = {module.parent for module in modules}
    return {file for file in tracked() if file.suffix != ".py" and _home(file.parent) in folders}


@cache
def _home(folder: Path) -> Path | None:
    if folder == ROOT:
        return None
    return folder if any(folder.glob("*.py")) else _home(folder.parent)


@cache
def tracked() -> frozenset[Path]:
    """Return the files that git knows, without the record of what passed."""
    names = subprocess.check_output(["git", "ls-files", "-z"], cwd=ROOT, text=True).split("\0")
    paths = {ROOT / name for name in names if name}
    return frozenset(path for path in paths if path.is_file() and path != PASSED)


def matching(patterns: Iterable[str]) -> set[Path]:
    """Return the tracked files that match one of these patterns."""
    return {path for pattern in patterns for path in ROOT.glob(pattern)} & tracked()


@cache
def read_groups() -> dict[str, Group]:
    """Return the groups by name."""
    table = tomllib.loads((ROOT / "tests" / "groups.toml").read_text(encoding="utf-8"))
    always = table.pop("always")["files"]
    return {name: Group(name, always=always, **values) for name, values in table.items()}


@cache
def uncovered() -> frozenset[Path]:
    """Return the files that no test and no group covers; a change of them runs all groups."""
    groups = read_groups().values()
    every_test = closure(matching(["tests/**/test_*.py"]))  # `make test` runs those of no group
    covered = set().union(every_test, beside(every_test), *(group.covered for group in groups))
    return tracked() - covered - matching(next(iter(groups)).always)


def digest(group: Group) -> str:
    """Return the digest of what a group covers, of what no group covers, and of the versions."""
    total = hashlib.sha256()
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    versions = [f"{name} {version(name)}" for name in _VERSIONS]
    for line in (f"python {python}", *versions, *group.tests, group.spread, str(group.processes)):
        total.update(f"{line}\n".encode())
    for path in sorted((group.covered | uncovered() | {ROOT / "pyproject.toml"}) & tracked()):
        content = hashlib.sha256(path.read_bytes()).hexdigest()
        total.update(f"{path.relative_to(ROOT)} {content}\n".encode())
    return total.hexdigest()


def read_passed() -> dict[str, dict[str, str | int]]:
    """Return the record of what passed, by group."""
    return tomllib.loads(PASSED.read_text(encoding="utf-8")) if PASSED.exists() else {}


def write_passed(record: Mapping[str, Mapping[str, str | int]]) -> None:
    """Write the record of what passed."""
    lines = [_HEADER]
    for name in sorted(record):
        entries = (f"{key} = {value!r}".replace("'", '"') for key, value in record[name].items())
        lines.append("\n".join([f"[{name}]", *entries, ""]))
    write_atomic(PASSED, "\n".join(lines))


def run(group: Group) -> bool:
    """Run the long tests of a group; return whether they passed, and record its digest then.

    Those of `make gate` are left to it. With skipped tests the group is not recorded: what they
    need is missing here.
    """
    before, begun = digest(group), time.monotonic()
    results = RESULTS / f"{group.name}.xml"
    results.unlink(missing_ok=True)
    print(f"== {group.name}", flush=True)
    spread = ["-n", str(group.processes), "--dist", group.spread] if group.processes > 1 else []
    command = [sys.executable, "-m", "pytest", "-m", "long and not gate", "-rs", *spread]
    command += [f"--junitxml={results}", *sorted(map(str, group.test_files))]
    done = subprocess.run(command, cwd=ROOT)
    suite = ElementTree.parse(results).getroot()[0].attrib if results.exists() else {}
    tests, skipped = int(suite.get("tests", 0)), int(suite.get("skipped", 0))
    minutes = (time.monotonic() - begun) / 60
    print(f"== {group.name}: {tests} tests, {skipped} skipped, {minutes:.1f} minutes", flush=True)
    if done.returncode:
        return False
    if why := _unfit(group, before, skipped):
        print(f"== {group.name}: not recorded in {PASSED.relative_to(ROOT)}: {why}", flush=True)
    else:
        write_passed(read_passed() | {group.name: {"digest": before, "tests": tests}})
    return True


def _unfit(group: Group, before: str, skipped: int) -> str:
    """Return why a group that passed is not recorded; "" if it is."""
    listed = ["git", "ls-files", "--others", "--exclude-standard", *_FOLDERS]
    unknown = subprocess.check_output(listed, cwd=ROOT, text=True).split()
    if unknown:
        return f"git does not know {unknown[0]}, and a fresh clone would lack it"
    if digest(group) != before:
        return "files changed meanwhile"
    return "tests were skipped" if skipped else ""


def main(arguments: Sequence[str]) -> int:
    """Run or list groups; return the exit code."""
    groups = read_groups()
    what, *names = arguments or ["list"]
    unknown = [name for name in names if name not in groups]
    if what not in ("all", "changed", "list") or unknown:
        print(f"expected: all | changed | list [NAME ...]; groups: {', '.join(groups)}")
        return 2
    chosen = [groups[name] for name in names or groups]
    passed = read_passed()
    changed = {g.name for g in chosen if passed.get(g.name, {}).get("digest") != digest(g)}
    if what == "list":
        for group in chosen:
            state = "changed" if group.name in changed else "passed"
            print(f"{group.name:12} {state:8} covers {len(group.covered)} files")
        return 0
    RESULTS.mkdir(parents=True, exist_ok=True)
    failed = [g.name for g in chosen if (what == "all" or g.name in changed) and not run(g)]
    ran = len(chosen) if what == "all" else len(changed)
    print(f"== {ran} of {len(chosen)} groups ran; failed: {', '.join(failed) or 'none'}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
