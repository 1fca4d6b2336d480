"""What tuning knows before it tries anything: the data, the machine, the settings as they are."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from flatout.doctor.tune.setting import Setting


@dataclass(frozen=True)
class Facts:
    """One config on one machine."""

    is_fast: bool
    """Batches come from a store."""
    start: Setting
    """What the config comes to now."""
    consumer: str
    """What is done with batches in a trial: `the training step`, or `nothing`: loading alone."""
    num_samples: int
    """Of the train split."""
    num_all: int
    """Of all splits."""
    epochs: int
    sample_bytes: int
    """A sample in memory, decoded."""
    stored_bytes: int
    """The whole store; 0 for raw files."""
    num_shards: int
    num_cores: int
    free_bytes: int
    shared_bytes: int | None
    has_cuda: bool
    is_shuffled: bool
    is_compressed: bool
    """Some field of the store is compressed."""
    cache_size: int
    """Decompressed samples that are kept."""
    has_tokens: bool = False
    """`max_tokens` decides how many samples a batch has."""
    encodable: tuple[str, ...] = ()
    """Fields of floats that are worth another encoding."""
    form: str | None = None
    """Which of the encodings these fields have already; None: another, or not all the same."""
    is_persistent: bool = True
    """Worker processes live on from epoch to epoch."""
    notes: tuple[str, ...] = ()
    machine: dict[str, Any] = field(default_factory=dict)

    @property
    def is_larger_than_memory(self) -> bool:
        """The store does not fit into the page cache."""
        return self.stored_bytes > self.free_bytes

    def to_json(self) -> dict[str, Any]:
        """Plain values by name."""
        return asdict(self)

    @classmethod
    def from_json(cls, given: dict[str, Any]) -> Facts:
        """Facts that another process has told."""
        values = {**given, "start": Setting(**given["start"])}
        return cls(**{**values, "encodable": tuple(given["encodable"]), "notes": tuple(given["notes"])})
