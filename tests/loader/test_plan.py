"""What is asked of batches, and what cannot be had."""

from __future__ import annotations

import numpy as np
import pytest

from flatout.errors import ConfigError
from flatout.loader.batches import EvenBatches
from flatout.loader.local import ShardLocal
from flatout.loader.order import Balanced, Sequential, Shuffled
from flatout.loader.plan import BatchPlan
from flatout.loader.tokens import TokenBatches

LENGTHS = np.random.default_rng(1).integers(1, 30, 200)


def test_three_forms() -> None:
    order = Shuffled(200, 1)
    plain, bucketed, tokens = (
        BatchPlan(order, 8, lengths=lengths, max_tokens=most).batches(0, 2)
        for lengths, most in ((None, None), (LENGTHS, None), (LENGTHS, 90))
    )
    assert isinstance(plain, EvenBatches)
    assert isinstance(bucketed, EvenBatches)
    assert isinstance(tokens, TokenBatches)
    assert plain.name == "shuffled-1"
    assert len({plain.name, bucketed.name, tokens.name}) == 3
    assert (plain.global_batch, bucketed.global_batch, tokens.global_batch) == (16, 16, 2)
    assert (plain.max_tokens, bucketed.max_tokens, tokens.max_tokens) == (None, None, 90)


def test_other_lengths_have_another_name() -> None:
    names = {
        BatchPlan(Shuffled(200, 1), 8, lengths=np.minimum(LENGTHS, most), max_tokens=tokens).batches(0, 1).name
        for most in (10, 20, 30)
        for tokens in (None, 60)
    }
    assert len(names) == 6


def test_a_state_wins_over_the_settings() -> None:
    plan = BatchPlan(Shuffled(200, 1), 8, lengths=LENGTHS, max_tokens=90)
    assert (plan.batches(0, 2, 4, 60).global_batch, plan.batches(0, 2, 4, 60).max_tokens) == (4, 60)
    assert BatchPlan(Shuffled(200, 1), 8).batches(0, 2, 30).global_batch == 30


@pytest.mark.parametrize("order", [Balanced.of(np.arange(200) % 3), ShardLocal.of(np.zeros(200, np.int32))])
def test_tokens_need_an_order_that_can_be_planned(order: object) -> None:
    with pytest.raises(ConfigError, match="length_buckets"):
        BatchPlan(order, 8, lengths=LENGTHS, max_tokens=90)  # type: ignore[arg-type]
    assert BatchPlan(order, 8, lengths=LENGTHS).batches(0, 1).num_batches == 25  # type: ignore[arg-type]


@pytest.mark.parametrize("wrong", [{"batch_size": 0}, {"batch_size": 4, "max_tokens": 0}])
def test_impossible_sizes_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match="at least 1"):
        BatchPlan(Sequential(200), lengths=LENGTHS, **wrong)  # type: ignore[arg-type]


def test_without_shuffling_batches_go_from_short_to_long() -> None:
    for most in (None, 90):
        batches = BatchPlan(Sequential(200), 8, lengths=LENGTHS, max_tokens=most).batches(0, 1)
        lookup = batches.lookup()
        epochs = [[lookup.find(epoch, at)[0].tolist() for at in range(batches.num_batches)] for epoch in (0, 3)]
        assert epochs[0] == epochs[1]
        longest = [LENGTHS[rows].max() for rows in epochs[0]]
        assert longest == sorted(longest)
