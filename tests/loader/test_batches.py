"""How an epoch is cut into batches and shared by ranks."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flatout.errors import ConfigError
from flatout.loader.batches import BLOCK, BatchRule, EpochOrder
from flatout.loader.order import Sequential, Shuffled

WORLDS = st.sampled_from([1, 2, 3, 4, 8])


@given(st.integers(1, 300), st.integers(8, 64), WORLDS, st.booleans())
def test_ranks_share_every_global_batch_exactly(size: int, total: int, world: int, drop_last: bool) -> None:
    rules = [BatchRule(size, total, rank, world, drop_last) for rank in range(world)]
    assert len({rule.num_batches for rule in rules}) == 1
    seen: list[int] = []
    for batch in range(rules[0].num_batches):
        shares = [rule.places(batch) for rule in rules]
        assert all(len(places) >= 1 for places, _ in shares)
        assert all(len(places) <= rule.largest for (places, _), rule in zip(shares, rules, strict=True))
        valid = [int(place) for places, count in shares for place in places[:count]]
        low = batch * total
        assert valid == list(range(low, min(low + total, size)))
        for places, _ in shares:
            assert min(places) >= low
            assert max(places) < min(low + total, size)
        seen += valid
    assert seen == list(range(size // total * total if drop_last else size))


@given(st.integers(1, 300), st.integers(8, 64), WORLDS)
def test_short_last_batches_are_equally_long(size: int, total: int, world: int) -> None:
    last = -(-size // total) - 1
    if size % total:
        lengths = {len(BatchRule(size, total, rank, world).places(last)[0]) for rank in range(world)}
        assert len(lengths) == 1


@pytest.mark.parametrize(("rank", "world", "total"), [(2, 2, 8), (-1, 1, 8), (0, 4, 3)])
def test_impossible_shares_are_refused(rank: int, world: int, total: int) -> None:
    with pytest.raises(ConfigError):
        BatchRule(10, total, rank, world)


@given(st.integers(1, 3 * BLOCK), st.integers(0, 9), st.data())
def test_looked_up_in_blocks_is_the_order(size: int, epoch: int, data: st.DataObject) -> None:
    order = Shuffled(size, 3)
    start = data.draw(st.integers(0, size - 1))
    places = range(start, min(size, start + 100))
    wanted = order.stretch(epoch, start, min(size, start + 100)).tolist()
    lookup = EpochOrder(order)
    assert lookup.positions(epoch, places).tolist() == wanted
    assert lookup.positions(epoch, np.array(places)[::-1]).tolist() == wanted[::-1]


def test_blocks_of_several_epochs_do_not_mix() -> None:
    lookup = EpochOrder(Shuffled(100, 3))
    places = np.arange(100)
    for epoch in (0, 1, 0, 2, 3, 4, 5, 0):
        assert lookup.positions(epoch, places).tolist() == Shuffled(100, 3).stretch(epoch, 0, 100).tolist()
    assert EpochOrder(Sequential(10)).positions(0, np.empty(0, np.int64)).tolist() == []
