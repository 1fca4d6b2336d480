"""Room: whether the machine, or the container's limit, has memory left for a trial to go on."""

from __future__ import annotations

from flatout.loader.machine import describe_machine

RESERVE = 0.05
"""Share of the memory that must stay free during a trial."""


def check_free(reserve: float | None = None) -> None:
    """Stop before the system has to kill somebody.

    Args:
        reserve: share of the memory; `RESERVE` by default.

    Raises:
        MemoryError: hardly any memory is left.
    """
    share, machine = RESERVE if reserve is None else reserve, describe_machine(look_for_gpu=False)
    if machine.free_bytes < share * machine.memory_bytes:
        raise MemoryError(f"less than {share:.0%} of the machine's memory is left")
