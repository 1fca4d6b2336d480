"""Peer: `litdata.optimize`, which writes samples into chunks with several processes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import litdata
import numpy as np

from flatout.bench.cases import CASES, Case
from flatout.types import Array


def fill(case: Case, items: Sequence[tuple[str, str]], out: Path, num_workers: int) -> None:
    """Forked workers: they start 2 s earlier each than spawned ones, which import torch again."""
    litdata.optimize(
        partial(_load, case.name),
        list(items),
        str(out),
        chunk_bytes="64MB",
        num_workers=num_workers,
        reorder_files=False,
        start_method="fork",
        verbose=False,
    )


def read(case: Case, items: Sequence[tuple[str, str]], out: Path, limit: int) -> Iterator[tuple[str, Array]]:
    """Some of what `fill` stored, by key."""
    dataset = litdata.StreamingDataset(str(out))
    if len(dataset) != len(items):
        raise ValueError(f"{len(dataset)} of {len(items)} samples")
    for number in range(min(limit, len(items))):
        sample = dataset[number]
        yield sample["key"], np.asarray(sample["x"])


def _load(case: str, item: tuple[str, str]) -> dict[str, Any]:
    return {"key": item[0], "x": CASES[case].load(item[1])}
