"""Flip, affine map, brightness, contrast and noise on images and volumes: flatout against a peer each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from flatout.augment import (
    GPUAffine,
    GPUBrightness,
    GPUContrast,
    GPUFlip,
    GPUImageCompose,
    GPUImageNoise,
    draw_keys,
)
from flatout.bench.augment_peers import kornia_images, monai_volumes
from flatout.bench.augment_turns import Call, milliseconds_in_turns, samples_per_s
from flatout.errors import FlatoutError

SEED = 7
TOLERANCE = 1e-4
OURS = "flatout"


@dataclass(frozen=True)
class Strength:
    """How far the chain goes, the same for everybody; every p is 1."""

    rotation_deg: float = 15.0
    scale: float = 0.1
    translation: float = 0.1
    """Share of each axis."""
    brightness: float = 0.3
    contrast: float = 0.25
    noise: float = 0.1


NEUTRAL = Strength(0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
"""What is left is the flip: that can be compared."""

Chain = Callable[[Strength, tuple[int, ...]], Callable[[Tensor], Any]]


@dataclass(frozen=True)
class ImageCase:
    """A batch, and who else augments it."""

    shape: tuple[int, ...]
    peer: str
    chain: Chain
    """Makes the peer's chain."""


IMAGE_CASES = {
    "image": ImageCase((64, 3, 224, 224), "kornia", kornia_images),
    "volume": ImageCase((4, 1, 96, 160, 160), "monai", monai_volumes),
}


def measure_images(case: ImageCase, rounds: int, seconds: float, has_peer: bool) -> dict[str, Any]:
    """Samples a second of flatout, of the peer if it takes part, and their ratio.

    Raises:
        FlatoutError: somebody does not flip what should only be flipped.
    """
    x = torch.rand(case.shape, generator=torch.Generator().manual_seed(SEED))
    chains: dict[str, Chain] = {OURS: our_chain}
    if has_peer:
        chains[case.peer] = case.chain
    for name, chain in chains.items():
        check_flip(name, chain(NEUTRAL, case.shape), x)
    times = milliseconds_in_turns(
        {name: _call(chain(Strength(), case.shape), x) for name, chain in chains.items()}, rounds, seconds
    )
    found: dict[str, Any] = {"shape": list(case.shape), **samples_per_s(case.shape[0], times[OURS])}
    if has_peer:
        rate = samples_per_s(case.shape[0], times[case.peer])
        found |= {"peer": case.peer, "peer_samples_per_s": rate["samples_per_s"]}
        found["ratio_to_peer"] = times[case.peer] / times[OURS]
    return found


def our_chain(strength: Strength, shape: tuple[int, ...]) -> Callable[[Tensor], Tensor]:
    """Keys and parameters are made for each batch, as in a training."""
    chain = GPUImageCompose(
        [
            GPUFlip((-1,), p=1.0),
            GPUAffine(
                (-strength.rotation_deg, strength.rotation_deg),
                (1.0 - strength.scale, 1.0 + strength.scale),
                max_translation=strength.translation,
                p=1.0,
            ),
            GPUBrightness((-strength.brightness, strength.brightness), p=1.0),
            GPUContrast((1.0 - strength.contrast, 1.0 + strength.contrast), p=1.0),
            GPUImageNoise(strength.noise, p=1.0),
        ]
    ).train()
    hashes = torch.arange(shape[0])

    def run(x: Tensor) -> Tensor:
        made: Tensor = chain(x, draw_keys(hashes, seed=SEED, epoch=0))
        return made

    return run


def check_flip(name: str, chain: Callable[[Tensor], Any], x: Tensor) -> None:
    """A neutral chain against `torch.flip`.

    Raises:
        FlatoutError: they differ.
    """
    made = chain(x)
    found = made if isinstance(made, Tensor) else torch.stack([torch.as_tensor(each) for each in made])
    difference = (found - x.flip(-1)).abs().max().item() if found.shape == x.shape else float("inf")
    if not difference <= TOLERANCE:
        raise FlatoutError(f"{name}: a chain that should only flip {tuple(x.shape)} is off by {difference:g}")


def _call(chain: Callable[[Tensor], Any], x: Tensor) -> Call:
    return lambda: chain(x)
