"""The training thread decodes every sample itself, while the other core has nothing to do."""

import zlib

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset
from ward import Meter, arguments, classifier


class Traces(Dataset):
    def __init__(self, num_traces, length, seed):
        generator = np.random.default_rng(seed)
        walk = np.cumsum(generator.integers(-9, 10, (num_traces, length)), 1).astype(np.int16)
        self.packed = [zlib.compress(trace.tobytes(), 6) for trace in walk[:64]]
        self.labels = generator.integers(0, 10, num_traces)

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        return decode_trace(self.packed[index % len(self.packed)]), int(self.labels[index])


def decode_trace(packed):
    trace = np.frombuffer(zlib.decompress(packed), np.int16)
    pieces = trace[: len(trace) // 2048 * 2048].reshape(2048, -1).mean(1, dtype=np.float32)
    return torch.from_numpy(pieces / 100)


def train(loader, model, num_steps):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    meter = Meter(num_steps)
    while True:
        for traces, labels in loader:
            loss = torch.nn.functional.cross_entropy(model(traces), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if meter.is_done():
                return


def main():
    options, draw = arguments(__doc__)
    torch.set_num_threads(1)
    traces = Traces(draw.randrange(900, 1200), 2048 * draw.randrange(32, 64), options.seed)
    loader = DataLoader(traces, batch_size=16, shuffle=True)
    train(loader, classifier(2048, draw.randrange(1200, 1800)), options.steps)


if __name__ == "__main__":
    main()
