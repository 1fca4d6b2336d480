"""Rewriting: the companion files that follow from index and shards, without a look at any source."""

from __future__ import annotations

import json
import time
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

from flatout.errors import StoreError
from flatout.source import hash_file
from flatout.store.commit import QUARANTINE, STATS, read_quarantine, write_quarantine
from flatout.store.companions import replace_companion, settle
from flatout.store.index import read_index
from flatout.store.limits import disk_errors
from flatout.store.lock import locked
from flatout.store.log import log_to
from flatout.store.metadata import StoreMeta, load_metadata, save_metadata
from flatout.store.statistics import RunStats
from flatout.store.view import VIEW, write_view


def rewrite(folder: Path, meta: StoreMeta, names: Collection[str]) -> RunStats:
    """Write these companions of a store anew; no sample is touched.

    Raises:
        StoreError: another prepare has changed the store since it was looked at.
    """
    started = time.perf_counter()
    with disk_errors(folder), locked(folder), log_to(folder):
        if load_metadata(folder) != meta:
            raise StoreError(f"{folder} was changed since it was verified; run the same command again")
        if VIEW in names:
            index = read_index(folder / meta.index, num_rows=meta.num_samples)
            write_view(folder, meta.fields, meta.shards, index, meta.splits)
        if QUARANTINE in names:  # of a store without bad rows
            write_quarantine(folder, [])
        stats = _nothing_made(meta, time.perf_counter() - started)
        if STATS in names:
            facts = {**stats.to_json(), "content_hash": meta.content_hash}
            replace_companion(folder, STATS, (json.dumps(facts, indent=1) + "\n").encode())
        save_metadata(folder, replace(meta, files={name: hash_file(folder / name) for name in meta.files}))
        settle(folder)
    return replace(stats, failed=len(read_quarantine(folder)))


def _nothing_made(meta: StoreMeta, wall_s: float) -> RunStats:
    """What a run did that found all samples as they should be."""
    return replace(
        RunStats.collect(
            receipts=(),
            num_samples=meta.num_samples,
            unchanged=meta.num_samples,
            removed=0,
            failed=meta.num_bad,
            bytes_in=0,
            wall_s=wall_s,
            num_workers=0,
        ),
        content_hash=meta.content_hash,
    )
