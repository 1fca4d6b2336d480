"""What the compiled kernels may be given: plain tensors in the host's memory that no gradient flows through.

Everything else (other devices, gradients, half precision, compiled and traced code, fake tensors) goes the way
of torch operations, which every transform has. The choice never depends on the size of a batch: a sample comes
out the same in any.
"""

from __future__ import annotations

import logging
from functools import cache
from importlib import import_module
from types import ModuleType

import torch
from torch import Tensor
from torch.autograd import forward_ad

from flatout.types import Array

_log = logging.getLogger(__name__)


def host_kernels(*tensors: Tensor) -> ModuleType | None:
    """`flatout.augment.kernels` if it can be used for all of these tensors, else None."""
    if torch.compiler.is_compiling() or not all(map(is_plain, tensors)):
        return None
    return load_kernels()


def is_plain(x: Tensor) -> bool:
    """Whether the values may be read and written behind torch's back."""
    return (
        type(x) is Tensor  # fake tensors and whatever else traces are subclasses
        and x.device.type == "cpu"
        and x.layout is torch.strided
        and not (x.requires_grad and torch.is_grad_enabled())
        and not torch._C._is_tracing()
        and forward_ad._current_level < 0
        and not torch._C._functorch.is_functorch_wrapped_tensor(x)
    )


@cache
def load_kernels() -> ModuleType | None:
    """The kernels, or None where Numba is not installed or does not know this Python or NumPy."""
    try:
        return import_module("flatout.augment.kernels")
    except ImportError as error:
        _log.info("augmentation on the CPU goes without compiled kernels: %s", error)
        return None


def array(x: Tensor) -> Array:
    """The values as NumPy sees them, in order; shared with the tensor if it is contiguous and in this memory.

    Raises:
        TypeError: it is on another device, where writing to a copy would change nothing.
    """
    return x.detach().contiguous().resolve_neg().numpy()
