"""Every step writes gradients and activations to the log; cured, every fiftieth does."""

import logging
import tempfile
from pathlib import Path

import torch
from torch.utils.data import DataLoader, TensorDataset
from ward import Meter, arguments, classifier

logger = logging.getLogger("training")


def log_step(step, loss, model, num_values):
    logger.info("step %d loss %.5f", step, loss.item())
    for name, parameter in model.named_parameters():
        values = parameter.grad.flatten()[:num_values]
        logger.info("%s norm %.5f gradient %s", name, parameter.grad.norm().item(), values.tolist())


def train(loader, model, num_steps, log_every, num_values):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    meter = Meter(num_steps)
    step = 0
    while True:
        for samples, labels in loader:
            loss = torch.nn.functional.cross_entropy(model(samples), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if step % log_every == 0:
                log_step(step, loss, model, num_values)
            step += 1
            if meter.is_done():
                return


def main():
    options, draw = arguments(__doc__)
    torch.set_num_threads(1)
    samples = TensorDataset(torch.randn(4000, 1024), torch.randint(0, 10, (4000,)))
    loader = DataLoader(samples, batch_size=draw.choice((32, 48, 64)), shuffle=True)
    with tempfile.TemporaryDirectory(prefix="clinic-") as folder:
        handler = logging.FileHandler(Path(folder) / "train.log")
        logger.addHandler(handler)
        logger.setLevel(logging.INFO)
        try:
            model = classifier(1024, draw.randrange(512, 1024))
            train(loader, model, options.steps, 50 if options.cured else 1, draw.randrange(4000, 9000))
        finally:
            logger.removeHandler(handler)
            handler.close()


if __name__ == "__main__":
    main()
