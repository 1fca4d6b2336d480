"""Forward and backward of batches cut to shorter samples: what padding costs, and not how long it is."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from time import perf_counter
from typing import Any

import torch
from torch import nn

from flatout.doctor.ceiling.batches import tensors_of
from flatout.doctor.ceiling.sources import ResidentSource
from flatout.doctor.patches.modules import CALLS, Call
from flatout.doctor.workers.padding import Padded, padded_of
from flatout.loader.randomness import random_states_kept

LEAST_PADDING = 0.2
"""Below this part of a batch nothing is measured."""
REPEATS = 2
"""Calls of each length. The first one counts, too: a training meets new lengths again and again, and what a
library prepares for each is part of its steps. Without it gains were foretold up to 1.5 times too high."""
SHORTER_S = 6.0
"""No longer length is begun after this time."""


class CallSource(ResidentSource):
    """Resident batches, while the calls of the script's model are kept."""

    name = "call"

    def begin(self) -> None:
        """Keep them from here on."""
        CALLS.kept, CALLS.keeps = [], True

    def end(self) -> None:
        """No longer."""
        CALLS.keeps = False


def padded_batches(batches: Sequence[Any]) -> list[Padded]:
    """The lengths of those that are padded, if that is a good part of all."""
    found = [each for batch in batches if (each := padded_of(batch)) is not None]
    if not found or fmean(each.padding_share for each in found) < LEAST_PADDING:
        return []
    return found


def measure_shorter(padded: Sequence[Padded]) -> dict[str, float]:
    """What forward and backward take of batches cut to their longest sample, and to their mean; of uncut ones.

    Beside them the shares of the length that are cut. The kept call is run again for it, on its inputs, cut.
    """
    found = {
        "trim_share": fmean(each.trim_share for each in padded),
        "sort_share": fmean(each.padding_share for each in padded),
    }
    calls, CALLS.kept = CALLS.kept, []
    call = max(calls, key=lambda each: _num_parameters(each.module), default=None)
    if call is None or CALLS.is_compiled:  # a compiler would begin anew for each length
        return found
    try:
        with random_states_kept(), torch.enable_grad():
            return found | _ratios(call, padded)
    except Exception:  # a model for one length only, or of which nothing is known
        return found


def _num_parameters(module: nn.Module) -> int:
    return sum(each.numel() for each in module.parameters())


def _ratios(call: Call, padded: Sequence[Padded]) -> dict[str, float]:
    """Shorter calls beside whole ones: whoever else is busy meanwhile slows both down."""
    length, end = padded[0].length, perf_counter() + SHORTER_S
    _seconds(call)
    times: dict[str, list[tuple[float, float]]] = {"trimmed_ratio": [], "sorted_ratio": []}
    for each in padded:
        for name, wanted in (("trimmed_ratio", each.longest), ("sorted_ratio", round(each.mean))):
            if perf_counter() < end and each.length == length:
                shorter = _cut(call, length, max(1, wanted))
                times[name] += [(_seconds(shorter), _seconds(call)) for _ in range(REPEATS)]
    return {
        name: sum(short_s for short_s, _ in pairs) / sum(whole_s for _, whole_s in pairs)
        for name, pairs in times.items()
        if pairs
    }


def _cut(call: Call, length: int, wanted: int) -> Call:
    """The same call with every dimension of that length cut.

    Raises:
        ValueError: there is none.
    """
    num_samples = next((len(each) for each in tensors_of((call.args, call.kwargs)) if each.dim()), 0)
    num_cut = 0

    def cut(value: Any) -> Any:
        nonlocal num_cut
        if isinstance(value, torch.Tensor):
            for dim in range(int(value.dim() > 0 and len(value) == num_samples), value.dim()):
                if value.shape[dim] == length:
                    value, num_cut = value.narrow(dim, 0, wanted), num_cut + 1
            return value.contiguous()
        if type(value) in (list, tuple):
            return type(value)(cut(each) for each in value)
        return {name: cut(each) for name, each in value.items()} if type(value) is dict else value

    shorter = Call(call.module, cut(call.args), cut(call.kwargs))
    if not num_cut:
        raise ValueError(f"no input of the model has a dimension of {length}")
    return shorter


def _seconds(call: Call) -> float:
    """Forward and backward once, without touching anybody's gradients."""
    parameters = [each for each in call.module.parameters() if each.requires_grad]
    start = perf_counter()
    outputs = [each for each in tensors_of(call.module(*call.args, **call.kwargs)) if each.requires_grad]
    total = torch.stack([each.float().sum() for each in outputs]).sum()
    torch.autograd.grad(total, parameters, allow_unused=True)
    float(total.detach())  # a device computes behind the host's back
    return perf_counter() - start
