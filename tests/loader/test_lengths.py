"""Lengths from the index are those of the samples; the rule cuts and rounds them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.loader.ragged_items import RAGGED_FIELDS

from flatout.errors import ConfigError
from flatout.loader.lengths import (
    RaggedRule,
    join_lengths,
    length_axis,
    padded_lengths,
    planned_lengths,
    ragged_shapes,
    refuse_longer,
)
from flatout.store import StoreReader

EVERY_SECOND = np.arange(149, 0, -2)


def test_shapes_are_those_of_the_samples(ragged_store: StoreReader) -> None:
    for name in RAGGED_FIELDS:
        spec = ragged_store.fields[name]
        found = ragged_shapes(ragged_store, spec, EVERY_SECOND)
        assert list(found) == [axis for axis, size in enumerate(spec.shape) if size is None]
        for axis, sizes in found.items():
            assert sizes.tolist() == [ragged_store.read(at)[name].shape[axis] for at in EVERY_SECOND.tolist()]


@pytest.mark.parametrize("rule", [RaggedRule(), RaggedRule(10, multiple=4), RaggedRule(10, to_max=True)])
def test_the_longest_field_counts(ragged_store: StoreReader, rule: RaggedRule) -> None:
    wanted = []
    for at in EVERY_SECOND.tolist():
        sample = ragged_store.read(at)
        names = (*RAGGED_FIELDS, "words")
        longest = max(sample[name].shape[length_axis(ragged_store.fields[name])] for name in names)
        longest = 10 if rule.to_max else min(longest, rule.max_length or longest)
        wanted.append(-(-longest // rule.multiple) * rule.multiple)
    assert padded_lengths(ragged_store, EVERY_SECOND, rule).tolist() == wanted


@given(st.integers(0, 99), st.none() | st.integers(1, 50), st.integers(1, 9), st.booleans())
def test_padding_holds_what_is_kept(length: int, most: int | None, multiple: int, to_max: bool) -> None:
    rule = RaggedRule(most, multiple=multiple, to_max=to_max)
    kept = int(rule.kept(np.int64(length)))
    padded = int(rule.padded(np.int64(kept)))
    assert kept == min(length, most or length)
    assert padded % multiple == 0
    least = most if to_max and most is not None else kept
    assert least <= padded < least + multiple


def test_a_sample_that_is_too_long_is_named_with_the_remedy(ragged_store: StoreReader) -> None:
    lengths = padded_lengths(ragged_store, EVERY_SECOND, RaggedRule())
    longest = int(lengths.max())
    assert planned_lengths(ragged_store, EVERY_SECOND, RaggedRule(), longest).tolist() == lengths.tolist()
    key = ragged_store.keys()[EVERY_SECOND[np.argmax(lengths)]]
    with pytest.raises(ConfigError, match=f"sample '{key}'.*max_sequence_length"):
        planned_lengths(ragged_store, EVERY_SECOND, RaggedRule(), longest - 1)
    with pytest.raises(ConfigError, match=r"'b' \(and 1 others\) takes 9 steps"):
        refuse_longer(np.array([1, 9, 8]), 7, "abc".__getitem__)


def test_nothing_ragged_is_refused() -> None:
    with pytest.raises(ConfigError, match="ragged"):
        join_lengths({}, RaggedRule())


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"max_length": 0}, "max_length 0: at least 1"),
        ({"max_length": -5}, "max_length -5"),
        ({"crop": "middle"}, "crop 'middle': wanted one of head, tail, random"),
        ({"multiple": 0}, "multiple 0: at least 1"),
    ],
)
def test_a_rule_that_nothing_follows_is_refused(settings: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        RaggedRule(**settings)
