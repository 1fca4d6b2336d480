"""Where a run trains: accelerator, devices, and the process layout they ask for."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from flatout.config import Config
from flatout.errors import ConfigError


@dataclass(frozen=True)
class Place:
    """What Lightning is told."""

    accelerator: str
    devices: int | list[int] | str
    notes: tuple[str, ...] = ()

    @property
    def device(self) -> torch.device:
        """The first device, whose abilities decide for all."""
        if self.accelerator != "cuda":
            return torch.device(self.accelerator)
        return torch.device("cuda", self.devices[0] if isinstance(self.devices, list) else 0)

    @property
    def num_devices(self) -> int:
        """How many processes train."""
        if isinstance(self.devices, list):
            return len(self.devices)
        if self.devices == "auto":
            return torch.cuda.device_count() if self.accelerator == "cuda" else 1
        return int(self.devices)


def choose_place(config: Config, num_cuda: int | None = None, has_mps: bool | None = None) -> Place:
    """The place of a config on this machine.

    Args:
        num_cuda, has_mps: what there is; absent: looked for.

    Raises:
        ConfigError: more devices than there are, or one that is not there.
    """
    num_cuda = torch.cuda.device_count() if num_cuda is None else num_cuda
    has_mps = torch.backends.mps.is_available() if has_mps is None else has_mps
    wanted, _, number = config.device.partition(":")
    if wanted == "auto":
        wanted = "cuda" if num_cuda else "mps" if has_mps else "cpu"
    if (wanted == "cuda" and not num_cuda) or (wanted == "mps" and not has_mps):
        return Place("cpu", _of_cpu(config), (f"device: {config.device} is not there; the CPU is used",))
    if wanted == "cpu":
        return Place("cpu", _of_cpu(config))
    if number:
        return Place(wanted, _checked([int(number)], num_cuda))
    return Place(wanted, _checked(config.devices, num_cuda if wanted == "cuda" else 1))


def _of_cpu(config: Config) -> int:
    """Processes on the CPU; a list of devices means as many."""
    if isinstance(config.devices, list):
        return len(config.devices)
    return 1 if config.devices == "auto" else config.devices


def _checked(devices: int | list[int] | str, num_there: int) -> int | list[int] | str:
    if devices == "auto":
        return "auto"
    most = max(devices, default=0) + 1 if isinstance(devices, list) else int(devices)
    if most > num_there:
        raise ConfigError(
            f"devices: {devices} is asked for, this machine has {num_there}; 'auto' takes what is there"
        )
    return devices


def leaves_processor_free(device: torch.device) -> bool:
    """Whether threads beside a step cost it nothing. On a CPU they take its cores, whose kernels wait for the
    slowest of them."""
    return device.type == "cuda"
