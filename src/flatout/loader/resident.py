"""Resident: a split held in the device's memory; a batch travels as row numbers and is picked out there.

Fields stay as they are stored (float16, uint8, ...) and are restored when they are picked, as usual.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch

from flatout.errors import ConfigError
from flatout.loader.damage import is_in, stand_in
from flatout.loader.fetch import MAX_UNIT, VALID, Fetcher
from flatout.loader.machine import Machine, describe_machine
from flatout.loader.memory import check_device
from flatout.loader.parts import Wanted
from flatout.loader.transfer import Batch
from flatout.types import Array, FieldSpec

ROWS = "/rows"
"""Name of the row numbers in a batch under way; no field's name has a slash."""
_SIGNED = {torch.uint16: torch.int16, torch.uint32: torch.int32, torch.uint64: torch.int64}
"""torch picks no rows of these; of the same bytes as signed numbers it does."""


class Resident:
    """A split on a device. It makes batches in place of the Fetcher that it was loaded from."""

    bytes_per_row = 8
    unit = MAX_UNIT
    announces = is_blind = False

    def __init__(self, fetcher: Fetcher, device: torch.device) -> None:
        self._num_samples = fetcher.num_samples
        self._skips = fetcher.skips
        self._bad: set[int] = set()
        self._tables: dict[str, torch.Tensor] = {}
        self._dtypes: dict[str, torch.dtype] = {}
        for start in range(0, self._num_samples, fetcher.batch_size):
            positions = np.arange(start, min(start + fetcher.batch_size, self._num_samples))
            self._put(positions, fetcher.fetch(positions), device)

    def look_up(self, positions: Array) -> Wanted:
        """There is nothing to look up."""
        return Wanted(positions, {})

    def fetch_run(self, wanted: Wanted, sizes: Sequence[int], crop_seeds: Sequence[int]) -> list[Batch]:
        """The numbers of the batches' rows, all that producers hand over; nothing is left to crop."""
        return [self._rows(positions) for positions in np.split(wanted.positions, np.cumsum(sizes[:-1]))]

    def _rows(self, positions: Array) -> Batch:
        batch = {ROWS: torch.from_numpy(stand_in(positions, self._bad, self._num_samples).copy())}
        if self._skips:
            batch[VALID] = torch.from_numpy(~is_in(positions, self._bad))
        return batch

    def announce(self, wanted: Wanted) -> None:
        """Nothing is fetched from a disk."""

    def pick(self, batch: Mapping[str, torch.Tensor]) -> Batch:
        """The rows of a batch that has arrived; called where the batch is used, on its stream."""
        rows = batch[ROWS]
        picked = {
            name: table.index_select(0, rows).view(self._dtypes[name]) for name, table in self._tables.items()
        }
        return picked | {name: value for name, value in batch.items() if name != ROWS}

    def _put(self, positions: Array, batch: Batch, device: torch.device) -> None:
        valid = batch.pop(VALID, None)
        if valid is not None:
            self._bad |= set(positions[~valid.numpy()].tolist())
        for name, value in batch.items():
            values = value.view(_SIGNED.get(value.dtype, value.dtype))
            if name not in self._tables:
                shape = (self._num_samples, *value.shape[1:])
                self._tables[name] = torch.empty(shape, dtype=values.dtype, device=device)
                self._dtypes[name] = value.dtype
            self._tables[name][int(positions[0]) : int(positions[-1]) + 1].copy_(values)


def check_resident(
    fields: Mapping[str, FieldSpec],
    num_bytes: int,
    free: int,
    device: torch.device,
    what: str = "cache_on_device",
) -> None:
    """Refuse a split that cannot be held on the device.

    Args:
        num_bytes: what it takes.
        free: what there is.
        what: who asks for it, for the message.

    Raises:
        ConfigError: a field's samples differ in shape.
        LoaderError: it does not fit; with the numbers.
    """
    if ragged := [name for name, spec in fields.items() if spec.is_ragged]:
        raise ConfigError(
            f"{what}: samples of field '{ragged[0]}' differ in shape, and only fields of one shape can be held "
            "on the device. Turn it off, or prepare the field with one shape (crop, pad, length)"
        )
    check_device(num_bytes, free, str(device), what)


def free_bytes(device: torch.device, machine: Machine | None = None) -> int:
    """Memory of a device that may still be taken; a device without memory of its own has the machine's."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    return (machine or describe_machine(look_for_gpu=False)).free_bytes
