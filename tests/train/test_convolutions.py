"""Shallow volumes in bfloat16 on the CPU: the gradients are those of float32, not left-over memory."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from flatout.train.convolutions import SafeConv3d, protect_convolutions

CPU = torch.device("cpu")


def gradient(layer: nn.Module, volume: Tensor, *, is_half: bool) -> Tensor:
    """Of the weights, after memory has been filled with large numbers and given back."""
    for num in (5_000, 100_000, 2_000_000):
        torch.full((num,), 1e18)
    layer.zero_grad()
    with torch.autocast("cpu", torch.bfloat16, enabled=is_half):
        made = layer(volume)
    weights = torch.randn(made.shape, generator=torch.Generator().manual_seed(1))
    (made.float() * weights).sum().backward()
    return layer.weight.grad.clone()  # type: ignore[union-attr,operator,return-value]


@pytest.mark.parametrize("depth", [1, 2, 3, 4])
@pytest.mark.parametrize(
    "make",
    [
        lambda: nn.Conv3d(8, 16, 3, padding=1, bias=False),
        lambda: nn.Conv3d(8, 16, 3, padding=1, bias=False, groups=2),
        lambda: nn.ConvTranspose3d(8, 16, 3, padding=1, bias=False),
    ],
)
def test_gradients_are_those_of_float32(make: Callable[[], nn.Module], depth: int) -> None:
    torch.manual_seed(0)
    network = nn.Sequential(make())
    protect_convolutions(network, "bf16-mixed", CPU)
    volume = torch.randn(4, 8, depth, 4, 4)
    for _ in range(3):
        expected = gradient(network[0], volume, is_half=False)
        found = gradient(network[0], volume, is_half=True)
        torch.testing.assert_close(found, expected, atol=0.05 * float(expected.abs().max()), rtol=0.0)


def test_deep_volumes_stay_in_half_precision() -> None:
    layer = nn.Conv3d(2, 4, 3, padding=1)
    protect_convolutions(layer, "bf16-mixed", CPU)
    with torch.autocast("cpu", torch.bfloat16):
        assert layer(torch.randn(1, 2, 3, 4, 4)).dtype == torch.bfloat16
        assert layer(torch.randn(1, 2, 2, 4, 4)).dtype == torch.float32


def test_only_where_it_is_called_for() -> None:
    def protected(precision: str, device: torch.device) -> bool:
        network = nn.Sequential(nn.Conv3d(1, 1, 3), nn.Conv2d(1, 1, 3))
        names = list(network.state_dict())
        protect_convolutions(network, precision, device)
        assert list(network.state_dict()) == names
        assert type(network[1]) is nn.Conv2d
        return type(network[0]) is SafeConv3d

    assert protected("bf16-mixed", CPU)
    assert not protected("32-true", CPU)
    assert not protected("bf16-mixed", torch.device("cuda"))
