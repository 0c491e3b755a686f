"""Groups of long tests: each runs when something that it covers has changed."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from closure import ROOT, closure
from groups import COMMANDS, matching, read_groups

PYPROJECT = """
[tool.pytest.ini_options]
markers = ["long: in a group"]
"""
GROUPS = """
[first]
tests = ["tests/test_first.py"]
commands = ["run"]
[second]
tests = ["tests/second"]
files = ["data/*.txt"]
[always]
files = ["*.md"]
"""
LONG = "import pytest\npytestmark = pytest.mark.long\n"
FILES = {
    ".ci/run": "",
    ".gitignore": "build/\n.pytest_cache/\n__pycache__/\n",
    "pyproject.toml": PYPROJECT,
    "README.md": "",
    "data/rows.txt": "",
    "setup.cfg": "",
    "fedpeft/__init__.py": "",
    "fedpeft/page.html": "",
    "fedpeft/inner/__init__.py": "def later():\n    import fedpeft.lazy\n",
    "fedpeft/inner/used.py": "START = '-m', 'fedpeft.started', 'import fedpeft.program'\n",
    "fedpeft/program.py": "",
    "fedpeft/lazy.py": "",
    "fedpeft/started/__init__.py": "",
    "fedpeft/started/__main__.py": "",
    "fedpeft/quick.py": "",
    "fedpeft/cli/__init__.py": "",
    "fedpeft/cli/app.py": "from fedpeft.cli import other\n",
    "fedpeft/cli/other.py": "def other():\n    import fedpeft.lazy\n",
    "deployment/commands/run.py": "def run():\n    from fedpeft.inner import used\n",
    "tests/groups.toml": GROUPS,
    "tests/test_first.py": f"{LONG}def test_first():\n    assert True\n",
    "tests/second/conftest.py": "",
    "tests/second/test_second.py": f"{LONG}def test_second():\n    assert True\n",
    "tests/test_quick.py": "import fedpeft.lazy, fedpeft.quick\nimport closure, groups, imports\n",
}


class Tree:
    """A small repository with two groups."""

    def __init__(self, root: Path):
        self.root = root
        for name, text in FILES.items():
            self.write(name, text)
        for name in ("closure.py", "groups.py", "imports.py"):
            shutil.copy(ROOT / "tests" / name, root / "tests" / name)
        self.git("init", "-q")

    def git(self, *arguments: str) -> None:
        subprocess.run(["git", *arguments], cwd=self.root, check=True)

    def write(self, name: str, text: str) -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def call(self, *arguments: str, code: int = 0, add: bool = True) -> str:
        """Call the script, with every file added; return its output."""
        if add:
            self.git("add", "-A")
        line = [sys.executable, "tests/groups.py", *arguments]
        done = subprocess.run(line, cwd=self.root, capture_output=True, text=True)
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout

    def changed(self) -> set[str]:
        """Return the groups that `.ci/run` would run."""
        lines = [line.split() for line in self.call("list").splitlines()]
        return {name for name, state, *_ in lines if state == "changed"}


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


def test_a_group_runs_until_it_has_passed_and_again_when_a_file_it_covers_changes(
    tree: Tree,
) -> None:
    assert tree.changed() == {"first", "second"}
    assert "2 of 2 groups ran; failed: none" in tree.call("changed")
    assert tree.changed() == set()
    assert "0 of 2 groups ran" in tree.call("changed")
    for name, groups in {
        "README.md": set(),
        "fedpeft/quick.py": set(),  # `make test` covers it
        "fedpeft/lazy.py": set(),  # of a function in a package around a module, and of a command
        "fedpeft/cli/other.py": {"first"},  # imported with the command line
        "fedpeft/inner/used.py": {"first"},
        "fedpeft/started/__main__.py": {"first"},  # named by a string
        "fedpeft/program.py": {"first"},  # in the text of a program
        "fedpeft/page.html": {"first"},
        "tests/second/conftest.py": {"second"},
        "data/rows.txt": {"second"},
        "setup.cfg": {"first", "second"},  # covered by nothing
        "pyproject.toml": {"first", "second"},
    }.items():
        before = (tree.root / name).read_text()
        tree.write(name, f"{before}\n# changed\n")
        assert tree.changed() == groups, name
        tree.write(name, before)
    tree.write("new.cfg", "")
    assert tree.changed() == {"first", "second"}
    tree.write("fedpeft/added.py", "")
    assert "git does not know fedpeft/added.py" in tree.call("all", add=False)
    assert tree.changed() == {"first", "second"}


def test_what_fails_or_is_skipped_is_not_recorded(tree: Tree) -> None:
    tree.write("tests/test_first.py", f"{LONG}def test_first():\n    assert False\n")
    tree.write("tests/second/test_second.py", f"{LONG}def test_second():\n    pytest.skip('GPU')\n")
    printed = tree.call("all", code=1)
    assert "failed: first" in printed and "second: not recorded" in printed
    assert tree.changed() == {"first", "second"}
    assert "expected" in tree.call("all", "third", code=2)


def test_groups_name_what_there_is_and_share_no_file() -> None:
    """That each long test is in a group is checked where tests are collected."""
    groups = read_groups().values()
    listed = [file for group in groups for file in group.test_files]
    assert len(listed) == len(set(listed))
    for group in groups:
        assert all((ROOT / path).exists() for path in group.tests), group.name
        for pattern in group.files:
            assert matching([pattern]), pattern
    tutorials = read_groups()["tutorials"]
    pages = [path.read_text() for path in matching(tutorials.files)]
    words = {word for page in pages for word in re.findall(r"^ *fedpeft ([a-z]+)", page, re.M)}
    run = words & {path.stem for folder in COMMANDS for path in (ROOT / folder).iterdir()}
    assert len(run) > 9 and run <= set(tutorials.commands)


def test_each_module_of_the_package_is_covered() -> None:
    groups = read_groups().values()
    every = closure(matching(["tests/**/test_*.py"])).union(*(group.covered for group in groups))
    folders = ("fedpeft", "clients", "server", "simulations", "deployment")
    ours = matching([f"{folder}/**/*.py" for folder in folders])
    assert ours and ours - every == set()
