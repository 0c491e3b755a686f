"""Settings that contradict each other in a task of text, or are for one only."""

from __future__ import annotations

from collections.abc import Iterator

from fedpeft.experiment.adversary import AdversarySection
from fedpeft.experiment.settings import HeadSection, TaskSection


def in_text(task: TaskSection, head: HeadSection, adversary: AdversarySection) -> Iterator[str]:
    """Yield one line per contradiction of a task of text, and per setting that is for one only."""
    if task.kind != "text":
        for key in ("source", "target", "prompt", "max_target", "metric", "beams"):
            value, field = getattr(task, key), type(task).model_fields[key]
            if value != field.default:
                yield f"task.{key} = {value!r}: is for task.kind = 'text', not '{task.kind}'"
        return
    if task.name != "custom":
        yield f"task.kind = 'text': is for task.name=custom, not {task.name}"
    for key in ("labels", "text_pair"):
        if value := getattr(task, key):
            shown = value if isinstance(value, str) else ",".join(value)
            yield f"task.{key} = '{shown}': a task of text has none; leave it out"
    if task.prompt.count("{source}") != 1:
        yield f"task.prompt = '{task.prompt}': expected {{source}} in it exactly once"
    for key, head_field in type(head).model_fields.items():
        if getattr(head, key) != head_field.default:
            yield f"head.{key} = {getattr(head, key)}: a task of text has no head; leave it out"
    if adversary.fraction and adversary.attack in ("label_flip", "backdoor"):
        yield f"adversary.attack = '{adversary.attack}': is for tasks with classes or scores"
