"""The data is there; the model computes, and for the accuracy it computes all again; cured, it does not."""

import torch
from torch.utils.data import DataLoader, TensorDataset
from ward import Meter, arguments, classifier


def train(loader, model, num_steps, is_cured):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    meter = Meter(num_steps)
    right = torch.zeros(())
    while True:
        for samples, labels in loader:
            outputs = model(samples)
            loss = torch.nn.functional.cross_entropy(outputs, labels)
            if not is_cured:
                outputs = model(samples)
            right += (outputs.argmax(1) == labels).sum()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if meter.is_done():
                return


def main():
    options, draw = arguments(__doc__)
    torch.set_num_threads(2)
    samples = TensorDataset(torch.randn(8000, 512), torch.randint(0, 10, (8000,)))
    loader = DataLoader(samples, batch_size=draw.choice((96, 128, 160)), shuffle=True)
    train(loader, classifier(512, draw.randrange(1200, 1800)), options.steps, options.cured)


if __name__ == "__main__":
    main()
