"""Moved samples: what a forced prepare divides otherwise than the store that it replaces was divided."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np

from flatout.errors import StoreError
from flatout.store.index import read_index
from flatout.store.job import Job
from flatout.store.metadata import load_metadata
from flatout.store.samples import RowFinder, row_hashes


def told_moved(folder: Path, job: Job, finder: RowFinder) -> str | None:
    """How many samples that the store has stand in another split now; None: none, or nobody can tell."""
    try:
        meta = load_metadata(folder)
        samples = read_index(folder / meta.index, ["key_hash", "part", "key", "split"], meta.num_samples)
    except (StoreError, OSError):
        return None
    positions = finder.positions(row_hashes(samples))
    is_there = positions >= 0
    before = np.asarray(meta.splits, np.str_)[samples["split"].to_numpy()[is_there]]
    now = np.asarray(job.splits, np.str_)[positions[is_there]]
    moves = Counter(zip(before[before != now].tolist(), now[before != now].tolist(), strict=True))
    if not moves:
        return None
    told = ", ".join(f"{num:,} from {old} to {new}" for (old, new), num in sorted(moves.items()))
    return (
        f"{moves.total():,} of {len(before):,} samples stand in another split than before ({told}): --force "
        "divides anew, and a model that was trained before may know what it will be tested on"
    )
