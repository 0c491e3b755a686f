"""``fedpeft keys`` as an operator uses it, from the authority to the node."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from fedpeft.hosting.keys import CA_CERTIFICATE


def test_keys_of_a_server_and_a_node_are_made_in_sequence(fedpeft, tmp_path: Path) -> None:
    keys, site = tmp_path / "keys", tmp_path / "site"
    code, printed, errors = fedpeft("keys", "init", "--out", keys)
    assert (code, errors) == (0, "")
    secret, public, following = printed.splitlines()
    assert secret.startswith("secret") and secret.endswith(str(keys / "ca.key"))
    assert "for every node" in public and public.endswith(str(keys / "ca.crt"))
    assert following == f"next: fedpeft keys server HOST --out OTHER_FOLDER --ca-dir {keys}"

    code, printed, errors = fedpeft("keys", "server", "localhost", "10.0.0.5", "--out", keys)
    assert (code, errors) == (0, "")
    secret, public, following, then = printed.splitlines()
    assert secret.startswith("secret") and secret.endswith(str(keys / "server.key"))
    assert str(keys / "server.crt") in public and "keys node NAME" in then
    assert following == f"next: fedpeft server up --state DIR --keys {keys}"

    code, printed, errors = fedpeft("keys", "node", "site-a", "--out", site)
    assert (code, errors) == (0, "")
    secret, public, shown, following = printed.splitlines()
    assert secret.startswith("secret") and secret.endswith(str(site / "site-a"))
    listed = subprocess.run(
        ["ssh-keygen", "-l", "-f", site / "site-a.pub"], capture_output=True, text=True
    )
    assert listed.stdout.split()[1] == shown.split()[-1]
    assert public.endswith(str(site / "site-a.pub"))
    assert "add-node" in following and "site-a.pub" in following

    files = {path.name for folder in (keys, site) for path in folder.iterdir()}
    assert files == {"ca.key", "ca.crt", "server.key", "server.crt", "site-a", "site-a.pub"}


def test_output_of_keys_commands_holds_no_secret(fedpeft, tmp_path: Path) -> None:
    commands = [["init"], ["server", "localhost"], ["node", "a"]]
    printed = "".join(fedpeft("keys", *each, "--out", tmp_path)[1] for each in commands)
    for name in ("ca.key", "server.key", "a"):
        for line in (tmp_path / name).read_text().splitlines():
            assert line not in printed


def test_the_authority_can_be_in_another_folder(fedpeft, tmp_path: Path) -> None:
    fedpeft("keys", "init", "--out", tmp_path / "safe")
    arguments = ["keys", "server", "a.example", "--out", tmp_path / "server"]
    code, _, errors = fedpeft(*arguments)
    assert code == 2 and "--ca-dir" in errors and errors.count("\n") == 1
    code, _, _ = fedpeft(*arguments, "--ca-dir", tmp_path / "safe")
    assert code == 0
    assert (tmp_path / "server" / CA_CERTIFICATE).is_file()
    assert not (tmp_path / "server" / "ca.key").exists()


@pytest.mark.parametrize(
    ("command", "file"),
    [(["init"], "ca.key"), (["server", "localhost"], "server.key"), (["node", "a"], "a")],
)
def test_force_replaces_existing_keys(
    fedpeft, tmp_path: Path, command: list[str], file: str
) -> None:
    fedpeft("keys", "init", "--out", tmp_path)
    if command != ["init"]:
        fedpeft("keys", *command, "--out", tmp_path)
    before = (tmp_path / file).read_bytes()
    code, printed, errors = fedpeft("keys", *command, "--out", tmp_path)
    assert (code, printed) == (2, "")
    begin = f"error: '{tmp_path / file}' exists already; choose another --out, or --force to repl"
    assert errors.startswith(begin) and errors.count("\n") == 1
    assert (tmp_path / file).read_bytes() == before
    code, _, _ = fedpeft("keys", *command, "--out", tmp_path, "--force")
    assert code == 0 and (tmp_path / file).read_bytes() != before


def test_mistakes_end_with_code_2_and_one_line(fedpeft, tmp_path: Path) -> None:
    for command in (["node", "a b"], ["server"], ["server", "http://x"], ["node"], ["init", "x"]):
        code, printed, errors = fedpeft("keys", *command, "--out", tmp_path / "keys")
        assert (code, printed, errors.count("\n")) == (2, "", 1), command
    assert not (tmp_path / "keys").exists()
    (tmp_path / "file").touch()
    code, printed, errors = fedpeft("keys", "init", "--out", tmp_path / "file")
    expected = f"error: --out '{tmp_path / 'file'}': is a file; expected a folder\n"
    assert (code, printed, errors) == (2, "", expected)


def test_the_command_line_starts_without_cryptography() -> None:
    code = "import sys, fedpeft.cli.keys; print('cryptography' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
