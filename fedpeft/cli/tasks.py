"""``fedpeft tasks``: what can be learned."""

from __future__ import annotations

import json

from fedpeft.cli.options import AsJson


def tasks(as_json: AsJson = False) -> None:
    """List the tasks.

    Example: fedpeft tasks
    """
    from rich.console import Console
    from rich.table import Table

    from fedpeft.tasks import available_tasks

    infos = available_tasks()
    if as_json:
        keys = ("name", "kind", "labels", "pair", "metric", "best", "description")
        print(json.dumps([{key: getattr(info, key) for key in keys} for info in infos], indent=2))
        return
    table = Table(box=None, padding=(0, 2, 0, 0))
    for title in ("task", "text", "predicts", "metric", "about"):
        table.add_column(title, no_wrap=title != "about")
    for info in infos:
        predicts = {
            "classes": f"{len(info.labels)} classes" if info.labels else "any classes",
            "score": "score",
            "tags": f"tags, {len(info.labels)} labels",
        }[info.kind]
        text = "pair" if info.pair else "single"
        about = info.description + (f" (best possible {info.best:g})" if info.best else "")
        table.add_row(info.name, text, predicts, info.metric, about)
    Console().print(table)
