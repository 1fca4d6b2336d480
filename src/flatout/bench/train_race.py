"""The race of one task: standard path and store take turns; store and resident batches meet in pairs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import islice
from statistics import median
from typing import Any

import torch

from flatout.bench.train_contestant import Entry
from flatout.bench.train_monitor import seconds_per_step
from flatout.bench.train_pairs import Pairs, rate, ratio_of, run_pairs, step_s
from flatout.bench.train_process import Contestant
from flatout.bench.train_rounds import Asked, Figures
from flatout.config import load_config
from flatout.errors import FlatoutError
from flatout.train.loaders import open_loaders
from flatout.train.task import Batch, load_task

STANDARD, STANDARD_WORKERS, FAST, RESIDENT = "standard", "standard_2_workers", "fast", "resident"
NUM_WORKERS = 2
NUM_BATCHES = 16
"""Batches of a round: so many are resident."""
LEAST_STEPS = 4
MOST_ROUNDS = 60
NUM_COMPARED = 3
"""Batches that are compared before the race."""
FROM_GUIDE = (
    "prefetch_factor",
    "persistent_workers",
    "pin_memory",
    "cache_in_memory",
    "use_gpu_augment",
    "cache_config.enable_cache",
)
"""What the standard path takes over from the guide's own start; model and batches are the same for all."""


@dataclass(frozen=True)
class RaceSetting:
    """How long to measure, and what with."""

    seconds: float
    rounds: int
    accelerator_ms: float | None
    say: Callable[[str], None]


def race(config: Mapping[str, Any], setting: RaceSetting) -> dict[str, Any]:
    """Every figure of one task.

    Raises:
        FlatoutError: a contestant failed, or the paths gave different batches.
    """
    compare_paths(config)
    made = entries(config, setting)
    found = {name: Contestant(name, made[name].to_json()) for name in (STANDARD, STANDARD_WORKERS, FAST)}
    run_in_turns(list(found.values()), setting)
    pairs = run_pairs(made[RESIDENT], found[FAST].rounds[0]["steps"], setting.seconds, setting.say)
    default = load_config(config, overrides={"use_fast_loader": True})
    return result(found, pairs, default.monitor.update_frequency, setting.accelerator_ms)


def entries(config: Mapping[str, Any], setting: RaceSetting) -> dict[str, Entry]:
    """The contestants' settings: those of the task for all; the standard path's loader as its guide began."""
    guide = load_task(load_config(config)).before
    standard = {"use_gpu_augment": False, "cache_in_memory": False, "use_fast_loader": False}
    standard |= {name: guide[name] for name in FROM_GUIDE if name in guide}
    fast = {"use_fast_loader": True}
    ms = setting.accelerator_ms
    return {
        STANDARD: Entry(config, {**standard, "num_workers": 0}, accelerator_ms=ms),
        STANDARD_WORKERS: Entry(config, {**standard, "num_workers": NUM_WORKERS}, accelerator_ms=ms),
        FAST: Entry(config, fast, accelerator_ms=ms),
        RESIDENT: Entry(config, fast, is_alternating=True, accelerator_ms=ms),
    }


def compare_paths(config: Mapping[str, Any], num_batches: int = NUM_COMPARED) -> None:
    """The first batches of both paths, before augmentation.

    Raises:
        FlatoutError: they differ, so that the race would compare different work.
    """
    paths = [
        open_loaders(load_config(config, overrides={"use_fast_loader": is_fast, "num_workers": 0}), config)
        for is_fast in (True, False)
    ]
    try:
        both = zip(*(islice(path.splits["train"], num_batches) for path in paths), strict=True)
        for number, (fast, standard) in enumerate(both):
            if differing := _differing(fast, standard):
                raise FlatoutError(f"batch {number} of the two paths differs in {', '.join(differing)}")
    finally:
        for path in paths:
            path.close()


def run_in_turns(contestants: Sequence[Contestant], setting: RaceSetting) -> None:
    """Round after round, each starting with another contestant, all of them over the same batches.

    Raises:
        FlatoutError: one failed, or had other samples in a round.
    """
    with ExitStack() as stack:
        for each in contestants:
            stack.enter_context(each.running())
        steps_s = [step_s(each.run(Asked(steps=2))) for each in contestants]
        steps, num_rounds = plan_rounds(steps_s, setting)
        for number in range(num_rounds):
            first = number % len(contestants)
            for each in (*contestants[first:], *contestants[:first]):
                each.rounds.append(each.run(Asked(steps=steps)))
            _check_same([each.rounds[-1] for each in contestants])
            if (number + 1) % max(1, num_rounds // setting.rounds) == 0:
                rates = ", ".join(f"{each.name} {rate(each.rounds[-1]):,.1f}" for each in contestants)
                setting.say(f"  round {number + 1} of {num_rounds}: {rates} samples/s")


def plan_rounds(steps_s: Sequence[float], setting: RaceSetting) -> tuple[int, int]:
    """Steps of a round, at the most what is resident; and rounds: more where they are short for all together.

    Args:
        steps_s: how long a step of each contestant takes.
    """
    steps = max(LEAST_STEPS, min(NUM_BATCHES, int(setting.seconds / min(steps_s))))
    all_s = setting.rounds * setting.seconds * len(steps_s)
    num_rounds = int(all_s / (steps * sum(steps_s)))
    return steps, max(setting.rounds, min(MOST_ROUNDS, num_rounds))


def result(
    found: Mapping[str, Contestant], pairs: Pairs, look_every: int, accelerator_ms: float | None
) -> dict[str, Any]:
    """The document of one task."""
    fast, standard = found[FAST].rounds, found[STANDARD].rounds
    fast_step_s = median(map(step_s, fast))
    document: dict[str, Any] = {
        name: summary(found[name]) for name in (STANDARD, STANDARD_WORKERS, FAST) if name in found
    }
    document[RESIDENT] = {"samples_per_s": median(rate(pair.resident) for own in pairs for pair in own)}
    document |= {
        "speedup": _ratio(rate, fast, standard),
        "ratio_to_resident": ratio_of(rate, pairs),
        "step_time_ratio": ratio_of(step_s, pairs),
        "data_time_ratio": _ratio(_data_s, standard, fast),
        "monitor_overhead": seconds_per_step(fast[-1]["monitor"], look_every) / fast_step_s,
    }
    if STANDARD_WORKERS in found:
        workers = found[STANDARD_WORKERS].rounds
        document["speedup_2_workers"] = _ratio(rate, fast, workers)
        document["data_time_ratio_2_workers"] = _ratio(_data_s, workers, fast)
    rounds = {"rounds": len(fast), "steps": fast[0]["steps"], "accelerator_ms": accelerator_ms}
    return {**document, **rounds, "every_round": _all_rounds(found, pairs)}


def _all_rounds(found: Mapping[str, Contestant], pairs: Pairs) -> dict[str, Any]:
    """Samples a second of every round; of the pairs one list a process."""
    turns = {name: [rate(each) for each in contestant.rounds] for name, contestant in found.items()}
    return {
        "turns": turns,
        "pairs": {
            FAST: [[rate(pair.fast) for pair in own] for own in pairs],
            RESIDENT: [[rate(pair.resident) for pair in own] for own in pairs],
        },
    }


def summary(contestant: Contestant) -> dict[str, Any]:
    """Medians over the rounds of one contestant."""
    rounds = contestant.rounds
    own_rate = median(map(rate, rounds))
    has_accelerator = any(each["busy_s"] for each in rounds)
    return {
        "samples_per_s": own_rate,
        "data_wait_share": median(each["wait_s"] / each["wall_s"] for each in rounds),
        "utilisation": median(
            each["busy_s"] / each["wall_s"] if has_accelerator else 1.0 - each["wait_s"] / each["wall_s"]
            for each in rounds
        ),
        "cpu_s_per_sample": median(each["cpu_s"] / each["samples"] for each in rounds),
        "peak_rss_bytes": max(each["peak_rss_bytes"] for each in rounds),
        "epoch_s": contestant.facts["num_samples"] / own_rate,
        "step_ms": 1e3 * median(map(step_s, rounds)),
        "data_ms_per_batch": 1e3 * median(map(_data_s, rounds)),
    }


def _ratio(of: Callable[[Figures], float], over: Sequence[Figures], under: Sequence[Figures]) -> float:
    """The median of the rounds' own ratios: what slows one round down slows both."""
    return median(of(a) / max(of(b), 1e-9) for a, b in zip(over, under, strict=True))


def _data_s(figures: Figures) -> float:
    return float(figures["data_s"] / figures["steps"])


def _check_same(rounds: Sequence[Figures]) -> None:
    if len({each["keys"] for each in rounds}) > 1:
        raise FlatoutError("the contestants of a round had different samples")


def _differing(one: Batch, other: Batch) -> list[str]:
    """Fields that are not equal, bit for bit."""
    names = sorted({*one, *other})
    return [
        name for name in names if name not in one or name not in other or not _is_equal(one[name], other[name])
    ]


def _is_equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    if torch.equal(one, other):
        return True
    return one.is_floating_point() and torch.allclose(one, other, rtol=0.0, atol=0.0, equal_nan=True)
