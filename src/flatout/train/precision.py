"""Which number format a device trains in: what was asked for, or the nearest it can do, with the reason."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from flatout.train import amx

_TILES = (
    "this CPU reports matrix tiles (AMX), but a product in bfloat16 dies of an illegal instruction; "
    f"started with {amx.LIMIT}={amx.BELOW_AMX}, it can use bfloat16 without them"
)


@dataclass(frozen=True)
class Abilities:
    """What counts of a device."""

    kind: str
    """cpu, cuda, mps, ..."""
    has_bf16: bool
    """bfloat16 in hardware, not emulated."""
    has_fp16: bool
    """float16 in hardware."""
    trouble: str | None = None
    """Why the hardware's bfloat16 cannot be used, if that is so."""


def describe_device(device: torch.device, wanted: str = "auto") -> Abilities:
    """What this device can do; bfloat16 of a CPU is tried only where it is of use for what is wanted."""
    if device.type == "cuda":
        major = torch.cuda.get_device_capability(device)[0]
        return Abilities("cuda", has_bf16=major >= 8, has_fp16=major >= 6)
    if device.type == "cpu":
        found = torch.cpu.get_capabilities()
        native = bool(found.get("amx_bf16") or found.get("amx_tile") or found.get("avx512_bf16"))
        is_of_use = native and wanted not in ("32", "64")
        trouble = _TILES if is_of_use and amx.has_broken_tiles() else None
        return Abilities("cpu", has_bf16=native and trouble is None, has_fp16=False, trouble=trouble)
    return Abilities(device.type, has_bf16=False, has_fp16=device.type == "mps")


def choose_precision(wanted: str, device: Abilities) -> tuple[str, str | None]:
    """A config's `precision` in; Lightning's, and a note where it is another one, out."""
    if wanted == "auto":
        best = _best(device)
        return best, device.trouble and f"precision: auto is {best.removesuffix('-true')}: {device.trouble}"
    if wanted == "16-mixed" and not device.has_fp16:
        other, why = _instead(device), f"float16 is not native on this {device.kind}"
        return other, f"precision: 16-mixed becomes {other.removesuffix('-true')}: {why}"
    if wanted == "bf16-mixed" and not device.has_bf16:
        other = "16-mixed" if device.has_fp16 else "32-true"
        why = device.trouble or f"bfloat16 is only emulated on this {device.kind}, and slower than float32"
        return other, f"precision: bf16-mixed becomes {other.removesuffix('-true')}: {why}"
    if wanted == "64" and device.kind == "mps":
        return "32-true", "precision: 64 becomes 32: mps has no float64"
    return {"32": "32-true", "64": "64-true"}.get(wanted, wanted), None


def _best(device: Abilities) -> str:
    if device.has_bf16:
        return "bf16-mixed"
    return "16-mixed" if device.kind == "cuda" and device.has_fp16 else "32-true"


def _instead(device: Abilities) -> str:
    """Half precision in the other format where there is one; measured on a CPU without: 1.6x slower than 32."""
    return "bf16-mixed" if device.has_bf16 else "32-true"
