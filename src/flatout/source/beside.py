"""Tables that lie in or beside a folder of samples and name its files: they are not read, and that is said."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

SUFFIXES = (".csv", ".tsv", ".jsonl", ".jsonlines", ".json", ".ndjson")
"""Tables of text, in which names can be found without reading all of it."""
HEAD_BYTES = 64 << 10
MAX_NAMES = 200
"""Files whose names are looked for."""
MAX_ENTRIES = 2000
"""Entries of the folder above that are looked at: it may be anybody's."""
SHORTEST_STEM = 4
"""Shorter names without their suffix (`12`), or names without a digit (`image`), come up in any table."""

_BETWEEN = re.compile(r"[\s,;:\"'{}\[\]]+(?:\./)?")


def notes_on_tables(root: Path, files: Sequence[str]) -> list[str]:
    """A sentence on each table that names files of a folder: it was passed over, and how it would be used."""
    return [
        f"{table.name} names files of {root.name}, but a folder is read by its files alone: if their labels "
        f"are in it, name it as the manifest ({table})"
        for table in tables_that_name(root, files)
    ]


def tables_that_name(root: Path, files: Sequence[str]) -> list[Path]:
    """Tables in `root` and in the folder above it that name some of these files (paths relative to `root`)."""
    names: set[str] = set()
    for path in files[:: max(1, len(files) // MAX_NAMES)]:  # from everywhere: a table may hold a part of them
        names |= {path, f"{root.name}/{path}", f"{root.as_posix()}/{path}", path.rpartition("/")[2]}
        stem = path.rpartition("/")[2].partition(".")[0]
        names |= {stem} if len(stem) >= SHORTEST_STEM and any(map(str.isdigit, stem)) else set()
    return [table for folder in (root, root.parent) for table in _tables(folder) if _names_any(table, names)]


def _tables(folder: Path) -> Iterator[Path]:
    try:
        with os.scandir(folder) as entries:
            found = [e.name for e in islice(entries, MAX_ENTRIES) if e.name.lower().endswith(SUFFIXES)]
    except OSError:
        return
    yield from (folder / name for name in sorted(found) if not name.startswith("."))


def _names_any(table: Path, names: set[str]) -> bool:
    try:
        with open(table, "rb") as file:
            head = file.read(HEAD_BYTES).decode(errors="replace")
    except OSError:
        return False
    if table.suffix.lower() == ".json" and not head.partition("\n")[0].rstrip().endswith("}"):
        return False  # one document, such as a Decathlon's dataset.json: no lines that could be rows
    return not names.isdisjoint(_BETWEEN.split(head.replace("\\", "/")))
