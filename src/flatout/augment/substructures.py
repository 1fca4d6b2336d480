"""Substructures: each sample cut into parts of one length, by equal shares or at boundaries of its own."""

from __future__ import annotations

import torch
from torch import Tensor

from flatout.augment.checks import check_signal, checked_least
from flatout.errors import AugmentError


def split_substructures_batch(
    x: Tensor, num_substructures: int = 4, boundaries: Tensor | None = None
) -> Tensor:
    """(B, C, T) in, (B, S, C, L) out with S parts of L = ceil(T / S) values.

    Args:
        x: a batch of signals.
        num_substructures: S.
        boundaries: (B, S + 1) whole numbers: part s of a sample reaches from boundary s up to, not including,
            the next; they are held within 0 .. T. Each part is brought to L values by linear interpolation
            from its first value to its last (a part of L values is copied), an empty one is zero. Without
            boundaries the parts are copies at equal distances; where S does not divide T they overlap a little.

    Raises:
        AugmentError: `x` is not (B, C, T), S does not lie in 1 .. T, or the boundaries do not belong to it.
    """
    check_signal("split_substructures_batch", x)
    length = x.shape[-1]
    if checked_least("num_substructures", num_substructures, 1) > length:
        raise AugmentError(f"num_substructures: got {num_substructures}, wanted at most the length, {length}")
    part_length = -(-length // num_substructures)
    if boundaries is None:
        return _equal_parts(x, num_substructures, part_length)
    _check_boundaries(x, num_substructures, boundaries)
    return _parts_between(x, boundaries.to(torch.int64).clamp(0, length), part_length)


def _equal_parts(x: Tensor, num_parts: int, part_length: int) -> Tensor:
    """Starts go evenly from 0 to T - L, so that all values are in some part."""
    last = x.shape[-1] - part_length
    starts = [number * last // max(num_parts - 1, 1) for number in range(num_parts)]
    return torch.stack([x[..., start : start + part_length] for start in starts], dim=1)


def _parts_between(x: Tensor, boundaries: Tensor, part_length: int) -> Tensor:
    """Positions are whole numbers of 1 / (L - 1) values: a part of L values is met exactly."""
    start, end = boundaries[:, :-1, None], boundaries[:, 1:, None]
    num_steps = max(part_length - 1, 1)
    places = torch.arange(part_length, device=x.device) * (end - start - 1).clamp_min(0)
    before = (start + places // num_steps).clamp_max(x.shape[-1] - 1)
    after = torch.minimum(before + 1, (end - 1).clamp_min(0))
    wide = torch.promote_types(x.dtype, torch.float32)
    share = ((places % num_steps).to(wide) / num_steps).to(x.dtype)
    low, high = _values(x, before), _values(x, after)
    parts = low + (high - low) * share[:, :, None, :]
    return parts.masked_fill((end <= start)[..., None], 0.0)


def _values(x: Tensor, places: Tensor) -> Tensor:
    """(B, C, T) and (B, S, L) in, the values at these places out: (B, S, C, L)."""
    num_parts = places.shape[1]
    wide = x[:, None].expand(-1, num_parts, -1, -1)
    return wide.gather(-1, places[:, :, None, :].expand(-1, -1, x.shape[1], -1))


def _check_boundaries(x: Tensor, num_parts: int, boundaries: Tensor) -> None:
    wanted = (x.shape[0], num_parts + 1)
    is_whole = boundaries.dtype in (torch.int64, torch.int32, torch.int16)
    if tuple(boundaries.shape) != wanted or not is_whole or boundaries.device != x.device:
        raise AugmentError(
            f"boundaries: got {tuple(boundaries.shape)} {boundaries.dtype} on {boundaries.device}, wanted "
            f"{wanted} torch.int64 on {x.device}: for each sample the start of each part and the last end"
        )
