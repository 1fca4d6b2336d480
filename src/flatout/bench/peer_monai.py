"""Peer: MONAI's PersistentDataset, its cache filled by the workers of a DataLoader."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from monai.data import PersistentDataset
from monai.transforms import Transform
from torch.utils.data import DataLoader

from flatout.bench.cases import CASES, Case
from flatout.errors import FlatoutError
from flatout.types import Array


class Load(Transform):  # type: ignore[misc]
    """The case's function; a Transform, as only these are cached."""

    def __init__(self, case: str) -> None:
        self._case = case

    def __call__(self, item: dict[str, str]) -> Any:
        return CASES[self._case].load(item["path"])


def fill(case: Case, items: Sequence[tuple[str, str]], out: Path, num_workers: int) -> None:
    """Touch every item once. `len` as the collate function: no tensor has to travel to this process."""
    loader = DataLoader(_dataset(case, items, out), batch_size=16, num_workers=num_workers, collate_fn=len)
    if sum(loader) != len(items):
        raise FlatoutError("the DataLoader lost items")


def read(case: Case, items: Sequence[tuple[str, str]], out: Path, limit: int) -> Iterator[tuple[str, Array]]:
    """Some of what `fill` stored, by key."""
    num_cached = sum(1 for _ in out.iterdir())
    if num_cached != len(items):
        raise FlatoutError(f"the cache has {num_cached} of {len(items)} items")
    dataset = _dataset(case, items, out)
    yield from ((items[number][0], dataset[number].numpy()) for number in range(min(limit, len(items))))


def _dataset(case: Case, items: Sequence[tuple[str, str]], out: Path) -> Any:
    return PersistentDataset([{"key": key, "path": path} for key, path in items], Load(case.name), out)
