"""The whole validation set is evaluated every few steps; cured, ten times as seldom."""

import torch
from torch.utils.data import DataLoader, TensorDataset
from ward import Meter, arguments, classifier


def samples_of(number):
    return TensorDataset(torch.randn(number, 1024), torch.randint(0, 10, (number,)))


@torch.no_grad()
def evaluate(model, loader):
    model.eval()
    right = sum((model(samples).argmax(1) == labels).sum() for samples, labels in loader)
    model.train()
    return int(right) / len(loader.dataset)


def train(loader, validation, model, num_steps, evaluate_every):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    meter = Meter(num_steps)
    step = 0
    while True:
        for samples, labels in loader:
            loss = torch.nn.functional.cross_entropy(model(samples), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if step % evaluate_every == 0:
                evaluate(model, validation)
            if meter.is_done():
                return


def main():
    options, draw = arguments(__doc__)
    torch.set_num_threads(1)
    loader = DataLoader(samples_of(20_000), batch_size=64, shuffle=True)
    validation = DataLoader(samples_of(draw.randrange(1500, 3000)), batch_size=128)
    every = draw.choice((3, 4, 5))
    model = classifier(1024, draw.randrange(512, 1024))
    train(loader, validation, model, options.steps, 10 * every if options.cured else every)


if __name__ == "__main__":
    main()
