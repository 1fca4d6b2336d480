"""One recording in a hundred is hundreds of times as long as the others, and each batch waits for its turn."""

import zlib

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset
from ward import Meter, arguments, classifier


class Nights(Dataset):
    def __init__(self, num_nights, length, times, seed):
        generator = np.random.default_rng(seed)
        self.labels = generator.integers(0, 10, num_nights)
        self.offset = int(generator.integers(100))
        usual, long = (self.walk(generator, size) for size in (length, length * times))
        self.usual, self.long = zlib.compress(usual, 6), zlib.compress(long, 6)

    @staticmethod
    def walk(generator, length):
        return np.cumsum(generator.integers(-9, 10, length)).astype(np.int16).tobytes()

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        packed = self.long if index % 100 == self.offset else self.usual
        return decode_night(packed), int(self.labels[index])


def decode_night(packed):
    night = np.frombuffer(zlib.decompress(packed), np.int16)
    return torch.from_numpy(night[:: len(night) // 1024][:1024].astype(np.float32) / 1000)


def train(loader, model, num_steps):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    meter = Meter(num_steps)
    while True:
        for nights, labels in loader:
            loss = torch.nn.functional.cross_entropy(model(nights), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if meter.is_done():
                return


def main():
    options, draw = arguments(__doc__)
    torch.set_num_threads(1)
    nights = Nights(
        draw.randrange(10, 14) * 100, draw.randrange(8_000, 14_000), draw.randrange(400, 600), options.seed
    )
    loader = DataLoader(nights, batch_size=10, num_workers=2, persistent_workers=True)
    train(loader, classifier(1024, draw.randrange(700, 1000)), options.steps)


if __name__ == "__main__":
    main()
