"""Which rank this process is: given, or from torch.distributed; looked up at the first batch, not before."""

from __future__ import annotations

from torch import distributed


def rank_and_world(rank: int | None = None, world: int | None = None) -> tuple[int, int]:
    """(rank, number of ranks); (0, 1) where nothing is distributed."""
    if rank is not None and world is not None:
        return rank, world
    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    return rank or 0, world or 1
