"""Numbers as people read them: seconds with a unit that fits, one thing and several."""

from __future__ import annotations


def count_text(count: int, one: str, many: str | None = None) -> str:
    """(1, "shard") -> '1 shard'; (2000, "shard") -> '2,000 shards'."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def seconds_text(seconds: float) -> str:
    """75 -> '1 min 15 s'."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"


def rate_text(per_s: float) -> str:
    """1234.5 -> '1,234', 2.34 -> '2.3', 0.0456 -> '0.05': a large volume takes longer than a second."""
    return f"{per_s:,.0f}" if per_s >= 10 else f"{per_s:.1f}" if per_s >= 1 else f"{per_s:.2f}"
