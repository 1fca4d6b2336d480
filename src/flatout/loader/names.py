"""From the numbers in a batch back to names: the hash of a sample's key in, the key out."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

import numpy as np

from flatout.loader.standard import StandardDataset
from flatout.source import hash_key
from flatout.store import StoreReader


def sample_names(samples: StoreReader | Sequence[StandardDataset], hashes: Sequence[int]) -> list[str]:
    """`batch["key"]` as whole numbers in, the samples' keys out; one that is not there by its number."""
    wanted = [int(np.int64(number).view(np.uint64)) for number in hashes]
    if isinstance(samples, StoreReader):
        places = {number: np.flatnonzero(samples.numbers["key_hash"] == np.uint64(number)) for number in wanted}
        keys = samples.keys()
        found = {number: keys[int(at[0])] for number, at in places.items() if len(at)}
    else:
        all_keys = chain.from_iterable(dataset.keys() for dataset in samples)
        found = {number: key for key in all_keys if (number := hash_key(key)) in wanted}
    return [found.get(number, f"{number:016x}") for number in wanted]
