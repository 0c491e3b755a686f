"""Finding the connection to a server, and the errors for wrong names and files."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedpeft.errors import UserError
from server.remote.connection import Connection, find_connection

TOKEN = "0123456789abcdef-secret"


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """A server's state folder with a connection in it."""
    folder = tmp_path / "state"
    folder.mkdir()
    (folder / "ca.crt").write_text("a certificate")
    connection = Connection("127.0.0.1:9093", Path("ca.crt"), "127.0.0.1:9094", TOKEN)
    (folder / "connection.toml").write_text(connection.to_toml())
    return folder


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of named servers, empty."""
    monkeypatch.setenv("FEDPEFT_HOME", str(tmp_path / "home"))
    servers = tmp_path / "home" / "servers"
    servers.mkdir(parents=True)
    return servers


def test_a_server_is_named_by_folder_file_or_name(state: Path, home: Path) -> None:
    expected = Connection("127.0.0.1:9093", state / "ca.crt", "127.0.0.1:9094", TOKEN)
    assert find_connection(str(state)) == expected
    assert find_connection(str(state / "connection.toml")) == expected
    (home / "hospital.toml").write_text(
        (state / "connection.toml").read_text().replace("ca.crt", str(state / "ca.crt"))
    )
    assert find_connection("hospital") == expected


def test_relative_certificate_is_relative_to_a_copied_file(state: Path, tmp_path: Path) -> None:
    copied = state.rename(tmp_path / "laptop")
    assert find_connection(str(copied)).ca == copied / "ca.crt"


def test_an_unknown_name_lists_those_known(home: Path) -> None:
    with pytest.raises(UserError, match=r"no server of that name \(none is known in '.*home"):
        find_connection("hospital")
    for name in ("hospital", "trial"):
        (home / f"{name}.toml").write_text("")
    with pytest.raises(UserError, match=r"known: hospital, trial\).*did you mean 'hospital'"):
        find_connection("hospitl")


def test_a_folder_without_a_connection_does_not_hide_a_named_server(
    state: Path, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "hospital").mkdir()
    (home / "hospital.toml").write_text((state / "connection.toml").read_text())
    (home / "ca.crt").write_text("a certificate")
    monkeypatch.chdir(tmp_path)
    assert find_connection("hospital").ca == home / "ca.crt"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('control = "127.0.0.1:9093"\n', "", "control: expected control, ca, operations, token"),
        ('"127.0.0.1:9093"', "9093", "control: expected control, ca"),
        ("127.0.0.1:9093", "127.0.0.1", "control = '127.0.0.1': expected HOST:PORT"),
        ("127.0.0.1:9094", "127.0.0.1:99999", "operations = '127.0.0.1:99999': expected HOST:PORT"),
        ("127.0.0.1:9094", "http://127.0.0.1:9094", "expected HOST:PORT"),
        ("ca.crt", "missing.crt", "no certificate '.*missing.crt'; copy the server's"),
        ("control", "unknown = 1\ncontrol", "unknown: expected control"),
        ("control =", "control", "not a TOML file; copy the server's again"),
    ],
)
def test_error_of_a_damaged_file_is_one_line_without_the_token(
    state: Path, old: str, new: str, message: str
) -> None:
    file = state / "connection.toml"
    file.write_text(file.read_text().replace(old, new, 1))
    with pytest.raises(UserError, match=message) as caught:
        find_connection(str(state))
    assert TOKEN not in str(caught.value) and "\n" not in str(caught.value)


def test_a_byte_order_mark_at_the_start_of_a_file_is_skipped(state: Path) -> None:
    file, plain = state / "connection.toml", find_connection(str(state))
    file.write_text("\ufeff" + file.read_text())
    assert find_connection(str(state)) == plain


def test_any_path_of_the_certificate_can_be_written_and_read(state: Path) -> None:
    odd = state / 'a "quoted" \\ näme.crt'
    odd.write_text("a certificate")
    connection = Connection("[::1]:9093", odd, "localhost:9094", TOKEN)
    (state / "connection.toml").write_text(connection.to_toml(), encoding="utf-8")
    assert find_connection(str(state)) == connection


def test_repr_hides_the_token() -> None:
    connection = Connection("127.0.0.1:1", Path("ca.crt"), "127.0.0.1:2", TOKEN)
    assert TOKEN not in f"{connection} {connection!r}"
