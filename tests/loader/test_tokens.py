"""Batches by tokens: every sample once, never over the limit, equally many batches in every epoch."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flatout.errors import ConfigError, LoaderStateError
from flatout.loader.token_plan import MIN_GROUP, TokenPlan, cut
from flatout.loader.tokens import TokenBatches
from flatout.types import Array


def joined(batch: list[list[int]]) -> list[int]:
    return [at for rows in batch for at in rows]


LENGTHS = st.lists(st.integers(0, 60), max_size=400).map(lambda values: np.array(values, np.int64))
RANKS = st.sampled_from([1, 2, 3, 4, 8])


def batches_of(plan: TokenPlan, epoch: int, world: int, drop_last: bool = False) -> list[list[list[int]]]:
    """Valid samples of each rank of each batch."""
    ranks = [TokenBatches(plan, rank, world, drop_last) for rank in range(world)]
    lookups = [rank.lookup() for rank in ranks]
    found = []
    for batch in range(ranks[0].num_batches):
        shares = [lookup.find(epoch, batch) for lookup in lookups]
        assert all(1 <= len(rows) <= rank.largest for (rows, _), rank in zip(shares, ranks, strict=True))
        assert ranks[0].is_masked or all(len(rows) == count for rows, count in shares)
        found.append([rows[:count].tolist() for rows, count in shares])
    return found


@given(LENGTHS, st.integers(60, 400), RANKS, st.integers(0, 3), st.none() | st.integers(0, 99), st.booleans())
@settings(deadline=None)
def test_every_sample_once_and_no_batch_over_the_limit(
    lengths: Array, max_tokens: int, ranks: int, epoch: int, seed: int | None, drop_last: bool
) -> None:
    plan = TokenPlan.of(lengths, max_tokens, ranks, seed)
    batches = batches_of(plan, epoch, ranks, drop_last)
    seen = [at for batch in batches for rows in batch for at in rows]
    dropped = len(lengths) % ranks if drop_last else 0
    assert len(seen) == len(set(seen)) == len(lengths) - dropped
    for number, batch in enumerate(batches):
        sizes = {len(rows) for rows in batch}
        is_short = number == len(batches) - 1 and not drop_last and len(lengths) % ranks
        assert len(sizes) == 1 or is_short
        assert all(lengths[rows].max() * len(rows) <= max_tokens for rows in batch if rows)


@given(LENGTHS, st.integers(60, 400), RANKS, st.integers(0, 99))
@settings(deadline=None)
def test_every_epoch_has_the_same_number_of_batches(
    lengths: Array, max_tokens: int, ranks: int, seed: int
) -> None:
    plan = TokenPlan.of(lengths, max_tokens, ranks, seed)
    sizes = [sorted(len(joined(batch)) for batch in batches_of(plan, epoch, ranks)) for epoch in range(3)]
    assert sizes[0] == sizes[1] == sizes[2]


@given(LENGTHS.filter(len), st.integers(60, 400), RANKS)
@settings(deadline=None)
def test_batches_are_as_large_as_their_groups_allow(lengths: Array, max_tokens: int, ranks: int) -> None:
    """One more sample a rank would break the limit, by the lengths of the groups."""
    plan = TokenPlan.of(lengths, max_tokens, ranks)
    caps = np.repeat(
        np.maximum(lengths, 1)[plan.members][plan.group_ends - 1], np.diff(plan.group_ends, prepend=0)
    )
    starts, ends = plan.starts.tolist(), plan.ends.tolist()
    assert starts == [0, *ends[:-1]]
    assert ends[-1] == len(lengths)
    for start, end in zip(starts, ends, strict=True):
        assert -(-(end - start) // ranks) * caps[end - 1] <= max_tokens
        if end + ranks <= len(lengths):
            assert ((end - start) // ranks + 1) * caps[end + ranks - 1] > max_tokens


@given(LENGTHS.filter(len), st.integers(60, 400), RANKS, st.integers(0, 3), st.integers(0, 9))
@settings(deadline=None)
def test_samples_and_batches_count_each_other(
    lengths: Array, max_tokens: int, ranks: int, epoch: int, seed: int
) -> None:
    plan = TokenPlan.of(lengths, max_tokens, ranks, seed)
    batches = TokenBatches(plan, 0, ranks)
    done = 0
    sums = {0: 0}
    for number, batch in enumerate(batches_of(plan, epoch, ranks), 1):
        done += sum(len(rows) for rows in batch)
        sums[done] = number
        assert batches.samples_after(epoch, number) == done
    for samples in range(len(lengths) + 2):
        assert batches.batch_after(epoch, samples) == sums.get(samples)


@given(LENGTHS.filter(len), st.integers(60, 400), RANKS, RANKS)
@settings(deadline=None)
def test_other_ranks_share_the_same_batches(lengths: Array, max_tokens: int, ranks: int, world: int) -> None:
    plan = TokenPlan.of(lengths, max_tokens, ranks, 5)
    planned = [joined(batch) for batch in batches_of(plan, 1, ranks)]
    found = batches_of(plan, 1, world)
    assert [joined(batch) for batch in found] == planned
    others = TokenBatches(plan, 0, world)
    most = max(lengths[rows].max() * len(rows) for batch in found for rows in batch if rows)
    assert most <= others.most_tokens
    if world < ranks and others.most_tokens > max_tokens:
        with pytest.raises(LoaderStateError, match=f"planned for {ranks} ranks"):
            others.check_room(max_tokens)
    others.check_room(others.most_tokens)


def test_company_changes_from_epoch_to_epoch() -> None:
    lengths = np.random.default_rng(0).integers(10, 2000, 5000)
    plan = TokenPlan.of(lengths, 20_000, 1, 7)
    sets = [{frozenset(batch[0]) for batch in batches_of(plan, epoch, 1)} for epoch in range(2)]
    assert len(sets[0] & sets[1]) < 0.1 * len(sets[0])
    turns = [[len(batch[0]) for batch in batches_of(plan, epoch, 1)] for epoch in range(2)]
    assert turns[0] != turns[1]


def test_little_is_lost_to_groups() -> None:
    lengths = np.random.default_rng(0).integers(10, 2000, 20_000)
    plan = TokenPlan.of(lengths, 64_000, 1)
    filled = lengths.sum() / (len(plan.ends) * 64_000)
    assert filled > 0.93


def test_few_long_samples_do_not_widen_the_others() -> None:
    lengths = np.array([100] * 1000 + [1000] * 3)
    plan = TokenPlan.of(lengths, 1000, 1)
    assert np.diff(plan.ends, prepend=0).tolist() == [10] * 100 + [1] * 3
    assert MIN_GROUP > 3


def test_planning_takes_no_step_for_each_sample_or_batch() -> None:
    lengths = np.random.default_rng(0).integers(10, 2000, 300_000)
    num_calls = 0

    def count(*_: object) -> None:
        nonlocal num_calls
        num_calls += 1

    sys.setprofile(count)
    try:
        plan = TokenPlan.of(lengths, 4_000, 2, 1)
        TokenBatches(plan, 0, 2).lookup().find(0, 0)
    finally:
        sys.setprofile(None)
    assert len(plan.ends) > 30_000
    assert num_calls < 10_000


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ConfigError, match="max_tokens"):
        TokenPlan.of(np.array([5, 11]), 10, 1)


def test_nothing_makes_no_batches() -> None:
    assert cut([], [], 10, 1).tolist() == []
    assert TokenBatches(TokenPlan.of(np.empty(0, np.int64), 10, 2, 1), 0, 2).num_batches == 0
