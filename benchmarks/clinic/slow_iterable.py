"""A stream of lines is parsed as it goes, in the training thread; it has no length and no index."""

import json

import numpy as np
import torch
from torch.utils.data import DataLoader, IterableDataset
from ward import Meter, arguments, classifier


class Lines(IterableDataset):
    def __init__(self, num_lines, num_values, seed):
        generator = np.random.default_rng(seed)
        self.num_lines = num_lines
        self.lines = [
            json.dumps({"values": generator.standard_normal(num_values).tolist(), "label": number % 10})
            for number in range(64)
        ]

    def __iter__(self):
        for number in range(self.num_lines):
            yield parse_line(self.lines[number % len(self.lines)])


def parse_line(line):
    entry = json.loads(line)
    return torch.tensor(entry["values"]), entry["label"]


def train(loader, model, num_steps):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    meter = Meter(num_steps)
    while True:
        for values, labels in loader:
            loss = torch.nn.functional.cross_entropy(model(values), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if meter.is_done():
                return


def main():
    options, draw = arguments(__doc__)
    torch.set_num_threads(1)
    num_values = draw.randrange(1500, 2500)
    loader = DataLoader(Lines(40_000, num_values, options.seed), batch_size=draw.choice((12, 16, 20)))
    train(loader, classifier(num_values, draw.randrange(700, 1100)), options.steps)


if __name__ == "__main__":
    main()
