"""Datasets that are not deterministic are refused, and nobody's random numbers are touched."""

from __future__ import annotations

import random
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.loader.caching import (
    Listed,
    Made,
    cached,
)
from tests.loader.caching import items as items

from flatout.errors import CacheError


def with_own_generator(generator: Any) -> Any:
    dataset = Made(lambda at: at)
    dataset.generator = generator  # type: ignore[attr-defined]
    dataset.make = lambda at: (at, float(np.asarray(generator.random() < 1e-9)))
    return dataset


RANDOM = {
    "python": (Made(lambda at: random.random()), "'input' differed .*drew from random"),
    "numpy": (Made(lambda at: np.random.rand(3)), "'input' differed .*drew from numpy.random"),
    "torch": (Made(lambda at: {"x": 1, "noise": torch.rand(3)}), "'noise' differed .*drew from torch"),
    "entropy": (Made(lambda at: np.random.default_rng().random()), "'input' differed"),
    "time": (Made(lambda at: (at, time.time_ns())), "'target' differed"),
    "shape": (Made(lambda at: torch.zeros(random.randrange(1, 1 << 20))), "had shape"),
    "structure": (Made(lambda at: at if random.random() < 0.5 else (at,)), "drew|structure"),
    "rarely": (Made(lambda at: (at, random.random() < 1e-9)), "drew random numbers from random"),
    "rarely, numpy": (Made(lambda at: (at, np.random.rand() < 1e-9)), "from numpy.random"),
    "own generator": (with_own_generator(np.random.default_rng(0)), "from the dataset's generator"),
    "own state": (with_own_generator(np.random.RandomState(0)), "from the dataset's generator"),
    "own random": (with_own_generator(random.Random(0)), "from the dataset's generator"),
}


@pytest.mark.parametrize("name", RANDOM)
def test_a_random_dataset_is_refused(name: str, tmp_path: Path) -> None:
    dataset, words = RANDOM[name]
    with pytest.raises(CacheError, match=words) as caught:
        cached(dataset, tmp_path / "cache", check=True)
    assert "transform=" in str(caught.value)


def test_the_check_leaves_the_user_s_random_streams_alone(tmp_path: Path) -> None:
    random.seed(1)
    np.random.seed(2)
    torch.manual_seed(3)
    wanted = [random.random(), np.random.rand(), float(torch.rand(()))]
    random.seed(1)
    np.random.seed(2)
    torch.manual_seed(3)
    cached(Listed([1, 2, 3]), tmp_path / "cache", check=True)[0]
    with pytest.raises(CacheError):
        cached(Made(lambda at: torch.rand(1)), tmp_path / "other", check=True)
    assert [random.random(), np.random.rand(), float(torch.rand(()))] == wanted


def test_an_item_that_draws_is_refused_when_it_is_met(tmp_path: Path) -> None:
    dataset = Made(lambda at: (at, random.random() if at == 500 else 0.0), 1000)
    chosen = cached(dataset, tmp_path / "cache", check=True, num_checked=2)
    assert chosen[499] == (499, 0.0)
    with pytest.raises(CacheError, match="item 500 drew random numbers from random"):
        chosen[500]


def test_setting_something_up_may_draw_once(tmp_path: Path) -> None:
    weights: list[torch.Tensor] = []

    def make(at: int) -> int:
        if not weights:
            weights.append(torch.rand(3))
        return at

    assert cached(Made(make), tmp_path / "cache", check=True)[3] == 3
    weights.clear()
    assert cached(Made(make), tmp_path / "cache", check=True)[4] == 4


def test_two_results_for_one_item_are_an_error(tmp_path: Path) -> None:
    one = cached(Made(lambda at: (at, 1)), tmp_path / "cache")
    other = cached(Made(lambda at: (at, 2)), tmp_path / "cache")
    one[3], other[3]
    one.close()
    with pytest.raises(CacheError, match="item 3 was decoded twice with different results"):
        other.close()
    assert cached(Made(lambda at: (at, 1)), tmp_path / "cache")[3] == (3, 1)
