"""Errors of clients whose data holds a secret: no part of it may leave the client."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

import fedpeft
from deployment.hosting.keys import make_node
from deployment.loopback import Deployment, command, deployment
from deployment.server.registration import add_node

pytestmark = pytest.mark.long
TEXT = "patient Zyx-48151623 tested positive"
LABEL = "carrier of Qfj-90210"
#: What must not be found, in small or capital letters: pieces of text and label.
NEEDLES = (b"zyx-4815", b"48151623", b"tested pos", b"carrier of", b"qfj-9")
WARD = "ward-oncology"  # in the path of the data
GOOD = [(f"a {word} film number {i}", word) for i in range(6) for word in ("negative", "positive")]

#: Nodes with another library: (file, place in it, what is put before it). One ends the process on
#: bad data with the data in its last words; as a panic in Rust code does it, this is no
#: ``Exception``. The other reads what the tokenizer refuses.
EDITED = {
    "exits": (
        "tasks/readers.py",
        "    if not len(table):",
        "    if 'tested' in str(table.columns): raise SystemExit(str(table.columns))\n",
    ),
    "surrogate": ("errors.py", "    try:\n        text.encode()", "    return True\n"),
}

#: Why each node fails, as it arrives at the server; "good" does not.
REASONS = {
    "label": r"no handshake: label: error 2: UserError at readers\.py:\d+",
    "number": r"no handshake: number: error 2: UserError at readers\.py:\d+",
    "nested": r"no handshake: nested: error 2: UserError at formats\.py:\d+",
    "exits": r"no handshake: exits: error 2: SystemExit at readers\.py:\d+",
    "surrogate": r"round 1: client 5 failed: error 2: TypeError at tokenization_\w+\.py:\d+",
}


def jsonl(rows: list[tuple[object, str]]) -> str:
    return "".join(json.dumps({"text": text, "label": label}) + "\n" for text, label in rows)


def content(name: str) -> str:
    """Return the content of a node's file after its start, which checks the data."""
    rows: list[tuple[object, str]] = [*GOOD, (TEXT, "positive")]
    bad: dict[str, tuple[object, str]] = {
        "label": (TEXT, LABEL),
        "number": (48151623, "positive"),
        "surrogate": (f"{TEXT} \ud83d", "positive"),
    }
    return jsonl([*rows, bad[name]] if name in bad else rows)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """Start a server and six nodes, and finish a run in which all but one failed."""
    with deployment(tmp_path_factory.mktemp("secrets")) as made:
        ward = made.folder / WARD
        for name, (file, place, line) in EDITED.items():
            code = made.folder / "code" / name / "fedpeft"
            shutil.copytree(Path(fedpeft.__file__).parent, code)
            text = (code / file).read_text()
            assert place in text
            (code / file).write_text(text.replace(place, line + place))
        for name in ("good", *REASONS):
            (ward / name).mkdir(parents=True)
            (ward / name / "train.jsonl").write_text(jsonl(GOOD))
            make_node(made.keys, name)
            add_node(made.state, made.keys / f"{name}.pub")
            start(made, name)
        for name in ("good", *REASONS):
            made.wait_for(name, "the node is up")
            (ward / name / "train.jsonl").write_text(content(name))
        with open(ward / "nested" / "train.jsonl", "a") as file:
            file.write('{"text": "' + TEXT + '", "label": ' + "[" * 100_000 + "\n")
        made.run("ill", SETTINGS)
        yield made


SETTINGS = [
    "backbone=tiny",
    "method.d=16",
    "task.name=custom",
    "task.labels=negative,positive",
    "federation.clients=6",
    "federation.rounds=1",
    "federation.evaluation=clients",
    "federation.node_wait=240",  # the node without a worker starts slowly on a busy machine
    "engine.threads=1",
    "output.plots=false",
]


def start(made: Deployment, name: str) -> None:
    """Start a node; "number" has no worker, so that the error is raised in Flower's process."""
    port = json.loads((made.state / "server.json").read_text())["ports"]["public"]
    options = ["--no-worker"] if name == "number" else []
    with pytest.MonkeyPatch.context() as patch:
        if name in EDITED:
            before = os.environ.get("PYTHONPATH", "")
            patch.setenv("PYTHONPATH", f"{made.folder / 'code' / name}{os.pathsep}{before}")
        made.start(
            name,
            *command("node", "up", "--superlink", f"localhost:{port}", *options),
            *("--key", str(made.keys / name), "--ca", str(made.keys / "ca.crt")),
            *("--state", str(made.node(name)), "--data", str(made.folder / WARD / name)),
            *("--labels", "negative,positive"),
        )


def found_in(places: list[Path], needles: tuple[bytes, ...]) -> list[tuple[str, bytes]]:
    """Return (file, needle) for every needle in a file, or in a file below a folder."""
    files = [file for place in places for file in (place, *place.rglob("*")) if file.is_file()]
    forms = [(needle, form) for needle in needles for form in (needle, wide(needle))]
    read = {file: file.read_bytes().lower() for file in files}
    return [(file.name, needle) for needle, form in forms for file in read if form in read[file]]


def wide(needle: bytes) -> bytes:
    return needle.decode().encode("utf-16-le")


def test_an_error_arrives_as_class_and_place(finished: Deployment) -> None:
    assert [line["clients"] for line in finished.rounds("ill")] == [1]
    for reason in REASONS.values():
        # A handshake is tried before the start and before the round.
        tries = 2 if reason.startswith("no handshake") else 1
        found = finished.logged("server", f"^{reason}$")
        assert len(found) == tries, finished.logged("server", "err")
    (failed,) = finished.rounds("ill")[0]["failed"]
    assert failed["client"] == 5 and failed["reason"].startswith("error 2: TypeError at tok")


def test_no_data_reaches_the_server_or_its_user(finished: Deployment) -> None:
    server = [finished.state, finished.folder / "server.out"]
    home = [finished.folder / "ill", finished.folder / "run-ill.out"]
    assert found_in([*server, *home], (*NEEDLES, WARD.encode())) == []
    # It is where it should be, and what did arrive is found: in the log and in the database.
    assert {needle for _, needle in found_in([finished.folder / WARD], NEEDLES)} == {*NEEDLES}
    arrived = {file for file, _ in found_in(server, (b"error at readers.py",))}
    assert "server.log" in arrived and any(file.startswith("superlink.db") for file in arrived)


def test_a_node_logs_only_the_invalid_label_of_its_data(finished: Deployment) -> None:
    """For its operator, who owns the data: in the node's log, and where the log is printed."""
    others = [name for name in ("good", *REASONS) if name != "label"]
    written = [place for name in others for place in places(finished, name)]
    assert found_in(written, NEEDLES) == []
    label_error = (
        f"train.jsonl row 14: label = '{LABEL}' is none of the labels; valid: negative, positive"
    )
    assert finished.logged("label", label_error)
    assert set(found_in(places(finished, "label"), NEEDLES)) == {
        (file, needle) for file in ("node.log", "label.out") for needle in (b"carrier of", b"qfj-9")
    }


def places(made: Deployment, name: str) -> list[Path]:
    """Return the files and folders that a node writes."""
    return [made.node(name), made.folder / f"{name}.out"]
