"""Nothing is wrong: the samples are in memory, both cores compute, a line is logged now and then."""

import torch
from torch.utils.data import DataLoader, TensorDataset
from ward import Meter, arguments, classifier


def train(loader, model, num_steps):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    meter = Meter(num_steps)
    step = 0
    while True:
        for samples, labels in loader:
            loss = torch.nn.functional.cross_entropy(model(samples), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if step % 100 == 0:
                print(f"step {step}, loss {loss.item():.4f}")
            step += 1
            if meter.is_done():
                return


def main():
    options, draw = arguments(__doc__)
    torch.set_num_threads(2)
    samples = TensorDataset(torch.randn(8000, 512), torch.randint(0, 10, (8000,)))
    loader = DataLoader(samples, batch_size=draw.choice((96, 128, 160)), shuffle=True)
    train(loader, classifier(512, draw.randrange(1400, 2000)), options.steps)


if __name__ == "__main__":
    main()
