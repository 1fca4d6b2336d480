"""Modules that are run more than once a step on the same input, counted in a few steps."""

from __future__ import annotations

from time import perf_counter
from typing import Any, NamedTuple

import torch
from torch import nn

from flatout.doctor.patches.frames import users_place

COUNTED_STEPS = range(2, 5)
"""Steps, from 0, whose module calls are counted one by one; they are part of the warm-up."""


class Call(NamedTuple):
    """One call of a module, to be run again."""

    module: nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


class Calls:
    """Calls of each module by input. Inputs are held until the step ends, or another would get their id."""

    def __init__(self) -> None:
        self.is_counting = False
        self.has_attention = False
        self.is_compiled = False
        self.is_autocast = False
        self._held: dict[tuple[int, int], tuple[nn.Module, Any, list[float]]] = {}
        self.repeats: dict[int, tuple[nn.Module, int, float]] = {}
        """By module: the module, calls beyond the first, and their seconds."""
        self._places: dict[int, tuple[str, int]] = {}
        """By module: the user's line that called it again."""
        self.num_steps = 0
        self.keeps = False
        """Whether outermost calls are kept."""
        self.kept: list[Call] = []

    def keep(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """A call of an outermost module that is trained."""
        if torch.is_grad_enabled():
            self.kept.append(Call(module, args, kwargs))

    def add(self, module: nn.Module, given: Any, seconds: float) -> None:
        """One call of one module."""
        times = self._held.setdefault((id(module), id(given)), (module, given, []))[2]
        times.append(seconds)
        if len(times) > 1:
            self._places[id(module)] = users_place()
        self.has_attention = self.has_attention or "attention" in type(module).__name__.lower()
        self.is_compiled = self.is_compiled or is_compiled(module)
        self.is_autocast = self.is_autocast or torch.is_autocast_enabled(_device_type(given))

    def end_step(self) -> None:
        """Keep the repeats, let the inputs go."""
        if not self.is_counting:
            return
        for module, _, seconds in self._held.values():
            if len(seconds) > 1:
                _, number, total = self.repeats.get(id(module), (module, 0, 0.0))
                self.repeats[id(module)] = (module, number + len(seconds) - 1, total + sum(seconds[1:]))
        self._held.clear()
        self.num_steps += 1

    def forget(self) -> None:
        """Another training begins: what was counted in the one before is not its own."""
        self._held.clear()
        self.repeats.clear()
        self._places.clear()
        self.num_steps = 0

    def worst(self) -> dict[str, Any] | None:
        """The module whose repeated calls take longest, as `facts['repeated_forward']` gives it."""
        if not self.repeats or not self.num_steps:
            return None
        module, number, seconds = max(self.repeats.values(), key=lambda each: each[2])
        file, line = self._places.get(id(module), ("", 0))
        module = getattr(module, "_orig_mod", module)  # what torch.compile wraps
        return {
            "module": type(module).__name__,
            "calls_per_step": 1 + number / self.num_steps,
            "seconds_per_step": seconds / self.num_steps,
            "file": file,
            "line": line,
        }


def is_compiled(module: nn.Module) -> bool:
    """Whether torch.compile made it, or compiled it in place."""
    is_wrapped = type(module).__name__ == "OptimizedModule"
    return is_wrapped or getattr(module, "_compiled_call_impl", None) is not None


def _device_type(given: Any) -> str:
    return given.device.type if isinstance(given, torch.Tensor) else "cpu"


CALLS = Calls()


def count_call(original: Any, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run the module's call and count it; what runs without gradients is no training."""
    if not torch.is_grad_enabled() or not args:
        return original(module, *args, **kwargs)
    start = perf_counter()
    result = original(module, *args, **kwargs)
    CALLS.add(module, args[0], perf_counter() - start)
    return result
