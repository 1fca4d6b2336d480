"""Texts of all lengths are padded to the longest there could be; cured, to the longest of their batch."""

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset
from ward import Meter, arguments


class Texts(Dataset):
    def __init__(self, num_texts, longest, draw):
        lengths = [min(longest, int(draw.gammavariate(2.0, longest / 24)) + 8) for _ in range(num_texts)]
        self.texts = [torch.randint(1, 200, (length,)) for length in lengths]

    def __len__(self):
        return len(self.texts)

    def __getitem__(self, index):
        return self.texts[index], int(self.texts[index][0]) % 10


class Padded:
    """Collates to one length, or to that of the longest in the batch."""

    def __init__(self, length):
        self.length = length

    def __call__(self, samples):
        texts = nn.utils.rnn.pad_sequence([text for text, _ in samples], batch_first=True)
        if self.length is not None:
            texts = nn.functional.pad(texts, (0, self.length - texts.shape[1]))
        return texts, torch.tensor([label for _, label in samples])


class Reader(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.embedding = nn.Embedding(200, width, padding_idx=0)
        self.layers = nn.Sequential(
            nn.Conv1d(width, width, 5, padding=2), nn.ReLU(), nn.Conv1d(width, width, 5, padding=2), nn.ReLU()
        )
        self.head = nn.Linear(width, 10)

    def forward(self, texts):
        features = self.layers(self.embedding(texts).transpose(1, 2))
        return self.head(features.amax(2))


def train(loader, model, num_steps):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    meter = Meter(num_steps)
    while True:
        for texts, labels in loader:
            loss = nn.functional.cross_entropy(model(texts), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if meter.is_done():
                return


def main():
    options, draw = arguments(__doc__)
    torch.set_num_threads(1)
    longest = draw.randrange(700, 1100)
    texts = Texts(2000, longest, draw)
    collate = Padded(None if options.cured else longest)
    loader = DataLoader(texts, batch_size=draw.choice((12, 16, 20)), shuffle=True, collate_fn=collate)
    train(loader, Reader(draw.choice((40, 48, 64))), options.steps)


if __name__ == "__main__":
    main()
