"""Views depend on seed, epoch, key and number alone, whatever batch a sample is in and whatever draws them."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.bank.transforms import chain, filtered, old_style

from flatout.augment import GPUFlip, draw_keys, split_substructures_batch
from flatout.bank.recipe import ViewRecipe, as_chain
from flatout.bank.seeded import seeded
from flatout.errors import AugmentError

SAMPLES = torch.randn(12, 1, 48, generator=torch.Generator().manual_seed(3))
KEYS = torch.arange(12) * 7919 - 5
RECIPES = {
    "rng": ViewRecipe(filtered, seed=4),
    "global streams": ViewRecipe(old_style, seed=4),
    "chain": ViewRecipe(chain=chain(), seed=4),
    "both": ViewRecipe(old_style, chain(), seed=4),
}


@pytest.mark.parametrize("name", RECIPES)
@settings(max_examples=8)
@given(picked=st.lists(st.integers(0, 11), min_size=1, max_size=8), epoch=st.integers(0, 2))
def test_a_samples_views_do_not_depend_on_its_batch(name: str, picked: list[int], epoch: int) -> None:
    recipe = RECIPES[name]
    whole = recipe.make(SAMPLES, KEYS, epoch)
    part = recipe.make(SAMPLES[picked], KEYS[picked], epoch)
    assert list(part) == recipe.names
    for view in part:
        torch.testing.assert_close(part[view], whole[view][picked], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", RECIPES)
def test_views_differ_by_seed_epoch_key_and_number(name: str) -> None:
    recipe = RECIPES[name]
    made = recipe.make(SAMPLES, KEYS, 0)
    other_seed = ViewRecipe(recipe.transform, recipe.chain, seed=5).make(SAMPLES, KEYS, 0)
    others = [recipe.make(SAMPLES, KEYS, 1), recipe.make(SAMPLES, KEYS + 1, 0), other_seed]
    for other in [*(o["view1"] for o in others), made["view2"]]:
        assert not torch.isclose(other, made["view1"]).flatten(1).all(dim=1).any()


def test_the_chain_draws_as_it_does_on_its_own() -> None:
    keys = draw_keys(KEYS, seed=4, epoch=2)
    made = RECIPES["chain"].make(SAMPLES, KEYS, 2)
    torch.testing.assert_close(made["view2"], chain()(SAMPLES, keys.view(1)))


def test_parts_are_those_of_the_views() -> None:
    made = ViewRecipe(filtered, num_views=3, num_substructures=5).make(SAMPLES, KEYS, 0)
    assert list(made) == ["view1", "view2", "view3", "subs1", "subs2", "subs3"]
    assert torch.equal(made["subs3"], split_substructures_batch(made["view3"], 5))
    assert list(ViewRecipe(filtered, num_substructures=0).make(SAMPLES, KEYS, 0)) == ["view1", "view2"]


def test_a_transforms_result_has_the_samples_dtype() -> None:
    assert filtered(SAMPLES[0].numpy(), np.random.default_rng(0)).dtype == np.float64
    assert RECIPES["rng"].make(SAMPLES, KEYS, 0)["view1"].dtype == torch.float32


def test_whole_numbers_may_become_others() -> None:
    """A share of one must not be cut off, nor a large one fall over the end of its dtype."""
    bytes_ = torch.full((2, 1, 8), 201, dtype=torch.uint8)
    for transform, wanted, dtype in (
        (lambda x: x * 0.5, 100.5, torch.float32),
        (lambda x: x.astype(np.int32) * 2, 402, torch.int32),
        (lambda x: x, 201, torch.uint8),
    ):
        made = ViewRecipe(transform, num_substructures=0).make(bytes_, KEYS[:2], 0)["view1"]
        assert made.dtype == dtype
        assert (made == wanted).all()


def test_only_signals_have_parts() -> None:
    pictures = SAMPLES.view(12, 1, 6, 8)
    with pytest.raises(AugmentError, match=r"got views of \(1, 6, 8\).*num_substructures 0"):
        ViewRecipe(lambda x: x).make(pictures, KEYS, 0)
    made = ViewRecipe(chain=GPUFlip(p=1.0), num_substructures=0).make(pictures, KEYS, 0)
    assert made["view2"].equal(pictures.flip(-1))


def test_a_transform_cannot_change_the_sample_itself() -> None:
    def overwrite(x: Any) -> Any:
        x[:] = 0
        return x

    before = SAMPLES.clone()
    ViewRecipe(overwrite).make(SAMPLES, KEYS, 0)
    assert torch.equal(SAMPLES, before)


def test_the_recipe_has_a_chain_of_its_own() -> None:
    own = chain()
    recipe = ViewRecipe(chain=own)
    own.eval()
    assert not torch.equal(recipe.make(SAMPLES, KEYS, 0)["view1"], SAMPLES)
    assert not own.training


def test_global_streams_are_put_back() -> None:
    def drawn() -> tuple[float, float, float]:
        return random.random(), float(np.random.rand()), torch.rand(1).item()

    random.seed(1)
    np.random.seed(1)
    torch.manual_seed(1)
    expected = drawn()
    random.seed(1)
    np.random.seed(1)
    torch.manual_seed(1)
    with seeded(-5):
        inside = drawn()
    assert drawn() == expected
    with seeded((1 << 64) - 5):
        assert drawn() == inside != expected


@pytest.mark.parametrize(
    "settings",
    [{}, {"transform": old_style, "num_views": 0}, {"transform": old_style, "num_substructures": -1}],
)
def test_impossible_recipes_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(AugmentError):
        ViewRecipe(**settings)


def test_a_transform_that_gives_no_array_is_told() -> None:
    with pytest.raises(AugmentError, match="wanted an array"):
        ViewRecipe(lambda x: "text").make(SAMPLES, KEYS, 0)


def test_as_chain() -> None:
    own = chain()
    assert as_chain(own) is own
    assert isinstance(as_chain(chain), type(own))
    with pytest.raises(AugmentError, match="got a int"):
        as_chain(lambda: 3)
