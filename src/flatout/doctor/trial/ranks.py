"""Ranks that try remedies together: all run the same blocks, or each would wait for a step that never comes."""

from __future__ import annotations

from collections.abc import Mapping

from torch import distributed


def refused_by_any(refused: Mapping[str, str]) -> dict[str, str]:
    """Names and reasons of what this rank refuses in, of what any does out; the first rank's reason counts."""
    if not (distributed.is_available() and distributed.is_initialized()) or distributed.get_world_size() < 2:
        return dict(refused)
    told: list[Mapping[str, str] | None] = [None] * distributed.get_world_size()
    distributed.all_gather_object(told, dict(refused))
    return {name: why for each in reversed(told) for name, why in (each or {}).items()}
