"""Moved samples: what is divided otherwise now than in the store so far."""

from __future__ import annotations

from collections import Counter

import numpy as np

from flatout.store.job import Job
from flatout.store.samples import RowFinder, row_hashes
from flatout.store.versions import Version


def told_moved(version: Version | None, job: Job, finder: RowFinder) -> str | None:
    """How many samples of a version stand in another split now; None: none, or nobody can tell."""
    if version is None or version.meta is None:
        return None
    positions = finder.positions(row_hashes(version.samples))
    is_there = positions >= 0
    codes, names = version.samples["split"].to_numpy()[is_there], version.meta.splits
    if len(codes) and not 0 <= codes.min() <= codes.max() < len(names):
        return None
    before = np.asarray(names, np.str_)[codes]
    now = np.asarray(job.splits, np.str_)[positions[is_there]]
    moves = Counter(zip(before[before != now].tolist(), now[before != now].tolist(), strict=True))
    if not moves:
        return None
    told = ", ".join(f"{num:,} from {old} to {new}" for (old, new), num in sorted(moves.items()))
    return (
        f"WARNING: {moves.total():,} of {len(before):,} samples stand in another split than before ({told}): a "
        "model that was trained before may know what it will be tested on. --force divides anew; else the "
        "manifest's splits, its groups or the settings of splits are others now"
    )
