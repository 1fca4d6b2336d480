"""Which rank this process is: given, or from torch.distributed; looked up at the first batch, not before.

And how many ranks a machine has.
"""

from __future__ import annotations

import os

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


def is_known(rank: int | None = None, world: int | None = None) -> bool:
    """Whether the number of ranks is given or settled: a process group may still be made."""
    return (rank is not None and world is not None) or (
        distributed.is_available() and distributed.is_initialized()
    )


def ranks_of_machine() -> int:
    """How many ranks share this machine's memory, as launchers say it; 1 where nobody does."""
    told = os.environ.get("LOCAL_WORLD_SIZE", "")
    return max(1, int(told)) if told.isdecimal() else 1
