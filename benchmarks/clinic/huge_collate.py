"""A collate function turns every sample into Python numbers and back; cured, it stacks."""

import torch
from torch.utils.data import DataLoader, Dataset
from ward import Meter, arguments, classifier


class Windows(Dataset):
    def __init__(self, num_windows, length):
        self.windows = torch.randn(num_windows, length)
        self.labels = torch.randint(0, 10, (num_windows,))

    def __len__(self):
        return len(self.windows)

    def __getitem__(self, index):
        return self.windows[index], self.labels[index]


def collate_by_number(samples):
    rows, labels = [], []
    for window, label in samples:
        mean, spread = float(window.mean()), float(window.std())
        rows.append([(value - mean) / spread for value in window.tolist()])
        labels.append(int(label))
    return torch.tensor(rows), torch.tensor(labels)


def collate_by_stack(samples):
    windows = torch.stack([window for window, _ in samples])
    windows = (windows - windows.mean(1, keepdim=True)) / windows.std(1, keepdim=True)
    return windows, torch.stack([label for _, label in samples])


def train(loader, model, num_steps):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    meter = Meter(num_steps)
    while True:
        for windows, labels in loader:
            loss = torch.nn.functional.cross_entropy(model(windows), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if meter.is_done():
                return


def main():
    options, draw = arguments(__doc__)
    torch.set_num_threads(1)
    length = draw.randrange(3000, 6000)
    loader = DataLoader(
        Windows(draw.randrange(3000, 4000), length),
        batch_size=draw.choice((32, 48, 64)),
        shuffle=True,
        num_workers=2,
        persistent_workers=True,
        collate_fn=collate_by_stack if options.cured else collate_by_number,
    )
    train(loader, classifier(length, draw.randrange(128, 256)), options.steps)


if __name__ == "__main__":
    main()
