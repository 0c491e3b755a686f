"""Settings that contradict each other in a task of text, or are for one only; prompts."""

from __future__ import annotations

from collections.abc import Iterator

from fedpeft.experiment.adversary import AdversarySection
from fedpeft.experiment.settings import HeadSection, TaskSection


def in_text(task: TaskSection, head: HeadSection, adversary: AdversarySection) -> Iterator[str]:
    """Yield one line per contradiction of a task of text, and per setting that is for one only."""
    if task.kind != "text":
        prompted = head.kind == "likelihood"
        for key in ("source", "target", "prompt", "max_target", "metric", "beams"):
            value, field = getattr(task, key), type(task).model_fields[key]
            if value != field.default and not (prompted and key == "prompt"):
                yield f"task.{key} = {value!r}: is for task.kind = 'text', not '{task.kind}'"
        if prompted:
            yield from _in_prompt(task)
            if task.prompt.count("{pair}") > 1:
                yield f"task.prompt = '{task.prompt}': expected {{pair}} in it at most once"
            if task.kind != "classes":
                yield f"head.kind = 'likelihood': is for classes, not task.kind = '{task.kind}'"
        return
    if task.name != "custom":
        yield f"task.kind = 'text': is for task.name=custom, not {task.name}"
    for key in ("labels", "text_pair"):
        if value := getattr(task, key):
            shown = value if isinstance(value, str) else ",".join(value)
            yield f"task.{key} = '{shown}': a task of text has none; leave it out"
    yield from _in_prompt(task)
    for key, head_field in type(head).model_fields.items():
        if getattr(head, key) != head_field.default:
            value = getattr(head, key)
            shown = f"'{value}'" if isinstance(value, str) else value
            yield f"head.{key} = {shown}: a task of text has no head; leave it out"
    if adversary.fraction and adversary.attack in ("label_flip", "backdoor"):
        yield f"adversary.attack = '{adversary.attack}': is for tasks with classes or scores"


def _in_prompt(task: TaskSection) -> Iterator[str]:
    if task.prompt.count("{source}") != 1:
        yield f"task.prompt = '{task.prompt}': expected {{source}} in it exactly once"
