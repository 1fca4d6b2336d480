"""A sample is a stack of slices, and each slice is a small file of its own."""

import tempfile
from pathlib import Path

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset
from ward import Meter, arguments, classifier


class Stacks(Dataset):
    def __init__(self, folder, num_stacks, num_slices, side, seed):
        generator = np.random.default_rng(seed)
        self.side = side
        self.labels = generator.integers(0, 10, num_stacks)
        self.stacks = [folder / f"{number:04d}" for number in range(num_stacks)]
        for stack in self.stacks:
            stack.mkdir()
            for number in range(num_slices):
                (stack / f"{number:03d}.raw").write_bytes(generator.bytes(side * side))

    def __len__(self):
        return len(self.stacks)

    def __getitem__(self, index):
        slices = [read_slice(path, self.side) for path in sorted(self.stacks[index].iterdir())]
        return torch.from_numpy(np.mean(slices, 0, dtype=np.float32) / 255), int(self.labels[index])


def read_slice(path, side):
    with open(path, "rb") as file:
        return np.frombuffer(file.read(), np.uint8).reshape(side, side)


def train(loader, model, num_steps):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    meter = Meter(num_steps)
    while True:
        for stacks, labels in loader:
            loss = torch.nn.functional.cross_entropy(model(stacks), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if meter.is_done():
                return


def main():
    options, draw = arguments(__doc__)
    torch.set_num_threads(1)
    side = draw.choice((32, 40, 48))
    with tempfile.TemporaryDirectory(prefix="clinic-") as folder:
        stacks = Stacks(Path(folder), draw.randrange(240, 320), draw.randrange(64, 128), side, options.seed)
        loader = DataLoader(stacks, batch_size=8, shuffle=True, num_workers=2, persistent_workers=True)
        train(loader, classifier(side * side, draw.randrange(600, 900)), options.steps)


if __name__ == "__main__":
    main()
