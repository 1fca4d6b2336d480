"""What a run leaves behind: its numbers as plain dataclasses, and the JSON record of the run folder."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

RECORD = "run.json"
CONFIG = "config.yaml"
CHECKPOINTS = "checkpoints"
LAST = "last.ckpt"
"""Of the checkpoints, the newest: what a run goes on from."""
RECORD_VERSION = 1


@dataclass(frozen=True)
class Look:
    """One look of the monitor: the steps since the last one."""

    step: int
    samples_per_s: float | None
    data_wait_share: float | None
    cpu_share: float
    """CPU seconds a second, of this process and the workers that have ended: 2.0 is two busy cores."""
    rss_bytes: int
    device_bytes: int | None = None
    device_utilisation: float | None = None

    def numbers(self) -> dict[str, float]:
        """What there is of it, without the step."""
        return {name: value for name, value in asdict(self).items() if value is not None and name != "step"}


@dataclass(frozen=True)
class EpochRow:
    """One epoch."""

    epoch: int
    num_epochs: int
    """How many there will be."""
    step: int
    train_loss: float | None
    metrics: dict[str, float]
    """Everything that was logged, as it stood at the end of the epoch; of a validation if there was one."""
    samples_per_s: float | None
    data_wait_share: float | None

    def numbers(self) -> dict[str, float]:
        """What was measured, beside the metrics that loggers have already."""
        given = {"train_loss": self.train_loss, "samples_per_s": self.samples_per_s}
        return {
            name: value
            for name, value in {**given, "data_wait_share": self.data_wait_share}.items()
            if value is not None
        }


@dataclass(frozen=True)
class Speed:
    """Where the time went. Steps exclude the first, which warms up, and validation."""

    num_steps: int
    train_s: float
    first_step_s: float
    samples_per_s: float | None
    step_ms: float | None
    """Median."""
    step_p95_ms: float | None
    data_wait_s: float
    data_wait_share: float | None
    share_not_waiting: float | None
    """Stands for the device's utilisation where no counter tells it."""
    cpu_share: float | None
    peak_rss_bytes: int


@dataclass(frozen=True)
class RunResult:
    """What `fit` returns."""

    folder: Path
    task: str
    metrics: dict[str, float]
    """What was logged last, by name, `train_loss`, `best_val_loss` (of whatever metric decides what is best),
    and what the test split gave with the best weights."""
    epochs: list[EpochRow]
    speed: Speed
    is_fast: bool
    """Whether batches came from a store."""
    weights: Path | None
    """The final weights as safetensors."""
    best_weights: Path | None
    """Those of the best checkpoint."""
    best_checkpoint: Path | None
    last_checkpoint: Path | None
    """What `resume` takes."""
    notes: list[str] = field(default_factory=list)
    """What was decided for the user."""
    looks: list[Look] = field(default_factory=list)
    rank: int = 0
    """Which process of the run this is; the first writes and prints."""

    def to_json(self) -> dict[str, Any]:
        """Plain values; paths as text."""
        return {
            "version": RECORD_VERSION,
            **{name: _plain(value) for name, value in vars(self).items()},
        }


def config_file_of(resume: str | Path) -> Path | None:
    """The settings in the folder of a run, or above one of its checkpoints; None: there are none here."""
    place = Path(resume)
    if not place.is_dir():
        folder = place.absolute().parent
        if folder.name != CHECKPOINTS:  # of a copy elsewhere the file above it may be anybody's
            return None
        place = folder.parent
    return place / CONFIG if (place / CONFIG).is_file() else None


def now_text() -> str:
    """This moment as ISO 8601, with its zone."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def write_record(
    path: Path,
    document: dict[str, Any],
    indent: int | None = 2,
    *,
    is_wanted: Callable[[], bool] = lambda: True,
    suffix: str = ".part",
) -> None:
    """Write JSON that any reader takes: numbers that are not finite become null.

    Args:
        is_wanted: asked when the text is made; False: nothing is written any more.
        suffix: of the file that is written first; two threads at once need two.
    """
    text = json.dumps(_plain(document), indent=indent, ensure_ascii=False, allow_nan=False)
    temporary = path.with_suffix(suffix)
    if is_wanted():
        temporary.write_text(text + "\n", encoding="utf-8")
        temporary.replace(path)


def _plain(value: Any) -> Any:
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {name: _plain(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    return {name: _plain(inner) for name, inner in vars(value).items()} if hasattr(value, "__dict__") else value
