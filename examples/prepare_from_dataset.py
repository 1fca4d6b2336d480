"""Any map-style dataset becomes a store: no manifest, no config, your own class as it is.

    python examples/prepare_from_dataset.py STORE

Run it twice: the second time there is nothing to do.
"""

# ruff: noqa: T201  a script may print

from __future__ import annotations

import sys
from pathlib import Path

import torch
from torch.utils.data import Dataset

from flatout.store import DataPreprocessor, StoreReader


class Waves(Dataset):
    """Stands for a dataset whose items are slow to make. Items must not be random: they are kept."""

    def __len__(self) -> int:
        return 200

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        time = torch.linspace(0.0, 1.0, 1000)
        return {"wave": torch.sin(6.28318 * (index + 1) * time), "target": torch.tensor(index % 4)}


def main(output_dir: Path) -> None:
    """Prepare, check, and read a sample back."""
    preprocessor = DataPreprocessor.from_dataset(Waves(), output_dir)
    stats = preprocessor.run()
    print(f"{stats.num_samples} samples in {output_dir}, whole: {bool(preprocessor.verify_data_integrity())}")
    store = StoreReader(output_dir)
    print({name: array.shape for name, array in store.read(0).items()})


if __name__ == "__main__":
    main(Path(sys.argv[1]))
