"""SampleDraws: a transform draws by seed, epoch and sample; in workers too, and after a resume."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.train.test_run import is_equal, weights_of
from tests.train.tiny import SaveEach, Tiny

from flatout.train import Sample, TaskData
from flatout.train.sample_draws import SampleDraws

Make = Callable[..., dict[str, Any]]


class Jitter:
    def __call__(self, sample: Sample) -> Sample:
        return {**sample, "x": sample["x"] + np.random.normal() + torch.rand(())}


class Jittered(Tiny):
    def sample_transform(self, config: Any, data: TaskData) -> Jitter:
        return Jitter()


def drawn(seed: int, epoch: int, key: int) -> float:
    draws = SampleDraws(Jitter(), seed)
    draws.set_epoch(epoch)
    return float(draws({"x": torch.zeros(()), "key": torch.tensor(key)})["x"])


def test_draws_follow_from_seed_epoch_and_sample() -> None:
    places = [(0, 0, 5), (1, 0, 5), (0, 1, 5), (0, 0, 6), (0, 0, -5), (0, 0, -(2**63))]
    found = [drawn(*place) for place in places]
    assert len(set(found)) == len(places)
    assert [drawn(*place) for place in reversed(places)] == found[::-1]


def test_whoever_else_draws_notices_nothing() -> None:
    np.random.seed(3)
    wanted = np.random.random(2)
    np.random.seed(3)
    first = np.random.random()
    drawn(0, 0, 5)
    assert [first, np.random.random()] == wanted.tolist()


OWN = {"task": "tests.train.test_sample_draws:Jittered", "use_fast_loader": False}


def test_runs_of_one_seed_draw_the_same(make_config: Make) -> None:
    """Also by two workers that live for both epochs."""
    alone = weights_of(make_config(**OWN))
    assert is_equal(alone, weights_of(make_config(**OWN)))
    assert is_equal(alone, weights_of(make_config(**OWN, num_workers=2, persistent_workers=True)))
    assert not is_equal(alone, weights_of(make_config(task="tests.train.tiny:Tiny", use_fast_loader=False)))


@pytest.mark.parametrize("stop", [1, 4, 6])
def test_a_resumed_run_draws_what_the_whole_one_did(make_config: Make, tmp_path: Path, stop: int) -> None:
    config = make_config(**OWN)
    whole = weights_of(config, callbacks=[SaveEach(tmp_path)])
    assert is_equal(whole, weights_of(config, resume=tmp_path / f"batch{stop}.ckpt"))
