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


class ByEpoch(Made):
    """Augmentation that is a function of seed, epoch and index: no known stream is drawn from."""

    def __init__(self) -> None:
        super().__init__(self.of)
        self.epoch = 4

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch
        self.reshuffled = True

    def of(self, at: int) -> tuple[int, float]:
        return at, float(np.random.default_rng((7, self.epoch, at)).random())


class Wrapped(Made):
    """A dataset around another, with no epoch of its own."""

    def __init__(self, inner: Any) -> None:
        super().__init__(inner.__getitem__)
        self.inner = inner


class Shared(Made):
    """The epoch where worker processes see it, too."""

    def __init__(self) -> None:
        super().__init__(lambda at: (at, 0.5 * int(self._epoch)))
        self._epoch = torch.zeros((), dtype=torch.int64)

    def set_epoch(self, epoch: int) -> None:
        self._epoch.fill_(epoch)


class Late(Made):
    """Another picture from the tenth epoch on, and an epoch that is nothing but an attribute."""

    def __init__(self) -> None:
        super().__init__(lambda at: (at, self.epoch >= 10))
        self.epoch = 0


@pytest.mark.parametrize("make", [ByEpoch, lambda: Wrapped(ByEpoch()), Shared, Late])
def test_another_picture_in_each_epoch_is_refused(make: Any, tmp_path: Path) -> None:
    dataset = make()
    before = [vars(part).copy() for part in (dataset, getattr(dataset, "inner", dataset))]
    with pytest.raises(
        CacheError, match=r"item \d+ is not the same in every epoch: field 'target' differed"
    ) as caught:
        cached(dataset, tmp_path / "cache", check=True)
    assert "transform=" in str(caught.value)
    assert not (tmp_path / "cache").exists()
    assert [vars(part) for part in (dataset, getattr(dataset, "inner", dataset))] == before, "it is put back"
    assert int(getattr(dataset, "_epoch", 0)) == 0


def test_an_existing_cache_is_looked_at_in_another_epoch(tmp_path: Path) -> None:
    """Filled with check=False, or before this was looked at."""
    list(cached(ByEpoch(), tmp_path / "cache"))
    with pytest.raises(CacheError, match="not the same in every epoch"):
        cached(ByEpoch(), tmp_path / "cache", check=True)


def test_a_dataset_whose_items_do_not_follow_its_epoch_is_cached(tmp_path: Path) -> None:
    class Told(Made):
        epoch = None

        def set_epoch(self, epoch: int) -> None:
            if epoch >= 100:
                raise ValueError("there are 100 epochs")
            self.epoch = epoch  # type: ignore[assignment]

    dataset = Told(lambda at: at)
    chosen = cached(dataset, tmp_path / "cache", check=True)
    assert "epoch" not in vars(dataset)
    chosen.set_epoch(3)
    assert (dataset.epoch, chosen[5]) == (3, 5)


MODULE_RANDOM = np.random.default_rng(0)
MADE_LATE: list[Any] = []
PAIR = (random.Random(1), random.Random(2))


def flipped_rarely(at: int) -> tuple[int, bool]:
    return at, bool(MODULE_RANDOM.random() < 1e-9)


class NamesIt(Made):
    """Its own code draws, by a function of the module."""

    def __getitem__(self, at: int) -> Any:
        return flipped_rarely(at)


class OfClass(Made):
    generator = random.Random(3)

    def __getitem__(self, at: int) -> Any:
        return at, self.generator.random() < 1e-9


class MadeLate(Made):
    """The generator is there from the first reading on."""

    def __init__(self) -> None:
        super().__init__(lambda at: at)
        self.generator: Any = None

    def __getitem__(self, at: int) -> Any:
        if self.generator is None:
            self.generator = np.random.default_rng(1)
        return at, bool(self.generator.random() < 1e-9)


def made_late_in_the_module(at: int) -> Any:
    if not MADE_LATE:
        MADE_LATE.append(random.Random(2))
    return at, MADE_LATE[0].random() < 1e-9


def by_default(at: int, draw: Any = MODULE_RANDOM.random) -> Any:
    return at, bool(draw() < 1e-9)


def second_of_two(at: int, *, first: Any = PAIR[0], second: Any = PAIR[1]) -> Any:
    return at, second.random() < 1e-9


@pytest.mark.parametrize(
    "dataset",
    [
        Made(flipped_rarely),
        NamesIt(lambda at: at),
        OfClass(lambda at: at),
        MadeLate(),
        Made(made_late_in_the_module),
        Made(by_default),
        Made(second_of_two),
    ],
    ids=["function", "method", "class", "late", "late in the module", "default", "second of two"],
)
def test_generators_that_the_code_names_are_watched(dataset: Any, tmp_path: Path) -> None:
    with pytest.raises(CacheError, match=r"drew random numbers from the dataset's ") as caught:
        cached(dataset, tmp_path / "cache", check=True)
    assert "transform=" in str(caught.value)
