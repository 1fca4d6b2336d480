"""Signals are resampled, filtered and made noisy one by one with SciPy; cured, a batch is augmented at once."""

import numpy as np
import torch
from scipy import signal
from torch.utils.data import DataLoader, Dataset
from ward import Meter, arguments, classifier

LENGTH = 2000


class Beats(Dataset):
    def __init__(self, num_beats, has_augmentation, seed):
        generator = np.random.default_rng(seed)
        self.beats = generator.standard_normal((num_beats, LENGTH)).astype(np.float32)
        self.labels = generator.integers(0, 10, num_beats)
        self.has_augmentation = has_augmentation

    def __len__(self):
        return len(self.beats)

    def __getitem__(self, index):
        beat = self.beats[index]
        if self.has_augmentation:
            beat = augment_beat(beat)
        return torch.from_numpy(np.ascontiguousarray(beat, np.float32)), int(self.labels[index])


def augment_beat(beat):
    """Stretched, shifted, without a random band, noisy."""
    longer = signal.resample(beat, int(LENGTH * np.random.uniform(1.0, 1.2)))[:LENGTH]
    low = np.random.uniform(0.1, 0.4)
    numerator, denominator = signal.butter(4, (low, low + 0.2), "bandstop")
    filtered = signal.filtfilt(numerator, denominator, np.roll(longer, np.random.randint(200)))
    return filtered * np.random.uniform(0.8, 1.2) + 0.05 * np.random.standard_normal(LENGTH)


def augment_batch(beats):
    """The same kind of thing for all of them in a few operations."""
    shifted = torch.roll(beats, int(torch.randint(200, ())), 1)
    spectrum = torch.fft.rfft(shifted)
    low = int(torch.randint(100, 400, ()))
    spectrum[:, low : low + 200] = 0
    gains = torch.empty(len(beats), 1).uniform_(0.8, 1.2)
    return torch.fft.irfft(spectrum, LENGTH) * gains + 0.05 * torch.randn_like(beats)


def train(loader, model, num_steps, is_cured):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    meter = Meter(num_steps)
    while True:
        for beats, labels in loader:
            if is_cured:
                beats = augment_batch(beats)
            loss = torch.nn.functional.cross_entropy(model(beats), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if meter.is_done():
                return


def main():
    options, draw = arguments(__doc__)
    torch.set_num_threads(1)
    beats = Beats(draw.randrange(1200, 1800), not options.cured, options.seed)
    size = draw.choice((24, 32, 40))
    loader = DataLoader(beats, batch_size=size, shuffle=True, num_workers=2, persistent_workers=True)
    train(loader, classifier(LENGTH, draw.randrange(256, 640)), options.steps, options.cured)


if __name__ == "__main__":
    main()
