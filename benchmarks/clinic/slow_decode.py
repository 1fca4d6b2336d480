"""Images are kept compressed at full size, and every epoch decodes and shrinks them anew; both cores decode."""

import zlib

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset
from ward import Meter, arguments, classifier


class Scans(Dataset):
    def __init__(self, num_scans, side, seed):
        generator = np.random.default_rng(seed)
        self.side = side
        self.labels = generator.integers(0, 10, num_scans)
        self.packed = []
        for _ in range(32):
            coarse = generator.integers(0, 256, (side // 8, side // 8), dtype=np.uint8)
            scan = np.kron(coarse, np.ones((8, 8), np.uint8)) + generator.integers(0, 4, (side, side), np.uint8)
            self.packed.append(zlib.compress(scan.tobytes(), 6))

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        scan = decode_scan(self.packed[index % len(self.packed)], self.side)
        return shrink(scan), int(self.labels[index])


def decode_scan(packed, side):
    return np.frombuffer(zlib.decompress(packed), np.uint8).reshape(side, side)


def shrink(scan):
    step = scan.shape[0] // 64
    small = scan[: 64 * step, : 64 * step].reshape(64, step, 64, step).mean((1, 3), dtype=np.float32)
    return torch.from_numpy(small / 255)


def train(loader, model, num_steps):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    meter = Meter(num_steps)
    while True:
        for scans, labels in loader:
            loss = torch.nn.functional.cross_entropy(model(scans), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if meter.is_done():
                return


def main():
    options, draw = arguments(__doc__)
    torch.set_num_threads(1)
    scans = Scans(draw.randrange(640, 900), 64 * draw.randrange(8, 13), options.seed)
    loader = DataLoader(
        scans, batch_size=draw.choice((12, 16, 20)), shuffle=True, num_workers=2, persistent_workers=True
    )
    train(loader, classifier(64 * 64, draw.randrange(256, 512)), options.steps)


if __name__ == "__main__":
    main()
