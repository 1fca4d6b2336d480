"""`flatout bench augment`: every figure of augmentation that the project promises, in one document."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import torch

from flatout.bench import machine
from flatout.bench.augment_bank import measure_refresh
from flatout.bench.augment_images import IMAGE_CASES, measure_images
from flatout.bench.augment_signals import SIGNAL_SHAPE, measure_signals
from flatout.errors import MissingDependencyError


@dataclass(frozen=True)
class AugmentBench:
    """What to measure, and how thoroughly."""

    seconds: float = 1.0
    """Length of one round of one contestant."""
    rounds: int = 5
    has_peers: bool = False
    """Whether images race kornia and volumes race MONAI."""


def bench_augment(options: AugmentBench, say: Callable[[str], None] = lambda text: None) -> dict[str, Any]:
    """Measure; a document of plain numbers out.

    Raises:
        MissingDependencyError: a peer is not installed.
        FlatoutError: a contestant did something else than flatout.
    """
    if options.has_peers:
        check_augment_peers()
    watch = machine.CpuWatch()
    document = measure_signals(SIGNAL_SHAPE, options.rounds, options.seconds)
    say(
        f"signals: {document['flatout']['samples_per_s']:,.0f} samples/s, "
        f"{document['ratio_to_scipy']:.1f} times SciPy, "
        f"{document['ratio_to_eager']:.1f} times straightforward torch"
    )
    document |= _images(options, say)
    document["view_bank"] = measure_refresh(options.rounds, options.seconds)
    say(f"a step while views are refreshed: {document['view_bank']['ratio']:.2f} times one without")
    document["options"] = {"seconds": options.seconds, "rounds": options.rounds}
    document["machine"] = {**machine.describe(), "threads": torch.get_num_threads(), "others": watch.others()}
    return document


def _images(options: AugmentBench, say: Callable[[str], None]) -> dict[str, Any]:
    """Images and volumes, and the rates of those that raced them."""
    found: dict[str, Any] = {"peers": {}}
    for name, case in IMAGE_CASES.items():
        found[name] = measure_images(case, options.rounds, options.seconds, options.has_peers)
        say(f"{name}s: {found[name]['samples_per_s']:,.1f} samples/s")
        if options.has_peers:
            found["peers"][case.peer] = {"samples_per_s": found[name]["peer_samples_per_s"]}
    return found


def check_augment_peers() -> None:
    """Refuse to start without a peer: leaving one out would hide the ratio to it.

    Raises:
        MissingDependencyError: naming what is not installed.
    """
    if missing := [case.peer for case in IMAGE_CASES.values() if find_spec(case.peer) is None]:
        raise MissingDependencyError(f"not installed: {', '.join(missing)}; 'make bench' installs the peers")
