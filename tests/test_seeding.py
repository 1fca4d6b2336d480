"""Child seeds are fixed for ever, 64 bits wide, and differ in every argument."""

from __future__ import annotations

import itertools
import re

from hypothesis import assume, given, settings
from hypothesis import strategies as st

import flatout.seeding as seeding
from flatout.seeding import child_seed, splitmix64

law = settings(deadline=None)
ARGUMENTS = st.tuples(
    st.integers(0, 2**64 - 1), st.sampled_from(["order", "augment", "split"]), *[st.integers(0, 2**32)] * 3
)


def child(arguments: tuple[int, str, int, int, int]) -> int:
    seed, purpose, epoch, rank, worker = arguments
    return child_seed(seed, purpose, epoch=epoch, rank=rank, worker=worker)


def test_vectors_never_change() -> None:
    assert child_seed(0, "order") == 15033423080513087979
    assert child_seed(7, "order", epoch=3) == 7828632220986144275
    assert child_seed(7, "augment", epoch=3, rank=1, worker=2) == 12230317884222972416


def test_documented_vectors_are_the_real_ones() -> None:
    documented = re.findall(r"(child_seed\(.*\)) +(\d+)", seeding.__doc__ or "")
    assert len(documented) == 3
    for call, value in documented:
        assert eval(call) == int(value)


def test_splitmix_gives_the_published_sequence() -> None:
    step = 0x9E3779B97F4A7C15
    drawn = [splitmix64(1234567 + i * step) for i in range(3)]
    assert drawn == [6457827717110365317, 3203168211198807973, 9817491932198370423]


@law
@given(ARGUMENTS, ARGUMENTS)
def test_other_arguments_give_another_seed(one: tuple, other: tuple) -> None:
    assume(one != other)
    assert child(one) != child(other)


@law
@given(ARGUMENTS, st.integers(0, 4), st.integers(1, 5))
def test_one_changed_argument_gives_another_seed(arguments: tuple, place: int, by: int) -> None:
    changed = list(arguments)
    changed[place] = f"{changed[place]}{by}" if place == 1 else (changed[place] + by) % 2**64
    assert child(tuple(changed)) != child(arguments)
    assert 0 <= child(arguments) < 2**64


@law
@given(st.integers())
def test_any_integer_is_a_seed(seed: int) -> None:
    assert child_seed(seed, "order") == child_seed(seed % 2**64, "order")
    assert 0 <= splitmix64(seed) < 2**64


def test_bits_of_neighbouring_epochs_are_independent() -> None:
    seeds = [child_seed(1, "order", epoch=epoch) for epoch in range(2000)]
    flips = [bin(a ^ b).count("1") for a, b in itertools.pairwise(seeds)]
    assert 31 < sum(flips) / len(flips) < 33  # 32 expected; its standard error is 0.09
