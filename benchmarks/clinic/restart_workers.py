"""Epochs are short, and each of them starts its workers anew."""

import torch
from torch.utils.data import DataLoader, TensorDataset
from ward import Meter, arguments, classifier


def train(loader, model, num_steps):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    meter = Meter(num_steps)
    while True:
        for samples, labels in loader:
            loss = torch.nn.functional.cross_entropy(model(samples), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if meter.is_done():
                return


def main():
    options, draw = arguments(__doc__)
    torch.set_num_threads(1)
    size, num_batches = 32, draw.randrange(5, 9)
    samples = TensorDataset(torch.randn(size * num_batches, 2048), torch.randint(0, 10, (size * num_batches,)))
    loader = DataLoader(samples, batch_size=size, shuffle=True, num_workers=2)
    train(loader, classifier(2048, draw.randrange(600, 1000)), options.steps)


if __name__ == "__main__":
    main()
