"""Bundles carry settings; check_bundle refuses any other content."""

from __future__ import annotations

import hashlib
import io
import stat
import time
import tomllib
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from flwr.cli.build import build_fab_from_disk
from flwr.cli.config_utils import load_and_validate
from flwr.cli.install import install_from_fab
from flwr.common.config import get_fused_config_from_dir

from deployment.hosting.bundle import MAX_BYTES, ForeignBundle, check_bundle, run_name, write_bundle

# Of Flower's builder.
pytestmark = pytest.mark.filterwarnings("ignore:GitWildMatchPattern:DeprecationWarning")

TEXTS = [
    'seed = 1\n[task]\nname = "sst2"  # a "comment"\n',
    'three """ quotes, a \\ and \\n, ends in a "',
    "żółć, 🎊, \x7f, \x00, \t and \r\n",
    "",
]
Change = Callable[[str], str]


@pytest.fixture
def valid(tmp_path: Path) -> bytes:
    """A valid bundle, packed by Flower."""
    write_bundle(tmp_path, {"experiment": TEXTS[0], "out": "first", "resume": 0})
    return build_fab_from_disk(tmp_path)


def project_of(bundle: bytes) -> str:
    with zipfile.ZipFile(io.BytesIO(bundle)) as file:
        return file.read("pyproject.toml").decode()


def manifest(project: str) -> str:
    data = project.encode()
    return f"pyproject.toml,{hashlib.sha256(data).hexdigest()},{len(data) * 8}"


def packed(project: str, *more: tuple[str | zipfile.ZipInfo, str], content: str = "") -> bytes:
    """Pack a bundle by hand, with further files."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("pyproject.toml", project)
        file.writestr(".info/CONTENT", content or manifest(project))
        for name, text in more:
            file.writestr(name, text)
    return buffer.getvalue()


def refusal(bundle: bytes) -> str:
    with pytest.raises(ForeignBundle) as caught:
        check_bundle(bundle)
    text = str(caught.value)
    assert text.isprintable() and len(text) < 200  # it stands in logs and in a reply
    return text


@pytest.mark.parametrize("text", TEXTS)
def test_flower_builds_and_installs_what_is_written(tmp_path: Path, text: str) -> None:
    source = tmp_path / "fedpeft"
    source.mkdir()
    settings: dict[str, str | int] = {"experiment": text, "out": "first", "resume": 1}
    write_bundle(source, settings)
    assert load_and_validate(source / "pyproject.toml", check_module=False)[1] == []  # warnings
    bundle = build_fab_from_disk(source)
    check_bundle(bundle)
    installed = install_from_fab(bundle, tmp_path / "home", skip_prompt=True)
    assert [path.name for path in installed.rglob("*")] == ["pyproject.toml"]
    assert get_fused_config_from_dir(installed, {}) == settings


def test_an_unchanged_bundle_packed_by_hand_passes(valid: bytes) -> None:
    """The refusals tested below are then caused by the changes alone."""
    settings = check_bundle(packed(project_of(valid)))
    assert settings == {"experiment": TEXTS[0], "out": "first", "resume": 0}
    assert run_name(settings) == "first" and run_name({"out": "../x"}) == run_name({}) == ""


@pytest.mark.parametrize("name", ["evil.py", "deployment/node/relay.py", "LICENSE", "data.json"])
def test_a_further_file_that_flower_packs_is_refused(tmp_path: Path, name: str) -> None:
    write_bundle(tmp_path, {"out": "first"})
    (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / name).write_text("import os\n")
    assert refusal(build_fab_from_disk(tmp_path)) == f"the bundle brings its own code: {name}"


def link(name: str) -> zipfile.ZipInfo:
    entry = zipfile.ZipInfo(name)
    entry.external_attr = (stat.S_IFLNK | 0o777) << 16
    return entry


@pytest.mark.parametrize(
    "name",
    ["../evil.pth", "/etc/evil", "clients/", ".info/other", "Pyproject.toml", link("evil"), "a\nb"],
)
def test_entries_that_flower_never_packs_are_refused(
    valid: bytes, name: str | zipfile.ZipInfo
) -> None:
    assert "brings its own code" in refusal(packed(project_of(valid), (name, "x")))


def test_refusal_of_many_foreign_files_names_one(valid: bytes) -> None:
    bundle = packed(project_of(valid), ("b.py", ""), ("a.py", ""), ("c" * 500, ""))
    assert refusal(bundle).endswith("a.py and 2 more")


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_a_bundle_with_the_same_file_twice_is_refused(valid: bytes) -> None:
    """Zip readers differ in which of the two they take."""
    again = ("pyproject.toml", project_of(valid))
    assert "must hold one" in refusal(packed(project_of(valid), again))


CHANGES: list[tuple[Change, str]] = [
    (
        lambda text: text.replace("deployment.node.relay:app", "evil:app"),
        "clientapp 'evil:app', expected",
    ),
    (lambda text: text.replace("server.app:app", "os:abort"), "serverapp 'os:abort', expected"),
    (lambda text: text.replace("serverapp =", "agentapp ="), "serverapp nothing, expected"),
    (lambda text: text + '[tool.flwr.app.components.x]\nagentapp = "a:b"\n', "components.x"),
    (lambda text: text.replace('"fedpeft"', '"../../x"', 1), "names"),
    (lambda text: text.replace("[project]", '[project]\ndependencies = ["evil"]'), "dependencies"),
    (lambda text: text.replace("[project]", "[project]\ndependencies = []"), "dependencies"),
    (lambda text: text + '[build-system]\nrequires = ["evil"]\n', "build-system.requires"),
    (lambda text: text + "[tool.uv]\n", "declares tool.uv"),
    (lambda text: text + '[tool.flwr.app.config.more]\nx = "y"\n', "config.more.x"),
    (lambda text: text.replace("resume = 0", "resume = [0]"), "config.resume"),
    (lambda text: text.replace('version = "', 'version = "/'), "version is not valid"),
    (lambda text: text.replace('version = "', 'other = "'), "declares project.other"),
    (lambda text: text.replace("description", "license-files"), "license-files"),
    (lambda text: "x = 1\n" + text, "declares x"),
    (lambda text: text + "[", "damaged"),
    (lambda text: "x." * 2000 + "x = 1\n", "damaged"),  # deeper than Python may go
    (lambda text: "", "name nothing, expected"),
]


@pytest.mark.parametrize(("change", "reason"), CHANGES)
def test_a_bundle_of_another_project_is_refused(valid: bytes, change: Change, reason: str) -> None:
    project = project_of(valid)
    changed = change(project)
    assert changed != project
    assert reason in refusal(packed(changed))


@pytest.mark.parametrize(
    "content",
    ["/dev/zero,00,8", "pyproject.toml,00,8", "{own}\n/etc/shadow,00,8", "{own}\n"],
)
def test_a_manifest_of_anything_else_is_refused(valid: bytes, content: str) -> None:
    """Flower would open the named path and report whether its digest matches."""
    project = project_of(valid)
    content = content.replace("{own}", manifest(project))
    assert "manifest" in refusal(packed(project, content=content))


def test_too_large_a_bundle_is_refused_before_it_is_unpacked(valid: bytes) -> None:
    bomb = project_of(valid) + "#" * MAX_BYTES
    assert len(packed(bomb)) < 10_000
    assert "exceeds 1,000,000 bytes" in refusal(packed(bomb))
    assert "exceeds" in refusal(b"x" * MAX_BYTES + packed(project_of(valid)))


def test_a_bundle_with_a_false_size_is_refused(valid: bytes) -> None:
    """check_bundle reads the size in the central directory at the end of the file."""
    bundle = bytearray(packed(project_of(valid) + "#" * MAX_BYTES))
    entry = bundle.index(b"PK\x01\x02")
    bundle[entry + 24 : entry + 28] = (1000).to_bytes(4, "little")
    assert "damaged" in refusal(bytes(bundle))


@pytest.mark.parametrize(
    "added", ["a." * 20_000 + "a = 1\n", "x = " + "[" * 20_000, "x = 0x" + "f" * 400_000]
)
def test_a_bundle_that_takes_long_to_parse_is_refused_at_once(valid: bytes, added: str) -> None:
    began = time.process_time()
    assert "damaged" in refusal(packed(project_of(valid) + added))
    assert time.process_time() - began < 2


@pytest.mark.parametrize("damage", [b"", b"PK\x03\x04", b"no zip file"])
def test_data_that_is_not_a_zip_file_is_refused(damage: bytes) -> None:
    assert "damaged" in refusal(damage)


def test_a_damaged_bundle_is_refused_at_every_byte(valid: bytes) -> None:
    """Or has the same content: not every byte of a zip file has a meaning."""
    for place in range(0, len(valid), 7):
        damaged = valid[:place] + bytes([valid[place] ^ 0xFF]) + valid[place + 1 :]
        try:
            check_bundle(damaged)
        except ForeignBundle:
            continue
        assert tomllib.loads(project_of(damaged)) == tomllib.loads(project_of(valid))


def test_settings_with_invalid_names_or_too_many_bytes_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="not a valid name of a setting"):
        write_bundle(tmp_path, {"a = 1\n[project]": 1})
    with pytest.raises(ValueError, match="exceed"):
        write_bundle(tmp_path, {"experiment": "x" * MAX_BYTES})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_other_compression_than_flowers_is_refused(valid: bytes, method: int) -> None:
    """Unpacking a damaged entry of another compression raises other exceptions."""
    packed = io.BytesIO()
    with (
        zipfile.ZipFile(io.BytesIO(valid)) as bundle,
        zipfile.ZipFile(packed, "w", method) as other,
    ):
        for name in bundle.namelist():
            other.writestr(name, bundle.read(name))
    assert refusal(packed.getvalue()) == "the bundle's compression is not one that Flower uses"
