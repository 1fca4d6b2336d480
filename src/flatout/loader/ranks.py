"""Which rank this process is: given, or from torch.distributed; looked up at the first batch, not before."""

from __future__ import annotations

from torch import distributed

from flatout.errors import ConfigError


def rank_and_world(rank: int | None = None, world: int | None = None) -> tuple[int, int]:
    """(rank, number of ranks); (0, 1) where nothing is distributed.

    Raises:
        ConfigError: one is given without the other.
    """
    if rank is not None and world is not None:
        return rank, world
    if rank is not None or world is not None:
        raise ConfigError(f"rank and world_size belong together; got rank {rank}, world_size {world}")
    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    return 0, 1
