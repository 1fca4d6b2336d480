"""ResumableLoader against a list: stopped anywhere it gives exactly the rest."""

from __future__ import annotations

from itertools import chain, islice
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from flatout.errors import LoaderStateError
from flatout.loader.order import Shuffled
from flatout.loader.plan import BatchPlan
from flatout.loader.sampler import DrawnSamples, OrderSampler, PlanSampler
from flatout.train.ordinary import ResumableLoader


class Numbers(torch.utils.data.Dataset[int]):
    def __init__(self, num: int) -> None:
        self.num = num
        self.read = 0

    def __len__(self) -> int:
        return self.num

    def __getitem__(self, index: int) -> int:
        self.read += 1
        return index


def make(num: int, batch_size: int, by_plan: bool = False) -> ResumableLoader:
    order = Shuffled(num, 7)
    if by_plan:
        return ResumableLoader(
            DataLoader(
                DrawnSamples(Numbers(num)),
                batch_size=None,
                sampler=PlanSampler(BatchPlan(order, batch_size, False, None, None), 0),
                collate_fn=lambda drawn: torch.tensor(drawn[0]),
            )
        )
    sampler = OrderSampler(order, batch_size)
    return ResumableLoader(DataLoader(Numbers(num), batch_size=batch_size, sampler=sampler))


def epoch_of(loader: ResumableLoader) -> list[list[int]]:
    return [batch.tolist() for batch in loader]


@given(
    num=st.integers(1, 20),
    batch_size=st.integers(1, 6),
    stop=st.integers(0, 25),
    by_plan=st.booleans(),
)
def test_the_rest_after_any_batch(num: int, batch_size: int, stop: int, by_plan: bool) -> None:
    whole = make(num, batch_size, by_plan)
    wanted = [batch for _ in range(3) for batch in epoch_of(whole)]
    assert sorted(chain.from_iterable(wanted[: len(whole)])) == list(range(num))
    first = make(num, batch_size, by_plan)
    stream = (batch for _ in range(2) for batch in first)
    seen = [batch.tolist() for batch in islice(stream, stop)]
    second = make(num, batch_size, by_plan)
    second.load_state_dict(first.state_dict())
    rest = [batch for _ in range(3) for batch in epoch_of(second)]
    assert (seen + rest)[: len(wanted)] == wanted


def test_what_is_done_is_not_read_again() -> None:
    loader = make(20, 4)
    loader.load_state_dict({**loader.state_dict(), "batch": 3})
    assert len(epoch_of(loader)) == 2
    dataset: Any = loader.loader.dataset
    assert dataset.read == 8


def test_epochs_as_lightning_sets_them() -> None:
    loader = make(9, 4)
    epochs = [epoch_of(loader) for _ in range(2)]
    again = make(9, 4)
    iter(again)  # Lightning asks once in vain
    again.sampler.set_epoch(1)
    assert epoch_of(again) == epochs[1]
    again.load_state_dict({**again.state_dict(), "epoch": 1, "batch": 2})
    again.sampler.set_epoch(1)  # the loaded epoch keeps its place
    assert epoch_of(again) == epochs[1][2:]
    again.load_state_dict({**again.state_dict(), "epoch": 1, "batch": 2})
    again.sampler.set_epoch(0)
    assert epoch_of(again) == epochs[0]


@pytest.mark.parametrize(
    ("state", "told"),
    [({"version": 1}, "fast loader"), ({"kind": "standard loader", "num_batches": 5}, "5 batches an epoch")],
)
def test_other_states_are_refused(state: dict[str, Any], told: str) -> None:
    with pytest.raises(LoaderStateError, match=told):
        make(9, 4).load_state_dict(state)


def described(num: int, batch_size: int, samples: str = "a") -> ResumableLoader:
    loader = make(num, batch_size).loader
    return ResumableLoader(loader, lambda: {"batch_size": batch_size, "samples": samples})


def test_as_many_batches_of_other_samples_are_refused() -> None:
    """9 samples are three batches of four, and of three: from the second on each is of other samples."""
    state = described(9, 4).state_dict()
    described(9, 4).load_state_dict(state)
    with pytest.raises(LoaderStateError, match=r"has batch_size 4, this run 3: .*or no --resume"):
        described(9, 3).load_state_dict(state)
    with pytest.raises(LoaderStateError, match="samples whose keys have the checksum a, this run b"):
        described(9, 4, "b").load_state_dict(state)
    with pytest.raises(LoaderStateError, match="has 2 devices, this run 1"):
        described(9, 4).load_state_dict({**state, "world": 2})


def test_states_that_know_the_number_of_batches_only() -> None:
    loader = described(9, 4)
    loader.load_state_dict({"kind": "standard loader", "epoch": 0, "batch": 2, "num_batches": 3})
    assert len(epoch_of(loader)) == 1
