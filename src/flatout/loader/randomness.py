"""Random states: put aside and brought back, changed on purpose, and watched for use."""

from __future__ import annotations

import ctypes
import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from flatout.loader.insides import insides

MT19937_BYTES = 2500
"""624 words and a position."""
GENERATORS = (random.Random, np.random.Generator, np.random.RandomState, torch.Generator)


@contextmanager
def random_states_kept() -> Iterator[None]:
    """Whatever is drawn inside, the user's streams go on as if nothing had been."""
    python, numpy, cpu = random.getstate(), np.random.get_state(), torch.get_rng_state()
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)
        torch.set_rng_state(cpu)


def seed_all(seed: int) -> None:
    """Another state for Python, NumPy and torch (on the CPU: a dataset has no business on a GPU)."""
    random.seed(seed)
    np.random.seed(seed)
    torch.default_generator.manual_seed(seed)


class RandomWatch:
    """Tells whether random numbers were drawn: a low probability shows here before it shows in an item.

    One look takes about 12 us; generators that the dataset itself holds or names cost a few more each.
    """

    def __init__(self, dataset: object) -> None:
        self._dataset = dataset
        self._num_readings = 0
        self._own = _generators(dataset)

    def look(self) -> dict[str, Any]:
        """The state of every known source of random numbers, by name."""
        states = {
            "random": random.getstate(),
            "numpy.random": _numpy_state(np.random.get_bit_generator()),  # type: ignore[attr-defined]
            "torch": torch.default_generator.get_state().numpy().tobytes(),
        }
        states |= {f"the dataset's {name}": _state(generator) for name, generator in self._own.items()}
        return states

    def used_since(self, before: dict[str, Any]) -> str:
        """The first source that was drawn from since that look; empty if none was."""
        after = self.look()
        used = next((name for name in after if after[name] != before.get(name)), "")
        self._num_readings += 1
        if not self._num_readings & (self._num_readings - 1):  # 1, 2, 4, ...: a reading may have made one
            self._own = _generators(self._dataset)
        return used


def _numpy_state(generator: Any) -> Any:
    if type(generator) is np.random.MT19937:  # its `state` takes 40 us to build
        return ctypes.string_at(generator.ctypes.state_address, MT19937_BYTES)
    return _frozen(generator.state)


def _state(generator: Any) -> Any:
    if isinstance(generator, random.Random):
        return generator.getstate()
    if isinstance(generator, torch.Generator):
        return generator.get_state().numpy().tobytes()
    if isinstance(generator, np.random.RandomState):
        return _frozen(generator.get_state(legacy=False))
    return _numpy_state(generator.bit_generator)


def _frozen(state: Any) -> Any:
    """A state that can be compared: arrays as bytes."""
    if isinstance(state, dict):
        return tuple((name, _frozen(value)) for name, value in state.items())
    return state.tobytes() if isinstance(state, np.ndarray) else state


def _generators(dataset: object) -> dict[str, Any]:
    """Every random generator that the dataset's items may be drawn from, by where it was found."""
    known = (random._inst, np.random.mtrand._rand, torch.default_generator)
    found: dict[str, Any] = {}
    for path, value in insides(dataset):
        if not isinstance(value, GENERATORS) or isinstance(value, random.SystemRandom):
            continue
        if not any(value is each for each in known):
            found[path if path not in found else f"{path} ({len(found)})"] = value
    return found
