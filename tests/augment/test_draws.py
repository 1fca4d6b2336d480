"""Draws are exact, cover their range evenly and are independent of each other."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.stats
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.augment import reference
from tests.augment.cases import batch_keys

from flatout.augment.draws import Draws, normals
from flatout.augment.keys import SampleKeys
from flatout.seeding import MASK_64

NUM = 40_000
FIRST_DRAW = 1 << 33


def plain_bits(state: int, column: int) -> int:
    return reference.mix((state & MASK_64) ^ (FIRST_DRAW + column)) >> 33


@given(st.integers(-(2**63), 2**63 - 1), st.integers(1, 2**31))
def test_uniform_and_whole_are_what_integers_say(state: int, count: int) -> None:
    draws = Draws(SampleKeys(torch.tensor([state])), 3)
    for column in range(3):
        bits = plain_bits(state, column)
        assert draws.uniform(column).item() == (bits >> 7) / 2**24
        assert draws.whole(column, count).item() == bits * count // 2**31
        assert draws.chance(column, 0.25).item() == (bits < 2**29)


def test_bounds_hold_at_the_extremes() -> None:
    draws = Draws(batch_keys(NUM), 1)
    assert draws.chance(0, 1.0).all()
    assert not draws.chance(0, 0.0).any()
    exact = draws.uniform(0)
    assert exact.min() >= 0.0
    assert exact.max() < 1.0
    assert draws.whole(0, 7).unique().tolist() == list(range(7))
    assert draws.whole(0, 1).unique().tolist() == [0]


def test_a_slice_is_its_columns_side_by_side() -> None:
    draws = Draws(batch_keys(9), 4)
    columns = [draws.uniform(column, 2.0, 3.0) for column in (1, 2, 3)]
    assert draws.uniform(slice(1, 4), 2.0, 3.0).equal(torch.stack(columns, 1))
    counts = torch.arange(1, 10)[:, None] * torch.tensor([[1, 5, 9]])
    whole = draws.whole(slice(1, 4), counts)
    assert (whole < counts).all()
    assert torch.equal(whole[:, 1], draws.whole(2, counts[:, 1]))


@pytest.mark.parametrize("column", [0, 1, 5])
def test_uniforms_of_neighbouring_keys_are_uniform(column: int) -> None:
    """Keys 0, 1000003, 2000006, ...: as regular as indices, which users may take for keys."""
    found = Draws(batch_keys(NUM), 6).uniform(column).numpy()
    assert scipy.stats.kstest(found, "uniform").pvalue > 0.001


def test_columns_epochs_views_and_neighbours_are_uncorrelated() -> None:
    keys = batch_keys(NUM)
    others = [keys.view(0), keys.view(1), keys.position(0), keys.position(1), batch_keys(NUM, epoch=1)]
    columns = [Draws(keys, 2).uniform(c) for c in (0, 1)] + [Draws(other, 1).uniform(0) for other in others]
    columns.append(columns[0].roll(1))
    found = np.corrcoef(torch.stack(columns).numpy()) - np.eye(len(columns))
    assert np.abs(found).max() < 4.5 / np.sqrt(NUM)


@given(st.integers(-(2**63), 2**63 - 1), st.integers(1, 30))
def test_normals_are_those_of_the_formula(state: int, num: int) -> None:
    found = normals(torch.tensor([state]), num)[0]
    assert found.shape == (num,)
    np.testing.assert_allclose(found.numpy(), reference.normals(state, num), rtol=1e-4, atol=2e-5)


def test_normals_are_normal_and_independent() -> None:
    found = normals(batch_keys(40).states, 2001).numpy()
    assert scipy.stats.kstest(found.ravel(), "norm").pvalue > 0.001
    assert abs(np.corrcoef(found)[np.triu_indices(40, 1)]).max() < 5.5 / np.sqrt(2001)
    half = found[:, :1000] * found[:, 1001:2001]  # cosine and sine of one angle
    assert abs(half.mean()) < 4.5 / np.sqrt(half.size)
