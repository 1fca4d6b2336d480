"""Everything is in memory, and a crowd of workers carries it from there to there."""

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
    num_inputs = draw.choice((512, 768, 1024))
    samples = TensorDataset(torch.randn(40_000, num_inputs), torch.randint(0, 10, (40_000,)))
    loader = DataLoader(
        samples,
        batch_size=draw.randrange(24, 48),
        shuffle=True,
        num_workers=draw.randrange(12, 25),
        persistent_workers=True,
    )
    train(loader, classifier(num_inputs, draw.randrange(64, 128)), options.steps)


if __name__ == "__main__":
    main()
