"""What the scripts of the clinic share: arguments, the numbers drawn for a run, a model, and the last line."""

import argparse
import os
import random
import time

import torch
from torch import nn

WARMUP = 8


def arguments(description):
    """The command line, and the generator that all rates and sizes of this run are drawn from."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--seed", type=int, default=int(os.environ.get("CLINIC_SEED", "0")))
    parser.add_argument("--steps", type=int, default=5000)
    parser.add_argument("--cured", action="store_true", help="without the disease")
    options = parser.parse_args()
    options.seed = options.seed or time.time_ns() % (1 << 31)
    print(f"seed {options.seed}", flush=True)
    torch.manual_seed(options.seed)
    return options, random.Random(options.seed)


def classifier(num_inputs, width, num_classes=10):
    """A model whose work grows with its width."""
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(num_inputs, width),
        nn.ReLU(),
        nn.Linear(width, width),
        nn.ReLU(),
        nn.Linear(width, num_classes),
    )


class Meter:
    """Counts steps, and prints what one took on average after the first few."""

    def __init__(self, num_steps):
        self.num_steps = num_steps
        self.done = 0
        self.started = time.perf_counter()

    def is_done(self):
        """Call it at the end of a step."""
        self.done += 1
        if self.done == WARMUP:
            self.started = time.perf_counter()
        if self.done < self.num_steps:
            return False
        spent = time.perf_counter() - self.started
        print(f"mean step {spent / max(self.done - WARMUP, 1):.6f} s")
        return True
