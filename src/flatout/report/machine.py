"""The machine as a table: whatever facts a record holds, with sizes that people can read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flatout.report.page import Cell, Table
from flatout.report.quantity import BYTES
from flatout.report.settings import flattened, value_text
from flatout.report.text import NAME_LENGTH, clipped

MOST = 60


def fact_text(name: str, value: Any) -> str:
    """A fact by its name's unit."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return BYTES.text(float(value)) if name.endswith("_bytes") and is_number else value_text(value)


def fact_name(name: str) -> str:
    """`gpu.memory_bytes` -> 'gpu memory'."""
    words = name.removesuffix("_bytes").removeprefix("num_").replace("_", " ").replace(".", " ")
    return clipped(words, NAME_LENGTH)


def fact_table(title: str, facts: Mapping[str, Any]) -> Table:
    """One row a fact that is known."""
    known = [(name, value) for name, value in flattened(facts) if value not in (None, "", {}, [])]
    rows = [[Cell(fact_name(name)), Cell(fact_text(name, value))] for name, value in known]
    return Table.of(["", ""], rows, title, MOST)
