"""Random states: put aside and brought back, changed on purpose, and watched for use."""

from __future__ import annotations

import ctypes
import functools
import random
from collections.abc import Iterator
from contextlib import contextmanager
from types import FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch

MAX_LOOKED_AT = 10_000
"""Objects inside a dataset that are searched for generators of its own."""
MAX_DEPTH = 8
MT19937_BYTES = 2500
"""624 words and a position."""


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

    One look takes about 12 us; generators that the dataset itself holds cost a few more each.
    """

    def __init__(self, dataset: object) -> None:
        self._own = dict(_generators(dataset))

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
        return next((name for name in after if after[name] != before.get(name)), "")


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


def _generators(dataset: object) -> Iterator[tuple[str, Any]]:
    """Every random generator that hangs on the dataset's attributes, its transforms' among them."""
    seen: set[int] = set()
    waiting: list[tuple[str, Any, int]] = [("", dataset, 0)]
    while waiting and len(seen) < MAX_LOOKED_AT:
        name, value, depth = waiting.pop()
        if id(value) in seen or depth > MAX_DEPTH:
            continue
        seen.add(id(value))
        kinds = (random.Random, np.random.Generator, np.random.RandomState, torch.Generator)
        if isinstance(value, kinds) and not isinstance(value, random.SystemRandom):
            yield name.lstrip("."), value
        else:
            waiting += [(f"{name}{step}", inner, depth + 1) for step, inner in _inside(value)]


def _inside(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, type | ModuleType | str | bytes | np.ndarray | torch.Tensor):
        return
    if isinstance(value, list | tuple):
        yield from ((f"[{at}]", item) for at, item in enumerate(value[:64]))
    elif isinstance(value, dict):
        yield from ((f"[{key!r}]", item) for key, item in [*value.items()][:64])
    elif isinstance(value, functools.partial):
        yield from (("", value.func), ("", value.args), ("", value.keywords))
    elif isinstance(value, MethodType):
        yield "", value.__self__
    elif isinstance(value, FunctionType):
        yield from (("", cell.cell_contents) for cell in value.__closure__ or () if _is_filled(cell))
    else:
        yield from ((f".{name}", item) for name, item in getattr(value, "__dict__", {}).items())


def _is_filled(cell: Any) -> bool:
    try:
        return bool(cell.cell_contents is not None)
    except ValueError:  # a variable that has no value yet
        return False
