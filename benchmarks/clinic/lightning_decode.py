"""The slow decoding of slow_decode.py inside Lightning's Trainer."""

import logging
import warnings

import lightning
import torch
from slow_decode import Scans
from torch.utils.data import DataLoader
from ward import Meter, arguments, classifier


class Classifier(lightning.LightningModule):
    def __init__(self, width):
        super().__init__()
        self.model = classifier(64 * 64, width)

    def training_step(self, batch, index):
        scans, labels = batch
        return torch.nn.functional.cross_entropy(self.model(scans), labels)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)


class Stop(lightning.Callback):
    """Ends the training after so many steps, and prints what one took."""

    def __init__(self, num_steps):
        self.meter = Meter(num_steps)

    def on_train_batch_end(self, trainer, *_):
        trainer.should_stop = self.meter.is_done()


def main():
    options, draw = arguments(__doc__)
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    scans = Scans(draw.randrange(640, 900), 64 * draw.randrange(8, 13), options.seed)
    loader = DataLoader(
        scans, batch_size=draw.choice((12, 16, 20)), shuffle=True, num_workers=2, persistent_workers=True
    )
    trainer = lightning.Trainer(
        accelerator="cpu",
        max_epochs=-1,
        callbacks=[Stop(options.steps)],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Classifier(draw.randrange(256, 512)), loader)


if __name__ == "__main__":
    main()
