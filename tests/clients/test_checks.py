"""The checks of `fedpeft node up` and their messages."""

from __future__ import annotations

import contextlib
import io
import json
import os
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)

from clients.checks import (
    check_all,
    check_ca,
    check_data,
    check_key,
    check_roster,
    check_superlink,
    main,
)
from clients.described import require_described
from clients.errors import Refusal
from clients.folder import NodeSettings
from fedpeft.errors import UserError
from fedpeft.experiment.settings import TaskSection
from fedpeft.hosting.keys import make_authority, make_node, make_server
from simulations.processes import command_line, descendants

NONE = NodeSettings("", 0)
CURVE = ec.SECP384R1()


def table(path: Path, **options: Any) -> NodeSettings:
    """Return the settings of a node with a table of two classes."""
    return NodeSettings(str(path), **{"labels": ("0", "1"), **options})


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Authorities `ca` and `other`, a server certificate of the first, and a node's key."""
    folder = tmp_path_factory.mktemp("keys")
    for name in ("ca", "other"):
        make_authority(folder / name)
    make_server(folder / "server", [], folder / "ca")
    make_node(folder, "site")
    return folder


@contextmanager
def answering(keys: Path, host: str = "127.0.0.1", tls: bool = True) -> Iterator[str]:
    """Answer once on a port, with the server's certificate or without TLS."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(keys / "server" / "server.crt", keys / "server" / "server.key")

    def answer() -> None:
        connection, _ = listener.accept()
        with connection:
            connection.settimeout(120)
            if not tls:
                connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
                return
            with contextlib.suppress(OSError):  # the other side may not like us
                context.wrap_socket(connection, server_side=True).close()

    with socket.create_server((host, 0)) as listener:
        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        yield f"{host}:{listener.getsockname()[1]}"
        thread.join(timeout=120)


def closed_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


@pytest.mark.slow
def test_a_correct_node_passes_all_checks(keys: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.csv").write_text("text,label\ngood,1\nbad,0\n")
    settings = replace(table(tmp_path / "mine.csv"), allow=("tiny",))
    with answering(keys) as superlink:
        assert check_all(superlink, keys / "site", keys / "ca" / "ca.crt", settings) == []
    assert not any("clients.checks" in command_line(pid) for pid in descendants(os.getpid()))


@pytest.mark.long
def test_all_mistakes_are_reported_at_once(keys: Path, tmp_path: Path) -> None:
    settings = replace(table(tmp_path / "no.csv"), allow=("/no/such/backbone",))
    with pytest.raises(UserError) as refused:
        check_all("nowhere", keys / "none", keys / "site.pub", settings)
    lines = str(refused.value).split("\nerror: ")
    assert [line.partition(":")[0] for line in lines] == [
        f"--key {keys / 'none'}",
        f"--ca {keys / 'site.pub'}",
        "--superlink nowhere",
        f"--data {tmp_path / 'no.csv'}",
        "backbone '/no/such/backbone'",
    ]


def written(
    path: Path,
    key: ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey,
    form: PrivateFormat = PrivateFormat.OpenSSH,
) -> Path:
    path.touch(0o600)
    path.write_bytes(key.private_bytes(Encoding.PEM, form, NoEncryption()))
    return path


def test_check_key_refuses_other_kinds_and_readable_keys(keys: Path, tmp_path: Path) -> None:
    check_key(keys / "site")
    curve, expected = ec.generate_private_key(ec.SECP384R1()), "expected a private elliptic-curve"
    other = written(tmp_path / "other", ed25519.Ed25519PrivateKey.generate())
    form = written(tmp_path / "form", curve, PrivateFormat.PKCS8)
    for wrong in (form, other):
        with pytest.raises(UserError, match=expected):
            check_key(wrong)
    shared = written(tmp_path / "shared", curve)
    shared.chmod(0o640)
    with pytest.raises(UserError, match=r"mode 0640, others may read it: chmod 600"):
        check_key(shared)
    with pytest.raises(UserError, match="cannot be read"):
        check_key(tmp_path)


def test_check_key_names_a_public_key(keys: Path, tmp_path: Path) -> None:
    """Also if others may read it: the advice to chmod it would mislead."""
    said = rf"--key {keys}/site.pub: this is the public key, .* the private one, {keys}/site$"
    with pytest.raises(UserError, match=said):
        check_key(keys / "site.pub")
    pem = tmp_path / "key.pem"
    public = ec.generate_private_key(ec.SECP384R1()).public_key()
    pem.write_bytes(public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    with pytest.raises(UserError, match="this is the public key"):
        check_key(pem)


def test_a_roster_has_a_key_in_each_line_and_this_nodes_own(keys: Path, tmp_path: Path) -> None:
    make_node(tmp_path, "other")
    other, own = (tmp_path / "other.pub").read_text(), (keys / "site.pub").read_text()
    roster = tmp_path / "roster"
    roster.write_text(f"\ufeff# all nodes\n\n{other}{own}")
    check_roster(str(roster), keys / "site")
    check_roster("", keys / "site")  # none is given
    check_roster(str(roster), tmp_path / "none")  # check_key names this mistake
    roster.write_text(other)
    lacks = rf"^--roster {roster}: lacks this node's own key; .* content of {keys}/site.pub$"
    with pytest.raises(UserError, match=lacks):
        check_roster(str(roster), keys / "site")
    with pytest.raises(UserError, match="lacks this node's own key"):
        check_roster(str(roster), written(tmp_path / "alone", ec.generate_private_key(CURVE)))


@pytest.mark.parametrize(
    "line", ["ssh-ed25519 AAAA site", "words", "ecdsa-sha2-nistp384 AAAA", "\udcff\x00", "twice"]
)
def test_lines_of_a_roster_that_are_no_keys_are_not_quoted(
    keys: Path, tmp_path: Path, line: str
) -> None:
    own, roster = (keys / "site.pub").read_text(), tmp_path / "roster"
    text = own + (own if line == "twice" else line)
    roster.write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(UserError) as refused:
        check_roster(str(roster), keys / "site")
    why = "two of the keys are the same" if line == "twice" else "a line is not a P-384 public key"
    assert str(refused.value).startswith(f"--roster {roster}: {why}")
    assert line == "twice" or line not in str(refused.value)


def test_other_kinds_of_keys_and_private_keys_are_not_in_a_roster(
    keys: Path, tmp_path: Path
) -> None:
    small = ec.generate_private_key(ec.SECP256R1()).public_key()
    (tmp_path / "p256").write_bytes(small.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH))
    for wrong in (tmp_path / "p256", keys / "site"):
        with pytest.raises(UserError) as refused:
            check_roster(str(wrong), keys / "site")
        expected = "a line is not a P-384 public key in OpenSSH format; expected the .pub files"
        assert str(refused.value).startswith(f"--roster {wrong}: {expected}")
        assert "BEGIN" not in str(refused.value)


def test_check_ca_refuses_other_files(keys: Path) -> None:
    check_ca(keys / "ca" / "ca.crt")
    for wrong in (keys / "ca" / "ca.key", keys / "none", keys):
        with pytest.raises(UserError, match=f"--ca {wrong}"):
            check_ca(wrong)


def test_the_server_must_have_a_trusted_certificate_and_speak_tls(keys: Path) -> None:
    ca = keys / "ca" / "ca.crt"
    with answering(keys) as superlink:
        assert check_superlink(superlink, ca) == []
    with answering(keys) as superlink, pytest.raises(UserError, match="its certificate is refused"):
        check_superlink(superlink, keys / "other" / "ca.crt")
    with answering(keys, "127.0.0.2") as superlink, pytest.raises(UserError, match="mismatch"):
        check_superlink(superlink, ca)
    with answering(keys, tls=False) as superlink, pytest.raises(UserError, match="not speak TLS"):
        check_superlink(superlink, ca)


def test_a_server_that_is_not_up_yet_is_only_a_warning(keys: Path) -> None:
    for superlink in (f"127.0.0.1:{closed_port()}", "no-such-host.invalid:443"):
        (warning,) = check_superlink(superlink, keys / "ca" / "ca.crt")
        assert warning.startswith(f"--superlink {superlink}: no server answers (")


@pytest.mark.parametrize("wrong", ["", "host", "host:", ":1", "host:port", "host:0", "host:65536"])
def test_an_address_without_host_or_port_is_refused(keys: Path, wrong: str) -> None:
    with pytest.raises(UserError, match="expected HOST:PORT"):
        check_superlink(wrong, keys / "ca" / "ca.crt")


def test_data_must_exist_and_be_read_as_described(tmp_path: Path) -> None:
    mine, glue = tmp_path / "mine.csv", tmp_path / "glue" / "SST-2"
    mine.write_text("text,label\na secret text,1\nanother,0\n")
    glue.mkdir(parents=True)
    with pytest.raises(UserError, match="holds no train"):
        check_data(table(tmp_path))
    with pytest.raises(UserError, match=f"^--data '{glue}': no file for task 'sst2'"):
        check_data(NodeSettings(str(glue), task="sst2"))
    for split in ("train", "dev"):
        (glue / f"{split}.tsv").write_text("sentence\tlabel\ngood\t1\n")
    check_data(table(mine))
    for split, kinds in (("train", ["csv", "tsv"]), ("dev", ["csv", "jsonl"])):
        both = tmp_path / f"two-{split}"
        both.mkdir()
        for name in ["train.csv", *(f"{split}.{kind}" for kind in kinds)]:
            (both / name).write_bytes(mine.read_bytes())
        with pytest.raises(UserError, match=rf"holds {split}\.\w+ and {split}\.\w+; expected one"):
            check_data(table(both))
    for folder in (glue, glue.parent):
        check_data(NodeSettings(str(folder), task="sst2"))
    check_data(NONE)  # part 0 of a task that makes its own data
    for missing in (tmp_path / "no", tmp_path / "no.csv"):
        with pytest.raises(UserError, match=rf"--data {missing}: does not exist; expected"):
            check_data(table(missing))
    with pytest.raises(UserError, match=r"row 1: label = '1' is none of the labels; valid: a, b"):
        check_data(table(mine, labels=("a", "b")))
    with pytest.raises(UserError, match=r"no column 'mood'; .*\(--label names another column\)$"):
        check_data(table(mine, label="mood"))
    mine.write_text("text,label\na secret text,1,2\n")
    with pytest.raises(UserError) as refused:
        check_data(table(mine))
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize("examples", ["exact", 40])
def test_a_delta_that_promises_nothing_is_refused(tmp_path: Path, examples: str | int) -> None:
    mine, count = tmp_path / "mine.csv", 20 if examples == "exact" else examples
    mine.write_text("text,label\n" + "fine,1\nsad,0\n" * 10)
    limits = {"max_epsilon": 1.0, "examples": examples}
    check_data(table(mine, **limits, delta=0.024))
    with pytest.raises(UserError, match=f"^--delta 0.05: expected less than 1 / {count}, "):
        check_data(table(mine, **limits, delta=0.05))


def test_a_text_that_no_tokenizer_reads_is_refused(tmp_path: Path) -> None:
    """JSON can name half of a surrogate pair; training would fail at that row."""
    mine = tmp_path / "mine.jsonl"
    rows = ['{"text": "fine", "label": 1}', '{"text": "a secret \\ud83d", "label": 0}']
    mine.write_text("\n".join(rows))
    with pytest.raises(UserError) as refused:
        check_data(table(mine, max_epsilon=1.0))
    assert str(refused.value).startswith(f"{mine} row 2: column 'text' is not valid Unicode")
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"data": ""}, "--data is missing: the file or folder"),
        ({"data": "", "partition": 0}, "--labels: describes the files of --data, which is missing"),
        ({"data": "", "partition": 0, "labels": (), "task": "sst2"}, "--task: describes the files"),
        ({"labels": ()}, "--labels is missing: the names of the classes in column 'label', in "),
        ({"labels": ("a",)}, "--labels a: expected two or more different names"),
        ({"labels": ("a", "b", "a")}, "--labels a,b,a: expected two or more different names"),
        ({"labels": ("a", "")}, "--labels a,: expected two or more different names"),
        ({"kind": "score"}, "--labels 0,1: a score has no classes; leave it out"),
        ({"kind": "words"}, "--kind words: expected one of classes, score, tags"),
        ({"kind": "tags", "text_pair": "b"}, "--text-pair b: tags have one text; leave it out"),
        ({"text": ""}, "--text is empty: expected a column"),
        ({"label": ""}, "--label is empty: expected a column"),
        ({"task": "sst2"}, "--labels: is for --task custom, not sst2; leave it out"),
        (
            {"task": "sst"},
            "--task sst: unknown task, or one that has no files; did you mean 'sst2'",
        ),
        ({"task": "synthetic/topics"}, "--task synthetic/topics: unknown task, or one that has no"),
        (
            {"partition": 0, "max_epsilon": 1.0},
            "--partition 0: the server chooses how data are divided; with --max-epsilon leave it ",
        ),
    ],
)
def test_wrong_options_about_the_data_are_one_line(
    tmp_path: Path, options: dict[str, Any], expected: str
) -> None:
    (tmp_path / "mine.csv").write_text("text,label\ngood,1\nbad,0\n")
    with pytest.raises(UserError) as refused:
        check_data(replace(table(tmp_path / "mine.csv"), **options))
    assert str(refused.value).startswith(expected) and "\n" not in str(refused.value)


def test_pairs_of_texts_are_read_as_described(tmp_path: Path) -> None:
    path = tmp_path / "pairs.csv"
    path.write_text("question,answer\nis it red,yes\nis it blue,no\n")
    settings = NodeSettings(str(path), kind="text", source="question", target="answer")
    check_data(settings)
    with pytest.raises(UserError, match="no column 'source'"):
        check_data(replace(settings, source="source"))
    with pytest.raises(UserError, match="--target is empty: expected a column"):
        check_data(replace(settings, target=""))
    with pytest.raises(UserError, match="--labels a,b: --kind text has none"):
        check_data(replace(settings, labels=("a", "b")))
    with pytest.raises(UserError, match="--text-pair more: --kind text has none"):
        check_data(replace(settings, text_pair="more"))
    task = {"name": "custom", "kind": "text", "source": "question", "target": "answer"}
    require_described(settings, TaskSection.model_validate({**task, "prompt": "{source} ->"}))
    with pytest.raises(Refusal, match=r"task.target differs from this node's data; expected 'answ"):
        require_described(settings, TaskSection.model_validate({**task, "target": "question"}))
    (tmp_path / "half.jsonl").write_text('{"question": "is it", "answer": "\\ud83d"}\n' * 2)
    with pytest.raises(UserError, match="row 1: column 'answer' is not valid Unicode"):
        check_data(replace(settings, data=str(tmp_path / "half.jsonl")))


def test_torch_is_not_imported_for_the_tiny_backbone(tmp_path: Path) -> None:
    """It would take most of the time of the checks."""
    (tmp_path / "mine.csv").write_text("text,label\ngood,1\nbad,0\n")
    settings = replace(table(tmp_path / "mine.csv"), allow=("tiny",))
    code = "import sys; from clients.checks import main; main(); sys.exit('torch' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code],
        input=json.dumps(asdict(settings)),
        text=True,
        stdout=subprocess.PIPE,
    )
    assert (done.returncode, done.stdout) == (0, "[]")


def test_a_process_whose_node_has_ended_says_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A signal can end the node when it has started the process, before it sends the settings."""
    monkeypatch.setattr("sys.stdin", io.StringIO())
    main()
    assert capsys.readouterr() == ("", "")
