"""The files are more than memory keeps: each has left the page cache when its turn comes again."""

import os
import tempfile
from pathlib import Path

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset
from ward import Meter, arguments, classifier


class Recordings(Dataset):
    def __init__(self, folder, num_files, file_bytes, seed):
        generator = np.random.default_rng(seed)
        self.labels = generator.integers(0, 10, num_files)
        self.paths = [folder / f"{number:04d}.raw" for number in range(num_files)]
        for path in self.paths:
            path.write_bytes(generator.bytes(file_bytes))
        os.sync()

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, index):
        return read_recording(self.paths[index]), int(self.labels[index])


def read_recording(path):
    with open(path, "rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        samples = np.frombuffer(file.read(), np.int16)
    every = len(samples) // 2048
    return torch.from_numpy(samples[: 2048 * every : every].astype(np.float32) / 32768)


def train(loader, model, num_steps):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    meter = Meter(num_steps)
    while True:
        for recordings, labels in loader:
            loss = torch.nn.functional.cross_entropy(model(recordings), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if meter.is_done():
                return


def main():
    options, draw = arguments(__doc__)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="clinic-", dir=os.environ.get("CLINIC_DISK")) as folder:
        recordings = Recordings(
            Path(folder), draw.randrange(240, 320), draw.randrange(2, 4) << 20, options.seed
        )
        loader = DataLoader(recordings, batch_size=8, shuffle=True, num_workers=2, persistent_workers=True)
        train(loader, classifier(2048, draw.randrange(600, 900)), options.steps)


if __name__ == "__main__":
    main()
