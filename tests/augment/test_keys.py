"""States follow from (seed, epoch, sample key) alone, and are mixed bit for bit as in `flatout.seeding`."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.augment.reference import mix as plain_mix

from flatout import seeding
from flatout.augment import SampleKeys, draw_keys
from flatout.augment.keys import (
    FIRST_DRAW,
    FIRST_NOISE,
    FIRST_POSITION,
    FIRST_VIEW,
    mix,
    random_keys,
    sequence,
    shift_right,
)
from flatout.errors import AugmentError

INT64 = st.integers(-(2**63), 2**63 - 1)
HASHES = st.lists(INT64, min_size=1, max_size=20, unique=True)


def unsigned(tensor: torch.Tensor) -> list[int]:
    return [number & seeding.MASK_64 for number in tensor.tolist()]


@given(st.lists(INT64, min_size=1, max_size=40))
def test_mixing_is_that_of_the_seeds(numbers: list[int]) -> None:
    wanted = [plain_mix(number & seeding.MASK_64) for number in numbers]
    assert unsigned(mix(torch.tensor(numbers))) == wanted


def test_mixing_gives_the_published_sequence() -> None:
    """splitmix64 from state 0: what every implementation of it starts with."""
    found = unsigned(mix(torch.tensor([1, 2, 3])))
    assert [hex(number) for number in found] == [
        "0xe220a8397b1dcdaf",
        "0x6e789e6aa1b965f4",
        "0x6c45d188009454f",
    ]


@given(INT64, st.integers(1, 63))
def test_shift_brings_in_zeros(number: int, num_bits: int) -> None:
    assert shift_right(torch.tensor([number]), num_bits).item() == (number & seeding.MASK_64) >> num_bits


@given(INT64, st.sampled_from([FIRST_DRAW, FIRST_NOISE, FIRST_POSITION, FIRST_VIEW]), st.integers(1, 9))
def test_a_sequence_is_mixed_number_by_number(state: int, first: int, num: int) -> None:
    wanted = [plain_mix((state & seeding.MASK_64) ^ at) for at in range(first, first + num)]
    assert unsigned(sequence(torch.tensor([state]), first, num)[0]) == wanted


@given(HASHES, st.integers(0, 2**64), st.integers(0, 10**6), st.data())
def test_a_sample_has_its_state_in_any_batch(hashes: list[int], seed: int, epoch: int, data: Any) -> None:
    whole = dict(
        zip(hashes, draw_keys(torch.tensor(hashes), seed=seed, epoch=epoch).states.tolist(), strict=True)
    )
    mixed = data.draw(st.permutations(hashes))
    cut = data.draw(st.integers(0, len(hashes)))
    for part in (mixed[:cut], mixed[cut:]):
        states = draw_keys(torch.tensor(part, dtype=torch.int64), seed=seed, epoch=epoch).states
        assert states.tolist() == [whole[one] for one in part]


@given(HASHES, st.integers(0, 1000), st.integers(0, 1000))
def test_seed_epoch_view_and_position_all_count(hashes: list[int], seed: int, epoch: int) -> None:
    keys = draw_keys(torch.tensor(hashes), seed=seed, epoch=epoch)
    others = [
        keys,
        draw_keys(torch.tensor(hashes), seed=seed + 1, epoch=epoch),
        draw_keys(torch.tensor(hashes), seed=seed, epoch=epoch + 1),
        *(keys.view(number) for number in range(3)),
        *(keys.position(number) for number in range(3)),
        keys.view(0).position(0),
        keys.position(0).view(0),
    ]
    states = [state for other in others for state in other.states.tolist()]
    assert len(set(states)) == len(hashes) * len(others)


def test_states_are_fixed_for_good() -> None:
    """A change here changes the augmentation of every saved run."""
    keys = draw_keys(torch.tensor([0, 1, -5, 2**63 - 1]), seed=7, epoch=3)
    stream = seeding.child_seed(7, "augment", epoch=3)
    wanted = [plain_mix(plain_mix(number & seeding.MASK_64) ^ stream) for number in (0, 1, -5, 2**63 - 1)]
    assert unsigned(keys.states) == wanted
    assert unsigned(keys.position(2).states)[0] == plain_mix(wanted[0] ^ ((1 << 40) + 2))
    assert unsigned(keys.view(1).states)[3] == plain_mix(wanted[3] ^ ((1 << 41) + 1))


def test_random_keys_follow_their_generator() -> None:
    cpu = torch.device("cpu")
    first = random_keys(5, cpu, torch.Generator().manual_seed(3))
    again = random_keys(5, cpu, torch.Generator().manual_seed(3))
    assert torch.equal(first.states, again.states)
    torch.manual_seed(11)
    ours = random_keys(5, cpu)
    torch.manual_seed(11)
    assert torch.equal(ours.states, random_keys(5, cpu).states)
    assert not torch.equal(ours.states, first.states)


@pytest.mark.parametrize("wrong", [torch.zeros(3), torch.zeros(3, 1, dtype=torch.int64), torch.zeros(3).int()])
def test_wrong_keys_are_refused(wrong: torch.Tensor) -> None:
    with pytest.raises(AugmentError, match=r"wanted \(B,\) torch.int64"):
        draw_keys(wrong, seed=0, epoch=0)


def test_keys_are_a_type_of_their_own() -> None:
    assert isinstance(draw_keys(torch.tensor([1]), seed=0, epoch=0), SampleKeys)
