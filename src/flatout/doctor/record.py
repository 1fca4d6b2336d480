"""What the doctor writes down: what it saw, how much there is to win, and what it advises, as plain numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from flatout.errors import RecordError
from flatout.plain import build, parse

KIND = "flatout.doctor"
RECORD_VERSION = 1

VAGUE = 3.0
"""High end of an interval in low ends from which its middle is not told alone: on a crowded machine 25.8x stood
for 2.5x to 222x."""
PHASES = ("wait", "copy", "forward", "backward", "optimiser", "sync", "evaluate", "log", "other")
"""What the training thread does in a step: it waits for a batch, copies it to the device, computes, waits for
the device, evaluates between steps, logs; the rest is `other`. Their seconds add up to the step."""
STAGES = ("fetch", "prepare", "collate", "hand_over")
"""What a batch costs where it is made, in a worker or in the training thread: reading, decoding and
transforming, stacking, and the way between processes."""


@dataclass(frozen=True)
class Exit:
    """How the script ended."""

    code: int
    was_stopped: bool
    """By the doctor, after enough steps."""
    error: str | None = None
    """The script's own traceback."""


@dataclass(frozen=True)
class Step:
    """One training step: seconds by phase (see PHASES), and since when."""

    start_s: float
    seconds: Mapping[str, float]
    num_samples: int | None = None


@dataclass(frozen=True)
class FunctionCost:
    """What one function of the user's costs in a batch."""

    name: str
    file: str
    line: int
    seconds_per_batch: float
    calls_per_batch: float
    """0: not counted, as for calls of compiled code."""
    caller: str = ""
    """File of the user's line that calls a library's function, of several the one seen most; else empty."""
    caller_line: int = 0

    @property
    def users_line(self) -> tuple[str, int]:
        """File and line to look at: the user's call of it, or else the function itself."""
        return (self.caller, self.caller_line) if self.caller else (self.file, self.line)


@dataclass(frozen=True)
class SyncPoint:
    """A line of the script that waits for the device (`.item()`, `.cpu()`, `float()` of a tensor)."""

    file: str
    line: int
    call: str
    per_step: float
    seconds_per_step: float


@dataclass(frozen=True)
class LoaderFacts:
    """A DataLoader of the script: its settings, and what its batches cost."""

    name: str
    """`train`, or `evaluate` for those that are read without an optimiser step."""
    num_workers: int
    batch_size: int | None
    prefetch_factor: int | None
    persistent_workers: bool
    pin_memory: bool
    start_method: str | None
    is_iterable: bool
    num_samples: int | None
    dataset: str
    """Class of the dataset, as `module.Name`."""
    batch_bytes: int | None
    seconds: Mapping[str, float]
    """Seconds a batch by stage (see STAGES), in the process that makes it."""
    cpu_seconds: float | None
    """CPU seconds a batch; far less than the sum of the stages means that it waits for a disk or a network."""
    slowest: float | None
    """The slowest hundredth of the samples, in medians: 50 means that single samples hold everybody up."""
    padding_share: float | None
    """Share of padding in a batch, where lengths can be told."""
    worker_starts: int
    functions: tuple[FunctionCost, ...] = ()


@dataclass(frozen=True)
class Ceiling:
    """The most that any better data path could give, measured in the same process."""

    step_s: float
    """Mean step as the script is."""
    resident_step_s: float
    """Mean step with batches that are in memory already."""
    loader_batch_s: float | None
    """Seconds a batch of the loader alone, nobody computing."""
    low: float
    high: float
    """95 % interval of the gain; neither end is below 1, no better data path makes a training slower."""

    @property
    def is_vague(self) -> bool:
        """The interval is too wide for one number."""
        return self.high > VAGUE * self.low

    @property
    def gain(self) -> float:
        """How many times as fast training would be without any wait for data."""
        return self.step_s / self.resident_step_s if self.resident_step_s > 0 else 1.0

    @property
    def known_gain(self) -> float | None:
        """The gain, at least 1; None where the interval is too wide for one number."""
        return None if self.is_vague else max(1.0, self.gain)


@dataclass(frozen=True)
class Trial:
    """A remedy that was tried: how many times as fast, with a 95 % interval."""

    gain: float
    low: float
    high: float
    is_kept: bool
    losses_agree: bool | None = None
    note: str = ""


@dataclass(frozen=True)
class Remedy:
    """One cure: why, how much it should give, what it costs, what to do."""

    name: str
    """One word that `--try` and the clinic know it by: `workers`, `cache`, `batch_size`, ..."""
    evidence: str
    predicted_gain: float | None
    """How many times as fast; None where nothing here can tell."""
    cost: str
    how: str
    """The command, or the lines to change."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """The same for `--try`: `num_workers`, `prefetch_factor`, `persistent_workers`, `pin_memory`, `cache`
    (True: `flatout.cached` around the dataset), `num_threads`, `matmul_precision`, `cudnn_benchmark`,
    `evaluate_batches`; empty: only a change of the script does it."""
    changes_results: bool = False
    trial: Trial | None = None


@dataclass(frozen=True)
class Verdict:
    """The one sentence."""

    disease: str
    """One word: `healthy`, `compute`, `slow_decode`, `small_files`, `augmentation`, `too_few_workers`, ..."""
    sentence: str


@dataclass(frozen=True)
class Look:
    """The machine at one moment."""

    at_s: float
    cpu_share: float
    """Busy cores, of the script and its workers."""
    rss_bytes: int
    device_utilisation: float | None = None
    device_bytes: int | None = None


@dataclass(frozen=True)
class DoctorRecord:
    """Everything about one observed script."""

    script: str
    arguments: tuple[str, ...]
    exit: Exit
    steps: tuple[Step, ...]
    """Those measured, without warm-up."""
    num_warmup: int
    loaders: tuple[LoaderFacts, ...]
    ceiling: Ceiling | None
    """None where the script ended too early, or its batches cannot be replayed."""
    sync_points: tuple[SyncPoint, ...] = ()
    looks: tuple[Look, ...] = ()
    verdict: Verdict | None = None
    remedies: tuple[Remedy, ...] = ()
    warnings: tuple[str, ...] = ()
    overhead: float | None = None
    """Share of a step that the observation itself took, reckoned from what was noted and what noting costs."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """Loose facts that rules read: `repeated_forward`, `cudnn_benchmark`, `precision`, ..."""
    machine: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Plain values, with null for numbers that are not finite."""
        document = {"kind": KIND, "version": RECORD_VERSION, **asdict(self)}
        if self.ceiling is not None:
            document["ceiling"]["gain"] = max(1.0, self.ceiling.gain)
        plain: dict[str, Any] = _plain(document)
        return plain


def read_record(path: Path) -> DoctorRecord:
    """A record from its file.

    Raises:
        RecordError: the file is not one, is cut off, or of a version that is not known here.
    """
    try:
        text = path.read_bytes()
    except OSError as error:
        raise RecordError(f"{path} cannot be read: {error.strerror}") from error
    return record_of(parse(text, str(path)), str(path))


def record_of(document: Any, where: str) -> DoctorRecord:
    """A record from its JSON values.

    Raises:
        RecordError: they are not one, or of a version that is not known here.
    """
    if not isinstance(document, dict) or document.get("kind") != KIND:
        raise RecordError(f"{where} is no record of the doctor; 'flatout doctor --json SCRIPT.py' writes one")
    if document.get("version") != RECORD_VERSION:
        raise RecordError(
            f"{where} is of version {document.get('version')!r:.40}; version {RECORD_VERSION} is read here: "
            "run the doctor again"
        )
    return build(DoctorRecord, document, where)


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(name): _plain(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    return value
