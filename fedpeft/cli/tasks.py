"""``fedpeft tasks``: list the tasks."""

from __future__ import annotations

from fedpeft.cli.options import AsJson
from fedpeft.cli.printing import plain_console, plain_table, print_json


def tasks(as_json: AsJson = False) -> None:
    """List the tasks with their texts, predictions and metrics.

    Prints a table with one row per task.

    Example: fedpeft tasks
    """
    from fedpeft.tasks import available_tasks

    infos = available_tasks()
    if as_json:
        keys = ("name", "kind", "labels", "pair", "metric", "best", "description")
        print_json([{key: getattr(info, key) for key in keys} for info in infos])
        return
    table = plain_table(("task", "text", "predicts", "metric", "about"), wrapped=("about",))
    for info in infos:
        predicts = {
            "classes": f"{len(info.labels)} classes" if info.labels else "any classes",
            "score": "score",
            "tags": f"tags, {len(info.labels)} labels",
        }[info.kind]
        text = "pair" if info.pair else "single"
        about = info.description + (f" (best possible {info.best:g})" if info.best else "")
        table.add_row(info.name, text, predicts, info.metric, about)
    plain_console().print(table)
