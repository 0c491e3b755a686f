"""Scripts in place of the programs that Flower starts."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from flwr.supercore.constant import TASK_TYPE_TO_COMMAND

from deployment.hosting.shims import FLOWER_TASKS, environment, write_shims


def run(command: list[str], **options: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, **options)  # type: ignore[call-overload]


def test_the_list_of_flowers_tasks_is_complete() -> None:
    """Contract with flwr.supercore.superexec: an unknown name would run Flower's program."""
    assert set(FLOWER_TASKS) == set(TASK_TYPE_TO_COMMAND.values())


def test_a_script_runs_our_module_with_its_arguments(tmp_path: Path) -> None:
    folder = tmp_path / "it's a $(folder)"
    write_shims(folder, {"flwr-clientapp": "json.tool"})
    given = tmp_path / "a file with 'quotes'.json"
    given.write_text('{"a": 1}')
    done = run([str(folder / "flwr-clientapp"), "--compact", str(given)])
    assert (done.returncode, done.stdout, done.stderr) == (0, '{"a":1}\n', "")


@pytest.mark.parametrize("name", sorted(FLOWER_TASKS))
def test_scripts_of_all_other_tasks_refuse(tmp_path: Path, name: str) -> None:
    write_shims(tmp_path, {"ours": "json.tool"})
    path = {**os.environ, "PATH": f"{tmp_path}:{Path(sys.executable).parent}:{os.environ['PATH']}"}
    done = run([name, "--token", "0"], env=path)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"ERROR: refused: fedpeft runs no {name}\n"


def test_scripts_are_private_and_can_be_rewritten(tmp_path: Path) -> None:
    for module in ("this", "json.tool"):
        write_shims(tmp_path / "bin", {"flwr-serverapp": module})
    scripts = list((tmp_path / "bin").iterdir())
    assert {path.name for path in scripts} == set(FLOWER_TASKS)
    assert {stat.S_IMODE(path.stat().st_mode) for path in [tmp_path / "bin", *scripts]} == {0o700}
    assert "json.tool" in (tmp_path / "bin" / "flwr-serverapp").read_text()


def test_modules_in_the_working_directory_do_not_take_the_place_of_ours(tmp_path: Path) -> None:
    (tmp_path / "json").mkdir()
    (tmp_path / "json" / "__init__.py").write_text("raise SystemExit('planted')")
    write_shims(tmp_path / "bin", {"flwr-clientapp": "json.tool"})
    done = run([str(tmp_path / "bin" / "flwr-clientapp"), "--help"], cwd=tmp_path)
    assert done.returncode == 0 and "planted" not in done.stderr


def test_environment_puts_scripts_first_and_exempts_loopback_from_proxies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_shims(tmp_path / "bin", {"flwr-clientapp": "json.tool"})
    monkeypatch.setenv("NO_PROXY", "intern.example.org")
    around = {**os.environ, **environment(tmp_path)}
    assert shutil.which("flwr-clientapp", path=around["PATH"]) == str(
        tmp_path / "bin/flwr-clientapp"
    )
    assert shutil.which("flwr", path=around["PATH"]) is not None
    assert around["FLWR_HOME"] == str(tmp_path / "flwr")
    assert around["no_proxy"] == around["NO_PROXY"] == "intern.example.org,127.0.0.1,localhost,::1"
    program = "import httpx; print(httpx.get('http://127.0.0.1:1'))"  # as Flower asks
    dead = {"HTTP_PROXY": "http://192.0.2.1:1", "HTTPS_PROXY": "http://192.0.2.1:1"}
    done = run([sys.executable, "-c", program], env={**around, **dead}, timeout=240)
    assert "ConnectError: [Errno 111] Connection refused" in done.stderr
