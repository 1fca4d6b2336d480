"""Nothing is wrong: one worker decodes ahead on the core that the model leaves free."""

import torch
from no_workers import Traces, train
from torch.utils.data import DataLoader
from ward import arguments, classifier


def main():
    options, draw = arguments(__doc__)
    torch.set_num_threads(1)
    traces = Traces(draw.randrange(900, 1200), 2048 * draw.randrange(4, 10), options.seed)
    loader = DataLoader(
        traces, batch_size=16, shuffle=True, num_workers=1, persistent_workers=True, prefetch_factor=4
    )
    train(loader, classifier(2048, draw.randrange(1400, 2000)), options.steps)


if __name__ == "__main__":
    main()
