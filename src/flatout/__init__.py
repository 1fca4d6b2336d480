"""Train flat out: remove the wait for data from PyTorch training."""

__version__ = "0.1.0"
