"""Every pair of rank counts: what some ranks began others continue, twice an epoch and over its edge."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.loader.epochs import epoch_keys, loader_of

from flatout.loader.fetch import ReadRule
from flatout.loader.loader import FastDataLoader
from flatout.store import StoreReader

WORLDS = (1, 2, 3, 4, 8)
UNCHECKED = ReadRule(crc="off")


class Ranks:
    """The loaders of all ranks, in step."""

    def __init__(self, store: StoreReader, batch_size: int, world: int, state: dict[str, Any] | None) -> None:
        self.loaders: list[FastDataLoader] = []
        for rank in range(world):
            self.loaders.append(loader_of(store, batch_size, rank=rank, world_size=world, read=UNCHECKED))
            if state is not None:
                self.loaders[-1].load_state_dict(json.loads(json.dumps(state)))
        self._streams = [iter(loader) for loader in self.loaders]

    def step(self) -> list[int]:
        """The keys of one global batch, repeats left out; a new epoch begins where one has ended."""
        batches = [next(stream, None) for stream in self._streams]
        if any(batch is None for batch in batches):
            assert all(batch is None for batch in batches)
            self._streams = [iter(loader) for loader in self.loaders]
            batches = [next(stream) for stream in self._streams]
        found: list[int] = []
        for batch in batches:
            assert batch is not None
            assert len(batch["key"])  # no rank ever gets nothing
            keys = batch["key"]
            found += (keys[batch["valid"]] if "valid" in batch else keys).tolist()
        return found

    def state(self) -> dict[str, Any]:
        states = [loader.state_dict() for loader in self.loaders]
        assert all(state == states[0] for state in states)
        return states[0]


@pytest.mark.parametrize("after", WORLDS)
@pytest.mark.parametrize("before", WORLDS)
@given(st.integers(1, 4), st.lists(st.tuples(st.integers(1, 9), st.booleans()), min_size=3, max_size=4))
@settings(max_examples=2)
def test_others_continue(
    store: StoreReader, before: int, after: int, batch_size: int, legs: list[tuple[int, bool]]
) -> None:
    batch_size = max(batch_size, -(-8 // before))  # a global batch serves eight ranks
    total = batch_size * before
    wanted = [epoch_keys(store, epoch) for epoch in range(20)]
    global_batches = [keys[at : at + total] for keys in wanted for at in range(0, len(keys), total)]
    done = 0
    state = None
    for num_steps, is_after in [(1, False), *legs]:
        ranks = Ranks(store, batch_size, after if is_after else before, state)
        for _ in range(num_steps):
            assert ranks.step() == global_batches[done]
            done += 1
        state = ranks.state()
