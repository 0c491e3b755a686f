"""Units and containers, as far as they can be checked without starting them.

That their commands exist with these options, that the units are closed, that the images hold what
they name. What was really started, and how, is in docs/how-to/server-install.md.
"""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import click
import pytest
import typer
import yaml

from fedpeft.cli.app import command_line

ROOT = Path(__file__).parents[3]
UNITS = ("deployment/server/fedpeft-server.service", "deployment/node/fedpeft-node@.service")
DOCKERFILES = ("deployment/server/Dockerfile", "deployment/node/Dockerfile")
STOP = 15  # seconds that the supervisor takes at most
CLOSED = """
LockPersonality NoNewPrivileges PrivateDevices PrivateIPC PrivateTmp PrivateUsers ProtectClock
ProtectControlGroups ProtectHome ProtectHostname ProtectKernelLogs ProtectKernelModules
ProtectKernelTunables RemoveIPC RestrictNamespaces RestrictRealtime RestrictSUIDSGID
"""
EXPOSURE = 20  # tenths, of 100: what `systemd-analyze security` may find; 14 with systemd 252


def parsed(words: Sequence[str]) -> dict[str, Any]:
    """Parse the arguments of ``fedpeft`` by the real command line, without running it."""
    command: click.Command = typer.main.get_command(command_line())
    context = click.Context(command)
    rest = list(words)
    while isinstance(command, click.Group):
        name, command, rest = command.resolve_command(context, rest)
        assert command is not None and name is not None
        context = click.Context(command, parent=context, info_name=name)
    command.parse_args(context, rest)
    return dict(context.params)


def instructions(dockerfile: str) -> list[tuple[str, str]]:
    """Return a Dockerfile's instructions, with joined lines and without comments."""
    text = (ROOT / dockerfile).read_text()
    text = re.sub(r"^#.*\n", "", text, flags=re.MULTILINE).replace("\\\n", " ")
    lines = (line.split(maxsplit=1) for line in text.splitlines() if line.strip())
    return [(name, " ".join(rest.split())) for name, rest in lines]


def executed(text: str) -> list[str]:
    """Return the words of an instruction in its exec form."""
    return [str(word) for word in yaml.safe_load(text)]


def unit(path: str) -> list[tuple[str, str]]:
    lines = (ROOT / path).read_text().splitlines()
    return [(k, v) for k, _, v in (line.partition("=") for line in lines if line[:1] not in "#[")]


@pytest.mark.parametrize(
    "words",
    [
        ["server", "up", "--state", "s", "--keys", "k", "--no-such-option"],
        ["node", "up", "--state", "s"],  # more is required
        ["nod", "up"],
    ],
)
def test_the_parser_of_these_tests_refuses_wrong_commands(words: list[str]) -> None:
    with pytest.raises(click.UsageError):
        parsed(words)


# --- units ---------------------------------------------------------------------------------------


def test_every_line_is_a_setting_of_a_section() -> None:
    for path in UNITS:
        lines = (ROOT / path).read_text().splitlines()
        sections = [line for line in lines if line.startswith("[")]
        assert sections == ["[Unit]", "[Service]", "[Install]"], path
        settings = [line for line in lines if line and line[0] not in "#["]
        assert all(re.fullmatch(r"[A-Z][A-Za-z]+=.*", line) for line in settings), path


@pytest.mark.parametrize("path", UNITS)
def test_the_units_drop_all_privileges_they_can(path: str) -> None:
    """`systemd-analyze security` below checks the same, if it is installed."""
    keys = unit(path)
    for closed in CLOSED.split():
        assert (closed, "yes") in keys, closed
    for key, value in (
        ("User", "fedpeft"),
        ("CapabilityBoundingSet", ""),
        ("AmbientCapabilities", ""),
        ("ProtectSystem", "strict"),
        ("ProtectProc", "invisible"),
        ("UMask", "0077"),
        ("StateDirectoryMode", "0700"),
        ("SystemCallArchitectures", "native"),
        ("SystemCallFilter", "~@privileged"),
        ("RestrictAddressFamilies", "AF_INET AF_INET6 AF_UNIX"),
    ):
        assert (key, value) in keys, key


@pytest.fixture(params=UNITS)
def installed(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A unit with the path of the program on this machine."""
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed")
    copy = tmp_path / Path(request.param).name
    text = (ROOT / request.param).read_text()
    copy.write_text(text.replace("/opt/fedpeft/bin/", f"{Path(sys.executable).parent}/"))
    return copy


def analyze(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["systemd-analyze", *arguments], capture_output=True, text=True)


def test_systemd_understands_every_line(installed: Path) -> None:
    done = analyze("verify", "--man=no", "--recursive-errors=no", str(installed))
    assert (done.returncode, done.stderr) == (0, "")
    installed.write_text(installed.read_text().replace("ProtectHome=yes", "ProtectHomes=yes"))
    assert "ProtectHomes" in analyze("verify", "--man=no", str(installed)).stderr


def test_systemd_rates_the_units_as_safe(installed: Path) -> None:
    security = ["security", "--offline=yes", "--no-pager", f"--threshold={EXPOSURE}"]
    done = analyze(*security, str(installed))
    assert done.returncode == 0, done.stdout
    installed.write_text(installed.read_text().replace("CapabilityBoundingSet=\n", ""))
    assert analyze(*security, str(installed)).returncode != 0


@pytest.mark.parametrize("path", UNITS)
def test_the_units_run_valid_fedpeft_commands(path: str) -> None:
    (command,) = (value for key, value in unit(path) if key == "ExecStart")
    program, *words = shlex.split(command.replace("%i", "north"))
    assert program == "/opt/fedpeft/bin/fedpeft"
    assert words[-1] == "$OPTIONS"  # bare: systemd splits it into words, or none
    given = parsed(words[:-1])
    (folder,) = (value for key, value in unit(path) if key == "StateDirectory")
    assert str(given["state"]) == f"/var/lib/{folder.replace('%i', 'north')}"


@pytest.mark.parametrize("path", UNITS)
def test_the_units_wait_for_a_clean_stop(path: str) -> None:
    keys = dict(unit(path))
    assert int(keys["TimeoutStopSec"]) > STOP
    assert keys["KillMode"] == "mixed"  # SIGTERM for the supervisor alone
    assert keys["RestartPreventExitStatus"] == "2"  # a mistake, see fedpeft.errors


@pytest.mark.parametrize("path", UNITS)
def test_the_units_limit_memory(path: str) -> None:
    """The other side decides how much a message or a run takes."""
    keys = dict(unit(path))
    assert (keys["MemoryMax"], keys["OOMPolicy"]) == ("50%", "continue")


def test_both_units_have_the_same_restrictions() -> None:
    server, node = (dict(unit(path)) for path in UNITS)
    different = ("Description", "EnvironmentFile", "ExecStart", "Environment")
    for keys in (server, node):
        for key in (*different, "StateDirectory", "CacheDirectory"):
            del keys[key]
    assert server == node


# --- images --------------------------------------------------------------------------------------


@pytest.mark.parametrize("dockerfile", DOCKERFILES)
def test_files_copied_by_dockerfiles_exist_and_are_not_ignored(dockerfile: str) -> None:
    copied = [
        source
        for name, rest in instructions(dockerfile)
        if name == "COPY" and not rest.startswith("--from")
        for source in rest.split()[:-1]
    ]
    kept = set((ROOT / ".dockerignore").read_text().split())
    assert {"pyproject.toml", "fedpeft", "clients", "server", "simulations", "deployment"} <= set(
        copied
    )
    for source in copied:
        assert (ROOT / source).exists(), source
        assert f"!{source}" in kept, source


@pytest.mark.parametrize("dockerfile", DOCKERFILES)
def test_the_images_run_fedpeft_commands_without_privileges(dockerfile: str) -> None:
    keys = dict(instructions(dockerfile))  # the last of each name
    user = keys["USER"].split(":")[0]
    assert int(user) > 0
    assert f"--uid {user} " in keys["RUN"]
    assert executed(keys["ENTRYPOINT"])[:3] == ["tini", "--", "fedpeft"]
    command = executed(keys["CMD"])
    if command[-1] != "--help":
        assert str(parsed(command)["port"]) == keys["EXPOSE"]
    health = keys["HEALTHCHECK"].partition(" CMD ")[2]
    program, *words = executed(health)
    assert program == "fedpeft"
    assert str(parsed(words)["state"]) == keys["VOLUME"] == "/var/lib/fedpeft"
    assert " tini " in keys["RUN"]


def test_both_images_share_their_first_stage() -> None:
    first, second = (instructions(dockerfile) for dockerfile in DOCKERFILES)
    end = [place for place, (name, _) in enumerate(first) if name == "FROM"][1]
    assert first[:end] == second[:end]


# --- compose -------------------------------------------------------------------------------------


@pytest.fixture
def compose() -> dict[str, Any]:
    return yaml.safe_load((ROOT / "deployment" / "server" / "compose.yaml").read_text())


def test_compose_starts_one_server_and_two_nodes(compose: dict[str, Any]) -> None:
    services = compose["services"]
    given = {name: parsed(service["command"]) for name, service in services.items()}
    server = given.pop("server")
    assert services["server"]["ports"] == [f"{server['port']}:{server['port']}"]
    assert set(given) == {"north", "south"}
    for name, node in given.items():
        assert node["superlink"] == f"server:{server['port']}"
        assert node["key"].endswith(f"/{name}")
    for name, service in services.items():
        assert service["image"] == ("fedpeft-server" if name == "server" else "fedpeft-node")


def test_compose_keeps_state_and_nothing_else(compose: dict[str, Any]) -> None:
    assert set(compose["volumes"]) == set(compose["services"])
    for name, service in compose["services"].items():
        state, *given = service["volumes"]
        assert state == f"{name}:{parsed(service['command'])['state']}"
        assert all(volume.startswith("${DEPLOYMENT:?") for volume in given)  # not in the tree
        assert all(volume.endswith(":ro") for volume in given)
        assert service["read_only"] and service["cap_drop"] == ["ALL"]
        assert service["security_opt"] == ["no-new-privileges:true"]
        assert int(service["stop_grace_period"].removesuffix("s")) > STOP


def builds(compose: dict[str, Any]) -> Iterator[Path]:
    for service in compose["services"].values():
        if build := service.get("build"):
            yield ROOT / "deployment" / "server" / build["context"] / build["dockerfile"]


def test_compose_builds_our_images(compose: dict[str, Any]) -> None:
    assert {path.resolve() for path in builds(compose)} == {ROOT / name for name in DOCKERFILES}
