"""Reference pages made from the code: settings, commands, methods, tasks, run folder."""

from __future__ import annotations

import inspect
import json
import re
import tempfile
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from parts.markdown import block, table


def settings() -> str:
    """Return a table for each section of an experiment."""
    from pydantic import BaseModel

    from fedpeft.experiment.config import Experiment

    fields = Experiment.model_fields
    top = [name for name, field in fields.items() if not _is_model(field.annotation, BaseModel)]
    pages = [
        "## Top level\n",
        _fields_table(Experiment, "", top),
    ]
    for name, field in fields.items():
        if name in top or name == "method":
            continue
        section: Any = field.annotation
        pages += [
            f"\n## `[{name}]`\n",
            f"{_summary(section)}\n",
            _fields_table(section, f"{name}."),
        ]
    return "\n".join(pages)


def search_settings() -> str:
    """Return the keys of a study's search."""
    from simulations.study.file import SearchSection

    return _fields_table(SearchSection, "search.")


def report_settings() -> str:
    """Return the keys of a study's report."""
    from simulations.study.file import ReportSection

    return _fields_table(ReportSection, "report.")


def _is_model(annotation: Any, base: type) -> bool:
    return inspect.isclass(annotation) and issubclass(annotation, base)


def _fields_table(model: Any, prefix: str, names: list[str] | None = None) -> str:
    rows = []
    for name, field in model.model_fields.items():
        if names is None or name in names:
            default = "" if field.default is None else f"`{_toml(field.default)}`"
            values = _values(field.annotation)
            rows.append([f"`{prefix}{name}`", default, values, field.description or ""])
    return table(["key", "default", "values", "meaning"], rows)


def _toml(value: Any) -> str:
    if isinstance(value, tuple):
        return "[" + ", ".join(_toml(item) for item in value) + "]"
    return json.dumps(value) if not isinstance(value, float) else repr(value)


def _values(annotation: Any) -> str:
    """Return a reader's name of a type: its choices, or number, text, true or false."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return " ".join(f"`{_toml(value)}`" for value in arguments)
    if origin is Annotated:
        return _values(arguments[0])
    if origin in (Union, types.UnionType):
        return ", ".join(_values(item) for item in arguments if item is not type(None))
    if origin is dict:
        return "table"
    if origin is tuple:
        return f"list of {_values(arguments[0])}"
    names = {int: "integer", float: "number", str: "text", bool: "true, false"}
    return names.get(annotation, "")


def _summary(thing: Any) -> str:
    """Return the docstring of a class or function as paragraphs."""
    return inspect.cleandoc(thing.__doc__ or "")


def commands() -> str:
    """Return a section for each command, with its usage, text, arguments and options."""
    from typer.main import get_command

    from fedpeft.cli.app import command_line

    return "\n".join(_command_pages(get_command(command_line()), "fedpeft"))


def _command_pages(command: Any, name: str) -> Iterator[str]:
    children = getattr(command, "commands", {})
    for child in children:
        path = f"{name} {child}"
        if getattr(children[child], "commands", None):
            yield from _command_pages(children[child], path)
        else:
            yield _command_page(children[child], path)


def _command_page(command: Any, path: str) -> str:
    about, _, example = inspect.cleandoc(command.help or "").partition("Example: ")
    arguments = [part for part in command.params if part.param_type_name == "argument"]
    usage = " ".join(
        [path, "[OPTIONS]", *(part.make_metavar(_context(command)) for part in arguments)]
    )
    pages = [f"\n## `{path}`\n", _escape(about), block(usage)]
    rows = [[f"`{_metavar(command, part)}`", _escape(part.help or ""), ""] for part in arguments]
    rows += [
        [f"`{_flags(command, part)}`", _escape(part.help or ""), _default(part)]
        for part in command.params
        if part.param_type_name == "option" and part.name != "help"
    ]
    if rows:
        pages += ["", table(["argument or option", "meaning", "default"], rows)]
    if example:
        pages += ["\nExample:\n", block(" ".join(example.split()), "sh")]
    return "\n".join(pages)


def _context(command: Any) -> Any:
    from click import Context

    return Context(command)


def _metavar(command: Any, part: Any) -> str:
    return str(part.make_metavar(_context(command)))


def _flags(command: Any, part: Any) -> str:
    names = ", ".join([*part.opts, *part.secondary_opts])
    return names if part.is_flag else f"{names} {_metavar(command, part)}"


def _default(part: Any) -> str:
    if part.required:
        return "required"
    if part.is_flag or part.default in (None, "", (), []) or callable(part.default):
        return ""
    return f"`{getattr(part.default, 'value', part.default)}`"


def _escape(text: str) -> str:
    return re.sub(r"(?<!`)([<>])", r"\\\1", " ".join(text.split()))


def methods() -> str:
    """Return a section for each method with its equation, source, settings and defaults."""
    from fedpeft.methods import REGISTRY, method_class

    pages = []
    for name in REGISTRY:
        method = method_class(name)
        module = inspect.cleandoc(inspect.getmodule(method).__doc__ or "")
        facts = [
            f"source: {method.source}",
            f"default learning rate: {method.lr:g}",
            "merges into the backbone's weights" if method.fusable else "cannot be merged",
        ]
        pages += [f"\n## `{name}`\n", module, "", " · ".join(facts), ""]
        rows = [
            [f"`method.{key}`", f"`{_toml(field.default)}`", field.description or ""]
            for key, field in method.Settings.model_fields.items()
            if key != "name"
        ]
        if rows:
            pages.append(table(["key", "default", "meaning"], rows))
    return "\n".join(pages)


def method_costs(backbone: str) -> str:
    """Return what each method costs with its defaults and two classes."""
    from fedpeft.cli.methods import describe_methods

    rows = []
    for row in describe_methods(backbone, 2):
        if "error" not in row:
            parameters, payload = f"{row['parameters']:,}", f"{row['payload_bytes']:,}"
            sites = " ".join(row["sites"]) or "-"
            share = f"{row['share']:.4%}"
            fusable = "yes" if row["fusable"] else "no"
            link = f"[`{row['method']}`](#{row['method']})"
            rows.append([link, parameters, f"{row['head']:,}", payload, share, fusable, sites])
    heads = ["method", "numbers", "+ head", "payload bytes", "share", "merges", "sites"]
    return table(heads, rows)


def tasks() -> str:
    """Return the table of tasks."""
    from fedpeft.tasks import available_tasks

    rows = []
    for info in available_tasks():
        predicts = f"{len(info.labels)} classes" if info.labels else info.kind
        about = info.description + (f" (best possible {info.best:g})" if info.best else "")
        rows.append(
            [f"`{info.name}`", "pair" if info.pair else "single", predicts, info.metric, about]
        )
    return table(["task", "text", "predicts", "metric", "about"], rows)


#: The files of a run folder. The build fails if a run writes one that is not here.
_FILES = {
    "experiment.toml": "Every setting, complete. Written first and never changed.",
    "rounds.jsonl": "One line per round: clients, failures, loss, score, seconds, bytes, epsilon.",
    "start.json": "The score before the first round.",
    "bytes.jsonl": "One line per round, client and kind of message; round 0 is the start.",
    "result.json": "The outcome: score, sizes, total bytes, epsilon, digests, versions.",
    "vector.safetensors": "The trained task vector. Its metadata says how to use it.",
    "partition.json": "The training examples of each client, with a digest (up to 10,000 clients).",
    "checkpoint.safetensors": "The state after the last finished round.",
    "checkpoint.previous.safetensors": "The state after the round before, for `--from-round`.",
    "identity.json": "What must be the same when the run is resumed.",
    "progress.json": "What the display reads.",
    "run.lock": "Held by the process that runs in this folder.",
    "frozen.json": "The scores of the frozen backbone, written by `fedpeft report`.",
    "plots/": "Score and loss against rounds and bytes; the partition.",
    "report.html": "With `fedpeft report RUN`: the page of the run in one file.",
    "privacy/": "Simulation with privacy: the ledger of each client.",
    "kept/": "Simulation: vectors that a client keeps between rounds, such as personal parameters.",
    "roster.json": "Deployment: the node, rounds and epsilon of each client.",
    "refused.jsonl": "Nodes that do not take part, or not in everything, with the reason.",
    "profile.json": "With `--profile`: time per stage.",
    "trace.json": "With `--profile`: a trace for ui.perfetto.dev.",
    "tensorboard/": "With `output.track`: the tool's own files.",
    "mlruns/": "With `output.track`: the tool's own files.",
    "wandb/": "With `output.track`: the tool's own files.",
    "tracking/": "With `output.track`: the rounds that each tool has.",
}


_VARY = ("seconds", "score", "eval_loss", "metrics", "versions", "digests", "message")


def run_folder() -> str:
    """Return the files of a run folder, and lines of a private run made for this page."""
    import fedpeft

    experiment = {
        "backbone": "tiny",
        "method.d": 32,
        "task.train_limit": 200,
        "task.eval_limit": 50,
        "federation.clients": 2,
        "federation.rounds": 1,
        "privacy.unit": "example",
        "privacy.noise_multiplier": 1.0,
        "privacy.reproducible": True,
    }
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        fedpeft.simulate(experiment, run)
        written = {path.name + "/" * path.is_dir() for path in run.iterdir()}
        if unknown := written - set(_FILES):
            raise ValueError(f"docs/parts/reference.py describes no {unknown} of a run folder")
        rounds = (run / "rounds.jsonl").read_text().splitlines()[0]
        sent = (run / "bytes.jsonl").read_text().splitlines()
        result = (run / "result.json").read_text()
    pages = [
        table(["file", "content"], [[f"`{name}`", about] for name, about in _FILES.items()]),
        "\nThe lines below are of a private run of two clients and one round; dots stand for what "
        "differs between machines.\n",
        "## A line of `rounds.jsonl`\n",
        block(json.dumps(_alike(json.loads(rounds)), indent=2), "json"),
        "\n## Lines of `bytes.jsonl`\n",
        block("\n".join(json.dumps(_alike(json.loads(line))) for line in sent), "json"),
        "\n## `result.json`\n",
        block(json.dumps(_alike(json.loads(result)), indent=2), "json"),
    ]
    return "\n".join(pages)


def _alike(value: Any, key: str = "") -> Any:
    """Return a value of a run's files as on every machine.

    Times, scores, versions and digests become dots, and so do sizes of messages, which hold
    compressed text; other numbers are rounded.
    """
    if isinstance(value, dict):
        return {
            name: _alike(each, name if key not in _VARY else key) for name, each in value.items()
        }
    if isinstance(value, list):
        return [_alike(each, key) for each in value]
    if key in _VARY and value is not None:
        return "..."
    return float(f"{value:.3g}") if isinstance(value, float) else value


PARTS: dict[str, Callable[..., str]] = {
    "settings": settings,
    "search_settings": search_settings,
    "report_settings": report_settings,
    "commands": commands,
    "methods": methods,
    "method_costs": method_costs,
    "tasks": tasks,
    "run_folder": run_folder,
}
