"""The kit of a site: a folder with all that its node needs from the server's operator.

Nothing in it is secret. The node's private key is made at the site and stays there.
"""

from __future__ import annotations

import shlex
from pathlib import Path
from textwrap import dedent

from fedpeft.errors import UserError
from fedpeft.experiment.config import Experiment
from fedpeft.experiment.settings import TaskSection
from fedpeft.files import PUBLIC, check_folder, write_together
from fedpeft.hosting.keys import CA_CERTIFICATE, check_name
from fedpeft.version import __version__
from server.host.folder import ServerFolder
from server.host.up import addresses

README = "README.md"
#: Keys of [task] that are options of ``fedpeft node up`` with the same names and defaults.
_COLUMNS = ("text", "text_pair", "label", "source", "target", "kind")


def write_kit(state: ServerFolder, name: str, out: Path, experiment: Experiment | None) -> None:
    """Write ``ca.crt`` and ``README.md`` for the site of a node into a folder, made if missing.

    Args:
        state: the server's folder, with its address and certificate.
        name: of the node.
        out: the folder; it may not have these files yet.
        experiment: that the node will take part in; None leaves gaps in the site's command.

    Raises:
        UserError: the name is not one of a node, a file exists or cannot be written.
    """
    check_name(name)
    check_folder(out)
    if experiment is not None:
        _check_described(experiment.task)
    files = {
        out / CA_CERTIFICATE: (state.ca.read_bytes(), PUBLIC),
        out / README: (instructions(state, name, experiment).encode(), PUBLIC),
    }
    try:
        write_together(files)
    except FileExistsError as error:
        raise UserError(f"'{error}' exists already; remove it, or choose another --out") from None
    except OSError as error:
        raise UserError(f"'{error.filename}' cannot be written ({error.strerror})") from None


def instructions(state: ServerFolder, name: str, experiment: Experiment | None) -> str:
    """Return the text of a kit, with the commands of the site."""
    address, *others = addresses(state)
    server = f"{address} (or {', '.join(others)})" if others else address
    secure = experiment is not None and experiment.federation.secure
    roster = """
        This server's runs add the sites' updates under masks. Get the NAME.pub of every site from
        the sites themselves, not from the server's operator, and put them together:

            cat *.pub > roster
        """
    text = f"""\
        # Node {name}

        With this folder a site takes part in federated training at {server}.
        Its data stay at the site. Nothing in here is secret.

        The site needs Linux, Python 3.11 or newer, fedpeft {__version__} (`fedpeft --version`), a
        way out to that port, and a clock that is kept by NTP. All commands are for this folder.

        ## 1. Check the certificate

            openssl x509 -in {CA_CERTIFICATE} -noout -fingerprint -sha256

        Let the server's operator read the number to you over the telephone. If it differs, somebody
        changed this folder on its way: do not go on.

        ## 2. Make the node's key

            fedpeft keys node {name} --out .

        The private key, `{name}`, never leaves this machine. Send `{name}.pub` to the operator, and
        compare its fingerprint by telephone, too. The operator then registers it.
        {roster if secure else ""}
        ## 3. Start the node

        DATA is a table (TSV, CSV, JSONL or Parquet) or a folder with `train` and `dev`, outside of
        `state`.{_about(experiment)}

            {_command(address, name, experiment)}

        It waits until the key is registered (`--wait`), and then says "the node is up". Ctrl-C ends
        it. What the site may limit, privacy first: `fedpeft node up --help`.

        ## 4. See what leaves the site

            fedpeft node status --state state
            fedpeft node watch --state state
        """
    return dedent(text)


def _about(experiment: Experiment | None) -> str:
    if experiment is None:
        return (
            "\n        A,B are the names of the classes, in the order that the operator gives; for "
            "other kinds of\n        data see `fedpeft node up --help`."
        )
    if experiment.task.name == "custom":
        return " Its columns and labels must be those that the command names."
    return ""


def _command(address: str, name: str, experiment: Experiment | None) -> str:
    """Return the command that starts the node, in lines of a Markdown code block."""
    options = ["--labels A,B"] if experiment is None else _described(experiment.task)
    if experiment is not None:
        options.append(f"--backbone {shlex.quote(experiment.backbone)}")
        options += ["--roster roster"] if experiment.federation.secure else []
    return " \\\n                ".join(
        [
            f"fedpeft node up --superlink {address} --key {name} --ca {CA_CERTIFICATE}",
            " ".join(["--data DATA", *options]),
            "--state state --wait",
        ]
    )


def _check_described(task: TaskSection) -> None:
    """Raise UserError if no options of a node describe the experiment's data."""
    if task.name.startswith("synthetic/"):
        raise UserError(f"--experiment: task '{task.name}' is made up, and has no data of sites")
    if task.name != "custom" or task.kind not in ("classes", "tags"):
        return
    if not task.labels:
        raise UserError(
            "--experiment: task.labels is empty, and nodes need the names of the classes"
        )
    if found := [label for label in task.labels if "," in str(label)]:
        raise UserError(
            f"--experiment: label '{found[0]}' has a comma, which no node's --labels has"
        )


def _described(task: TaskSection) -> list[str]:
    """Return the options that describe the data as an experiment does."""
    if task.name != "custom":
        return [f"--task {shlex.quote(task.name)}"]
    given = [(key, getattr(task, key)) for key in _COLUMNS]
    given = [(key, value) for key, value in given if value != TaskSection.model_fields[key].default]
    if task.labels:
        given.append(("labels", ",".join(map(str, task.labels))))
    return [f"--{key.replace('_', '-')} {shlex.quote(value)}" for key, value in given]
