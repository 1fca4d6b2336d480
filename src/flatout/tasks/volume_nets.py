"""Networks for volumes: MONAI's ResNet and DenseNet in three dimensions, at any width."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from torch import nn

from flatout.config import Config
from flatout.errors import ConfigError, MissingDependencyError

RESNETS = {
    10: ("basic", (1, 1, 1, 1)),
    18: ("basic", (2, 2, 2, 2)),
    34: ("basic", (3, 4, 6, 3)),
    50: ("bottleneck", (3, 4, 6, 3)),
    101: ("bottleneck", (3, 4, 23, 3)),
    152: ("bottleneck", (3, 8, 36, 3)),
}
"""`model.num_layers` -> kind and number of the blocks of each stage."""
DENSENETS = {121: (6, 12, 24, 16), 169: (6, 12, 32, 32), 201: (6, 12, 48, 32), 264: (6, 12, 64, 48)}
DIM = 32
"""Channels of the first stage; each further one has twice as many."""
SMALLEST_DENSE = 29
"""Voxels of an axis that DenseNet can still halve five times."""
NUM_GROUPS = 8


def make_net(config: Config, num_channels: int, size: Sequence[int], num_outputs: int) -> nn.Module:
    """A network that takes (B, num_channels, *size) and gives (B, num_outputs).

    Raises:
        ConfigError: there is none of this depth, or MONAI does not take `model.params`.
        MissingDependencyError: MONAI is not installed.
    """
    make = _densenet if config.model.network == "densenet" else _resnet
    try:
        net = make(config, num_channels, size, num_outputs)
    except TypeError as error:
        raise ConfigError(f"model.params: MONAI does not take these: {error}") from error
    except ImportError as error:
        raise MissingDependencyError("task cardiac_ct needs MONAI: pip install 'flatout[medical]'") from error
    return net if "norm" in config.model.params else with_group_norms(net)


def with_group_norms(net: nn.Module) -> nn.Module:
    """The network with each batch normalisation replaced by one over groups of channels.

    Volumes come few at a time: means over them are noise, two halves of a batch are not the whole one, and a
    last batch of one sample has none. MONAI's ResNet takes another norm for its first layer only.
    """
    for parent in list(net.modules()):
        for name, child in parent.named_children():
            if isinstance(child, nn.BatchNorm3d):
                width = child.num_features
                setattr(parent, name, nn.GroupNorm(math.gcd(NUM_GROUPS, width), width))
    return net


def _resnet(config: Config, num_channels: int, size: Sequence[int], num_outputs: int) -> nn.Module:
    from monai.networks.nets import ResNet

    model = config.model
    block, layers = _of_depth(RESNETS, model.num_layers or 10, "resnet")
    settings: dict[str, Any] = {
        "block": block,
        "layers": list(layers),
        "block_inplanes": [(model.dim or DIM) * 2**stage for stage in range(4)],
        "spatial_dims": 3,
        "n_input_channels": num_channels,
        "num_classes": num_outputs,
        "conv1_t_stride": 2,  # at full resolution the first layer alone takes longer than all others
    }
    net: Any = ResNet(**settings | model.params)
    if model.dropout:
        net.fc = nn.Sequential(nn.Dropout(model.dropout), net.fc)
    return net  # type: ignore[no-any-return]


def _densenet(config: Config, num_channels: int, size: Sequence[int], num_outputs: int) -> nn.Module:
    from monai.networks.nets import DenseNet

    if min(size) < SMALLEST_DENSE:
        raise ConfigError(
            f"a densenet halves volumes five times; got {tuple(size)}, wanted at least {SMALLEST_DENSE} voxels "
            "along each axis. Give the volume another size, or set model.network: resnet"
        )
    model = config.model
    settings: dict[str, Any] = {
        "spatial_dims": 3,
        "in_channels": num_channels,
        "out_channels": num_outputs,
        "init_features": model.dim or DIM,
        "growth_rate": max(1, (model.dim or DIM) // 2),
        "block_config": _of_depth(DENSENETS, model.num_layers or 121, "densenet"),
        "dropout_prob": model.dropout or 0.0,
    }
    make: Callable[..., nn.Module] = DenseNet
    return make(**settings | model.params)


def _of_depth(known: dict[int, Any], depth: int, network: str) -> Any:
    if depth not in known:
        there = ", ".join(map(str, known))
        raise ConfigError(f"model.num_layers is {depth}; a {network} has {there}")
    return known[depth]
