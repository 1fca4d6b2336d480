"""RunRecord: `run.json` as a run leaves it, or as far as one that is under way has come."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any

from flatout.errors import RecordError
from flatout.living import is_dead, is_known_here
from flatout.plain import build
from flatout.train.record import RECORD_VERSION, EpochRow, Look, Speed

RUNNING = "running"


@dataclass(frozen=True)
class RunRecord:
    """What is known of one run."""

    version: int
    status: str
    """running, finished, failed or interrupted."""
    task: str
    folder: str
    epochs: tuple[EpochRow, ...]
    looks: tuple[Look, ...]
    speed: Speed
    config: Mapping[str, Any]
    error: str | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)
    """What was logged last."""
    notes: tuple[str, ...] = ()
    is_fast: bool | None = None
    """Whether batches came from a store."""
    resumed_from: str | None = None
    precision: str | None = None
    device: str | None = None
    num_devices: int = 1
    global_step: int | None = None
    versions: Mapping[str, Any] = field(default_factory=dict)
    machine: Mapping[str, Any] = field(default_factory=dict)
    process: Mapping[str, Any] = field(default_factory=dict)
    """Host, number and start of the one that wrote it (`flatout.living`)."""
    reports: Mapping[str, Any] = field(default_factory=dict)
    """What callbacks had to say, by their names."""
    written_at: str | None = None
    """ISO 8601, with its zone."""

    @property
    def name(self) -> str:
        """That of its folder."""
        return PurePath(self.folder.replace("\\", "/")).name or self.folder

    @property
    def is_running(self) -> bool:
        """Whether it says so; who was killed could not say otherwise."""
        return self.status == RUNNING

    @property
    def is_killed(self) -> bool:
        """Whether it says that it is running, and its process is gone, which only its own host can tell."""
        return self.is_running and is_known_here(self.process) and is_dead(self.process)

    @property
    def last_metrics(self) -> dict[str, float]:
        """The final ones, or those of the newest epoch; numbers that are not finite are left out."""
        found: dict[str, float] = dict(self.metrics)
        if not found and self.epochs:
            row = self.epochs[-1]
            found = {**({} if row.train_loss is None else {"train_loss": row.train_loss}), **row.metrics}
        return {name: value for name, value in found.items() if math.isfinite(value)}


def run_record_of(document: Mapping[str, Any], where: str) -> RunRecord:
    """The record that a JSON object holds.

    Raises:
        RecordError: it is of another version, or a value is missing or of another type.
    """
    if document.get("version") != RECORD_VERSION:
        raise RecordError(
            f"{where} is of version {document.get('version')!r:.40}; version {RECORD_VERSION} is read here: "
            "use the flatout that wrote it"
        )
    return build(RunRecord, document, where)
