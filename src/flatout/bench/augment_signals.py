"""The chain of six on signals: flatout against sample-by-sample SciPy and against straightforward torch."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from flatout.augment import GPUCompose, SampleKeys, draw_keys, get_gpu_pretrain_transforms
from flatout.augment.transform import Transform
from flatout.bench.augment_eager import EAGER, run_all, run_one
from flatout.bench.augment_scipy import run_each
from flatout.bench.augment_turns import Call, milliseconds_in_turns, samples_per_s
from flatout.errors import FlatoutError

SIGNAL_SHAPE = (64, 1, 4000)
"""The heart sound guide's own test."""
SEED = 7
TOLERANCE = 1e-3
"""Of values around 1: the straightforward version rounds positions to float32, 0.0002 of a value at 4000."""


def measure_signals(shape: tuple[int, int, int], rounds: int, seconds: float) -> dict[str, Any]:
    """Rates, milliseconds of each operation, and what the keys cost; all samples are changed by everything.

    Raises:
        FlatoutError: the two batched versions do not do the same.
    """
    x = torch.randn(shape, generator=torch.Generator().manual_seed(SEED))
    hashes = torch.arange(shape[0]) * 1_000_003
    chain = six_transforms()
    check_equal(chain, x, draw_keys(hashes, seed=SEED, epoch=0))
    times = milliseconds_in_turns(
        {
            "flatout": lambda: chain(x, draw_keys(hashes, seed=SEED, epoch=0)),
            "eager": lambda: run_all(x),
            "scipy": _scipy_call(x),
        },
        rounds,
        seconds,
    )
    operations = measure_operations(chain, x, rounds, seconds / len(EAGER))
    return {
        "batch": shape[0],
        "length": shape[2],
        "flatout": samples_per_s(shape[0], times["flatout"]),
        "per_op_ms": operations["flatout"],
        "eager_reference": {**samples_per_s(shape[0], times["eager"]), "per_op_ms": operations["eager"]},
        "scipy_reference": samples_per_s(shape[0], times["scipy"]),
        "ratio_to_scipy": times["scipy"] / times["flatout"],
        "ratio_to_eager": times["eager"] / times["flatout"],
        "keyed": measure_keys(chain, x, times["flatout"], rounds, seconds / len(EAGER)),
    }


def six_transforms() -> GPUCompose:
    """The ready-made chain with every p = 1."""
    chain = get_gpu_pretrain_transforms({name: {"p": 1.0} for name in EAGER})
    return chain.train()


def check_equal(chain: GPUCompose, x: Tensor, keys: SampleKeys) -> None:
    """Each operation against its straightforward version, given the same parameters.

    Raises:
        FlatoutError: they differ; for noise: in its level.
    """
    for name, member, own in _members(chain, keys):
        params = member.sample(x, own)
        ours = member.apply(x, params)
        if name == "gaussian_noise":
            theirs = EAGER[name][0](x, member.std)
            found = torch.stack([(each - x).std() for each in (ours, theirs)])
            # Two deviations of n normal numbers each differ by 1 / sqrt(n) of it; six times that never happens.
            is_equal = bool((found[0] - found[1]).abs() < 6.0 / x.numel() ** 0.5 * found[1])
        else:
            values = [value.flatten(0) for value in params._asdict().values()][1:]
            theirs = EAGER[name][0](x, *values)
            # A place on the very edge of the end may fall to either side of it.
            is_equal = bool(((ours - theirs).abs() > TOLERANCE).sum() <= len(x))
        if not is_equal:
            raise FlatoutError(f"{name}: the two batched versions differ; nothing can be compared")


def measure_operations(
    chain: GPUCompose, x: Tensor, rounds: int, seconds: float
) -> dict[str, dict[str, float]]:
    """Milliseconds of each operation alone, parameters drawn each time: ours and the straightforward one."""
    keys = draw_keys(torch.arange(len(x)), seed=SEED, epoch=0)
    calls: dict[str, Call] = {}
    for name, member, own in _members(chain, keys):
        calls[f"flatout {name}"] = partial(member, x, own)
        calls[f"eager {name}"] = partial(run_one, name, x)
    times = milliseconds_in_turns(calls, rounds, seconds)
    return {who: {name: times[f"{who} {name}"] for name in EAGER} for who in ("flatout", "eager")}


def measure_keys(
    chain: GPUCompose, x: Tensor, chain_ms: float, rounds: int, seconds: float
) -> dict[str, float]:
    """All parameters drawn by key against the same drawn from torch's generator, as shares of the chain."""
    hashes = torch.arange(len(x))
    times = milliseconds_in_turns(
        {
            "keyed": lambda: chain.sample(x, draw_keys(hashes, seed=SEED, epoch=0)),
            "generator": lambda: [member.draw(x, _random_draws(member, len(x))) for member in chain],
        },
        rounds,
        seconds,
    )
    return {
        "draw_ms": times["keyed"],
        "generator_draw_ms": times["generator"],
        "share_of_chain": times["keyed"] / chain_ms,
        "overhead": (times["keyed"] - times["generator"]) / chain_ms,
    }


def _random_draws(member: Any, num_samples: int) -> SampleKeys:
    """What a transform makes its parameters of, without any key."""
    drawn = torch.randint(0, 1 << 31, (num_samples, 1 + member.num_draws))
    return SampleKeys(torch.randint(0, 1 << 62, (num_samples,)), drawn)


def _members(chain: GPUCompose, keys: SampleKeys) -> list[tuple[str, Transform, SampleKeys]]:
    pairs = zip(EAGER, chain.with_keys(keys), strict=True)
    return [(name, member, own) for name, (member, own) in pairs]  # type: ignore[misc]


def _scipy_call(x: Tensor) -> Call:
    batch, random = x.numpy(), np.random.default_rng(SEED)
    return lambda: run_each(batch, random)
