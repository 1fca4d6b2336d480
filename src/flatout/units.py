"""Bytes as people read them."""

from __future__ import annotations


def bytes_text(num_bytes: float) -> str:
    """1536 -> '1.5 KiB'; 12 -> '12 bytes'."""
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if abs(num_bytes) < 1024:
            return f"{num_bytes:,.0f} {unit}" if unit == "bytes" else f"{num_bytes:.1f} {unit}"
        num_bytes /= 1024
    return f"{num_bytes:,.1f} TiB"
