"""From the numbers in a batch back to names: the hash of a sample's key in, the key out."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from flatout.loader.standard import StandardDataset
from flatout.source import hash_key
from flatout.store import StoreReader


def sample_names(samples: StoreReader | StandardDataset, hashes: Sequence[int]) -> list[str]:
    """`batch["key"]` as whole numbers in, the samples' keys out; one that is not there by its number."""
    wanted = [int(np.int64(number).view(np.uint64)) for number in hashes]
    keys = samples.keys()
    if isinstance(samples, StoreReader):
        places = {number: np.flatnonzero(samples.numbers["key_hash"] == np.uint64(number)) for number in wanted}
        found = {number: keys[int(at[0])] for number, at in places.items() if len(at)}
    else:
        found = {number: key for key in keys if (number := hash_key(key)) in wanted}
    return [found.get(number, f"{number:016x}") for number in wanted]
