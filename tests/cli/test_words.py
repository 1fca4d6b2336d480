"""Numbers as people read them."""

from __future__ import annotations

import pytest

from flatout.cli.words import count_text, rate_text, seconds_text


@pytest.mark.parametrize(
    ("per_s", "told"), [(1234.5, "1,234"), (10.4, "10"), (2.34, "2.3"), (0.456, "0.46"), (0.0, "0.00")]
)
def test_rates_of_slow_rows_are_not_zero(per_s: float, told: str) -> None:
    assert rate_text(per_s) == told


def test_times_and_counts() -> None:
    assert [seconds_text(s) for s in (3.04, 75, 3700)] == ["3.0 s", "1 min 15 s", "1 h 1 min"]
    assert [count_text(1, "shard"), count_text(2000, "shard")] == ["1 shard", "2,000 shards"]
