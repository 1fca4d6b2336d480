"""The machine of a record as the platform rules know machines."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from flatout.loader.machine import Gpu, Machine

UNKNOWN_BYTES = 16 << 30
"""Memory of a machine that the record does not describe."""


def machine_of(given: Mapping[str, Any]) -> Machine:
    """The record's machine; what it does not say is taken for a small Linux one."""
    known = {each.name for each in fields(Machine)} - {"gpu"}
    values = {name: value for name, value in given.items() if name in known and value is not None}
    gpu = given.get("gpu")
    found = Gpu(str(gpu["name"]), int(gpu["memory_bytes"])) if isinstance(gpu, Mapping) else None
    default = {"system": "linux", "num_cores": 1, "memory_bytes": UNKNOWN_BYTES, "free_bytes": UNKNOWN_BYTES}
    return Machine(**{**default, **values}, gpu=found)
