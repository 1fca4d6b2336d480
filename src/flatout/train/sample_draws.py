"""SampleDraws: what a per-sample transform draws follows from seed, epoch and sample, in whatever worker."""

from __future__ import annotations

import numpy as np
import torch
from torch.utils.data import get_worker_info

from flatout.seeding import child_seed
from flatout.train.task import Sample, SampleTransform


class SampleDraws:
    """A transform whose draws from NumPy's and torch's global generators are those of its sample and epoch.

    A resumed run draws what one without the break does, with any number of workers, and so does another run of
    the same seed. In the training's own process NumPy's stream goes on afterwards as if nothing had been drawn;
    torch's is seeded before each step anyway.
    """

    def __init__(self, transform: SampleTransform, seed: int) -> None:
        self._transform, self._seed = transform, seed
        # Shared, because workers that live for several epochs have copies of everything else.
        self._epoch = torch.zeros((), dtype=torch.int64).share_memory_()  # type: ignore[no-untyped-call]

    def set_epoch(self, epoch: int) -> None:
        """For samples that are made from now on, in workers too."""
        self._epoch.fill_(epoch)

    def __call__(self, sample: Sample) -> Sample:
        """One sample."""
        seed = child_seed(self._seed, "sample", epoch=int(self._epoch), worker=int(sample["key"]))
        before = None if get_worker_info() is not None else np.random.get_state()
        np.random.seed([seed & 0xFFFFFFFF, seed >> 32])
        torch.default_generator.manual_seed(seed >> 1)
        try:
            return self._transform(sample)
        finally:
            if before is not None:
                np.random.set_state(before)
