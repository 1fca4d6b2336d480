"""How raw data becomes a store: place, parallelism, limits."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, PositiveFloat, PositiveInt

from flatout.config.workers import WorkerSettings


class PrepareSettings(WorkerSettings):
    """Settings of `flatout prepare`."""

    preprocessed_data_dir: str | None = None
    """Folder of the store."""
    preprocess_batch_size: PositiveInt = 16
    """Rows in one request to a worker; never changes the store's bytes."""
    engine: Literal["local", "ray"] = "local"
    """Where shards are made: processes of this machine, or tasks of a Ray cluster."""
    limit: PositiveInt | None = None
    """Prepare only the first rows; a later run without it prepares the rest."""
    checksum: bool = False
    """Notice changed files by their content instead of size and modification time."""
    decode_timeout_s: PositiveFloat = 60.0
    """Longest time for one row; then its worker is killed and the row quarantined."""
    max_sample_bytes: PositiveInt = 2 << 30
    """Largest decoded sample; larger ones (decompression bombs) are quarantined unread."""
    max_bad_fraction: float = Field(default=0.1, ge=0.0, le=1.0)
    """Share of failed rows above which prepare ends with an error."""
