"""Batches of single samples are those of the fast path."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from flatout.loader.collate import Collate
from flatout.loader.crop import crop_seed
from flatout.loader.dataset import FastDataset
from flatout.loader.fetch import ReadRule
from flatout.loader.lengths import RaggedRule
from flatout.loader.loader import FastDataLoader
from flatout.store import StoreReader
from flatout.types import FieldSpec

RULES = st.builds(
    RaggedRule,
    max_length=st.none() | st.integers(1, 9),
    crop=st.sampled_from(["head", "tail", "random"]),
    multiple=st.integers(1, 4),
    to_max=st.booleans(),
)


@given(RULES, st.integers(1, 20))
@settings(deadline=None, max_examples=25)
def test_the_same_batches_as_the_fast_path(store: StoreReader, rule: RaggedRule, batch_size: int) -> None:
    dataset, collate = FastDataset(store), Collate(store.fields, rule)
    fast = FastDataLoader(store, batch_size, num_workers=0, read=ReadRule(ragged=rule))
    start = 0
    for wanted in fast:
        stop = start + len(wanted["key"])
        batch = collate(dataset.__getitems__(range(start, stop)), crop_seed(0, 0))
        assert batch.keys() == wanted.keys()
        for name, value in wanted.items():
            assert torch.equal(batch[name], value), name
            assert batch[name].dtype == value.dtype
        start = stop


def sample(*shape: int) -> dict[str, torch.Tensor]:
    return {"x": torch.ones(shape)}


@pytest.fixture
def images() -> dict[str, FieldSpec]:
    return {"x": FieldSpec("x", "image", "float32", (1, None, None))}


def test_two_axes_that_vary(images: dict[str, Any]) -> None:
    batch = Collate(images)([sample(1, 2, 5), sample(1, 4, 3)])
    assert batch["x"].shape == (2, 1, 4, 5)
    assert batch["x"].sum() == 22
    assert batch["x"][1, 0, :, 3:].sum() == 0
    assert batch["x_length"].tolist() == [2, 4]


def test_empty_samples(images: dict[str, Any]) -> None:
    batch = Collate(images)([sample(1, 0, 5), sample(1, 0, 0)])
    assert batch["x"].shape == (2, 1, 0, 5)
    assert batch["x_length"].tolist() == [0, 0]
