"""Splits of data sets that ``datasets`` reads: by a name of the hub, or in a local folder."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from fedpeft.errors import UserError
from fedpeft.tasks.formats import READERS
from fedpeft.tasks.table import Table

_NAME = re.compile(r"(?P<name>[\w.-]+/[\w.-]+)(/(?P<config>[\w.-]+))?(:(?P<split>[\w.-]+))?")
#: Splits to evaluate on beside the one to train on, in this order.
DEV = ("validation", "dev")


@dataclass(frozen=True)
class Source:
    """A data set, as task.train or task.dev names it: ``user/dataset[/config][:split]``.

    Attributes:
        key: the setting.
        name: on the hub, or the path of a folder.
        config: of several that the data set may have; "" = its only one.
        split: "" = one that fits the setting.
    """

    key: str
    name: str
    config: str = ""
    split: str = ""

    def __str__(self) -> str:
        config = f"/{self.config}" if self.config else ""
        return f"{self.name}{config}" + (f":{self.split}" if self.split else "")

    def table(self, wanted: Collection[str], among: Sequence[str]) -> tuple[Table, Path] | None:
        """Return a split as a table, and its name for messages.

        Integers of a ClassLabel become its names.

        Args:
            wanted: names of the columns to keep, if the data set has them.
            among: splits of which the first that exists is read, if the source names none.

        Returns:
            None if the source names no split and none of ``among`` exists.

        Raises:
            UserError: the data set cannot be read, or lacks the split, or that has no rows.
        """
        with self._splits() as splits:
            split = self.split or next((name for name in among if name in splits), None)
            if split is None:
                return None
            if split not in splits:
                raise self._error(f"no split '{split}'; it has {', '.join(splits)}")
            rows = splits[split]
            if not len(rows):
                raise self._error(f"split '{split}' has no rows")
            kept = rows.select_columns([name for name in rows.column_names if name in wanted])
            features = kept.features.items()
            columns = {name: _named(kept[name][:], feature) for name, feature in features}
        table = Table(tuple(rows.column_names), columns, range(1, len(rows) + 1))
        return table, Path(str(replace(self, split=split)))

    @contextmanager
    def _splits(self) -> Iterator[dict[str, Any]]:
        """Give the splits by name; download them if necessary."""
        import datasets

        shown = not datasets.are_progress_bars_disabled()
        datasets.disable_progress_bars()
        with TemporaryDirectory() as scratch:
            # The cache of datasets knows local files by their time of change alone.
            local = {"cache_dir": scratch} if Path(self.name).is_dir() else {}
            try:
                splits = dict(datasets.load_dataset(self.name, self.config or None, **local))
            except Exception as error:  # of builders, of file systems, of the hub
                lines = str(error).strip().splitlines() or [type(error).__name__]
                raise self._error(f"is no file; datasets cannot read it: {lines[0]}") from None
            finally:
                if shown:
                    datasets.enable_progress_bars()
            yield splits

    def _error(self, reason: str) -> UserError:
        return UserError(f"{self.key} = '{self}': {reason}")


def source_of(key: str, name: str, base: str) -> Source | None:
    """Return the data set that a setting names; None if it names a file, or a missing one.

    Args:
        key: the setting, for messages.
        name: its value.
        base: folder to which the path of a folder is relative.
    """
    if (Path(base) / name).is_file():
        return None
    folder, _, split = name.partition(":")
    if folder and (Path(base) / folder).is_dir():
        return Source(key, str(Path(base) / folder), split=split)
    match = _NAME.fullmatch(name)
    if not match or Path(folder).suffix in READERS or (Path(base) / name).exists():
        return None
    return Source(key, **{part: match[part] or "" for part in ("name", "config", "split")})


def _named(values: list[Any], feature: Any) -> list[Any]:
    """Return values with the names of a ClassLabel, also in lists; -1 is a missing label."""
    inner = getattr(feature, "feature", None)
    names = getattr(inner if inner is not None else feature, "names", None)
    if names is None:
        return values

    def name(value: Any) -> Any:
        if isinstance(value, list):
            return [name(each) for each in value]
        return None if value is None or value < 0 else names[value]

    return [name(value) for value in values]
