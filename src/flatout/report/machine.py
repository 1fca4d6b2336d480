"""Facts as a table: whatever a record holds, by the unit that its name ends with, in words that people use."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flatout.report.page import Cell, Table
from flatout.report.quantity import BYTES, PLAIN, SECONDS, SHARE, Quantity
from flatout.report.settings import flattened, value_text
from flatout.report.text import NAME_LENGTH, VALUE_LENGTH, clipped

MOST = 60
UNITS: Mapping[str, Quantity] = {"_bytes": BYTES, "_seconds": SECONDS, "_s": SECONDS, "_share": SHARE}
"""What a name ends with, and the unit of its number."""
NAMES = {
    "free_bytes": "free memory",
    "shared_bytes": "free room in /dev/shm",
    "gpu": "GPU",
    "gpu.name": "GPU",
    "gpu.memory_bytes": "GPU memory",
    "cpu": "processor",
}
"""Facts whose name alone does not say what they are."""
WORDS = {"linux": "Linux", "darwin": "macOS", "win32": "Windows"}
MOST_VALUES = 20
"""Of a longer list only the beginning is shown."""


def fact_text(name: str, value: Any) -> str:
    """A fact in words: numbers by their name's unit, yes and no, lists one after the other."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float):
        ending = next((ending for ending in UNITS if name.endswith(ending)), "")
        if ending:
            return UNITS[ending].text(value)
        return PLAIN.text(value) if isinstance(value, float) else clipped(f"{value:,}", VALUE_LENGTH)
    if isinstance(value, list | tuple):
        return clipped(", ".join(fact_text(name, each) for each in value[:MOST_VALUES]), VALUE_LENGTH)
    if isinstance(value, Mapping) and value:
        parts = [f"{fact_name(key)} {fact_text(key, each)}" for key, each in flattened(value)]
        return clipped("; ".join(parts[:MOST_VALUES]), VALUE_LENGTH)
    return value_text(WORDS.get(value, value) if isinstance(value, str) else value)


def fact_name(name: str) -> str:
    """`gpu.memory_bytes` -> 'GPU memory'."""
    if name in NAMES:
        return NAMES[name]
    ending = next((ending for ending in UNITS if name.endswith(ending)), "")
    plain = name.removesuffix(ending) if ending != "_share" else name
    return clipped(plain.removeprefix("num_").replace("_", " ").replace(".", " "), NAME_LENGTH)


def fact_table(title: str, facts: Mapping[str, Any]) -> Table:
    """One row a fact that is known."""
    known = [(name, value) for name, value in flattened(facts) if value not in (None, "", {}, [], ())]
    rows = [[Cell(fact_name(name)), Cell(fact_text(name, value))] for name, value in known]
    return Table.of(["", ""], rows, title, MOST)
