"""Forward, backward, optimiser and copies to the device, as spans of the training thread."""

from __future__ import annotations

import functools
import threading
from time import perf_counter
from typing import Any

import torch
from torch import nn
from torch.optim import optimizer

from flatout.doctor.child.session import SESSION
from flatout.doctor.child.watch import WATCH, timed
from flatout.doctor.patches.modules import CALLS, count_call


def patch_compute() -> None:
    """Change the classes; every subclass and every name bound after the import of torch is seen."""
    nn.Module.__call__ = _watched_call(nn.Module.__call__)  # type: ignore[method-assign]
    optimizer.register_optimizer_step_pre_hook(_before_step)
    optimizer.register_optimizer_step_post_hook(_after_step)
    for name in ("to", "cuda"):
        setattr(torch.Tensor, name, _watched_copy(getattr(torch.Tensor, name)))


def patch_backward() -> None:
    """`Tensor.backward` calls it by this name; who is followed by it is trained on."""
    torch.autograd.backward = _watched_backward(torch.autograd.backward)


def _watched_call(original: Any) -> Any:
    """The outermost module only; inner ones cost two look-ups."""
    watch, stack, is_compiling, identify = WATCH, WATCH.stack, torch.compiler.is_compiling, threading.get_ident

    @functools.wraps(original)
    def __call__(self: nn.Module, *args: Any, **kwargs: Any) -> Any:  # noqa: N807
        if is_compiling() or not watch.is_on or identify() != watch.thread:
            return original(self, *args, **kwargs)
        if stack and stack[-1] == "forward":
            if CALLS.is_counting:
                return count_call(original, self, args, kwargs)
            return original(self, *args, **kwargs)
        stack.append("forward")
        if CALLS.keeps:
            CALLS.keep(self, args, kwargs)
        start = perf_counter()
        try:
            if CALLS.is_counting:
                return count_call(original, self, args, kwargs)
            return original(self, *args, **kwargs)
        finally:
            watch.add(("forward", start, perf_counter()))
            if stack:
                stack.pop()

    return __call__


def _watched_backward(original: Any) -> Any:
    spanned = timed("backward", original)

    @functools.wraps(original)
    def backward(*args: Any, **kwargs: Any) -> Any:
        if WATCH.is_on:
            SESSION.note_backward()
        return spanned(*args, **kwargs)

    return backward


_started: list[float] = []


def _before_step(optimiser: Any, args: Any, kwargs: Any) -> None:
    if WATCH.is_here():
        SESSION.note_optimiser(optimiser)
        WATCH.stack.append("optimiser")
        _started.append(perf_counter())


def _after_step(optimiser: Any, args: Any, kwargs: Any) -> None:
    if WATCH.is_here() and _started:
        WATCH.add(("optimiser", _started.pop(), perf_counter()))
        if WATCH.stack:
            WATCH.stack.pop()


def _watched_copy(original: Any) -> Any:
    """Only a change of device counts, and only towards it; the other way is a wait for the device."""
    watch, is_compiling = WATCH, torch.compiler.is_compiling

    @functools.wraps(original)
    def copy(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if is_compiling() or not watch.is_here():
            return original(self, *args, **kwargs)
        start = perf_counter()
        moved = original(self, *args, **kwargs)
        if moved is not self and self.is_cpu and not moved.is_cpu:
            watch.add(("copy", start, perf_counter()))
        return moved

    return copy
