"""Bytes as people read them."""

from __future__ import annotations

import pytest

from flatout.units import bytes_text


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [
        (0, "0 bytes"),
        (1023, "1,023 bytes"),
        (1536, "1.5 KiB"),
        (-2048, "-2.0 KiB"),
        (1 << 20, "1.0 MiB"),
        (3 << 40, "3.0 TiB"),
        (5 << 50, "5,120.0 TiB"),
    ],
)
def test_the_unit_fits(num_bytes: int, text: str) -> None:
    assert bytes_text(num_bytes) == text
