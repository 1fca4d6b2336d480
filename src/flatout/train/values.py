"""Labels, numbers and texts of whole splits, read from a store before the first batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from flatout.loader.fixed import is_small, load_rows
from flatout.loader.places import Places
from flatout.loader.samples import SampleReader
from flatout.store import StoreReader
from flatout.types import Array


def stored_values(store: StoreReader) -> Callable[[str, str], Sequence[Array]]:
    """What `TaskData.values` is over a store: a field and a split in, the values of its samples out."""

    def values(name: str, split: str) -> Sequence[Array]:
        spec, positions = store.fields[name], store.positions(split)
        if is_small(spec) and spec.encoding == "none":
            return load_rows(store, spec, Places.of(store, positions))  # type: ignore[return-value]
        reader = SampleReader(store, positions, [name])
        return [sample[name].numpy() for sample in reader.read(np.arange(len(positions)))]

    return values
