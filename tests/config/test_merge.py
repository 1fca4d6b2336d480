"""A later layer wins, key by key, and layers stay as they are."""

from __future__ import annotations

import copy
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from flatout.config.layer import Layer, leaves, lookup, put
from flatout.config.merge import merge, winner

NESTED = st.recursive(
    st.integers(),
    lambda inner: st.dictionaries(st.sampled_from("abc"), inner, min_size=1, max_size=3),
    max_leaves=6,
).filter(lambda value: isinstance(value, dict))


@settings(deadline=None)
@given(st.lists(NESTED, max_size=4))
def test_every_leaf_of_the_strongest_layer_stands(given_values: list[dict[str, Any]]) -> None:
    layers = [Layer(str(number), values) for number, values in enumerate(given_values)]
    before = copy.deepcopy(given_values)

    merged = merge(layers)

    assert given_values == before
    for path, value in leaves(merged):
        strongest = winner(layers, path)
        assert strongest is not None
        assert lookup(strongest.values, path) == value
    if layers:
        assert all(lookup(merged, path) == value for path, value in leaves(layers[-1].values))


@settings(deadline=None)
@given(NESTED)
def test_merging_one_layer_twice_changes_nothing(values: dict[str, Any]) -> None:
    layer = Layer("x", values)

    assert merge([layer]) == merge([layer, layer]) == values


def test_a_mapping_and_a_plain_value_replace_each_other() -> None:
    plain, split = Layer("a", {"manifest": "x.csv"}), Layer("b", {"manifest": {"train": "t.csv"}})

    assert merge([plain, split]) == {"manifest": {"train": "t.csv"}}
    assert merge([split, plain]) == {"manifest": "x.csv"}


def test_null_is_a_value() -> None:
    assert merge([Layer("a", {"prefetch_factor": 4}), Layer("b", {"prefetch_factor": None})]) == {
        "prefetch_factor": None
    }


@settings(deadline=None)
@given(NESTED)
def test_leaves_and_put_are_each_others_inverse(values: dict[str, Any]) -> None:
    rebuilt: dict[str, Any] = {}
    for path, value in leaves(values):
        put(rebuilt, path, value)

    assert rebuilt == values
