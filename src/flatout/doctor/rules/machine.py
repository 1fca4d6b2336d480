"""The machine of a record as the platform rules know machines."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
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


def part_of(machine: Machine, num_ranks: int) -> Machine:
    """What one of several ranks may take of cores and memory; a GPU is a rank's own."""
    if num_ranks <= 1:
        return machine
    shared = machine.shared_bytes
    return replace(
        machine,
        num_cores=max(1, machine.num_cores // num_ranks),
        memory_bytes=machine.memory_bytes // num_ranks,
        free_bytes=machine.free_bytes // num_ranks,
        shared_bytes=None if shared is None else shared // num_ranks,
    )
