"""The service-time model: what one batch costs to make, to hand over and to train on; seconds a batch out.

It says which settings are worth a trial. What a trial measures is believed, not this.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

CPU_BOUND = 0.8


@dataclass(frozen=True)
class Service:
    """Costs of one batch, measured one after the other with nothing else going on."""

    is_fast: bool
    """Workers are threads, and the consumer makes batches itself while it would wait."""
    num_cores: int
    batch_size: int
    make_s: float
    make_cpu_s: float
    """CPU seconds of `make_s`; far less means that a disk or a network is waited for."""
    step_s: float = 0.0
    """What the training thread does with a batch; 0: loading alone is tuned."""
    step_cpu_s: float = 0.0
    hand_s: float = 0.0
    """Seconds of the training thread that taking a batch from a worker process costs."""

    @property
    def is_cpu_bound(self) -> bool:
        """Whether making a batch is work for a core, rather than a wait for a disk."""
        return self.make_cpu_s > CPU_BOUND * self.make_s

    def to_json(self) -> dict[str, Any]:
        """Plain values by name."""
        return asdict(self)


def predict_batch_s(service: Service, num_workers: int) -> float:
    """Seconds a batch with so many workers: whichever takes longest, the training thread, the workers, or all
    cores together."""
    if not num_workers:
        return service.step_s + service.make_s
    all_cores_s = (service.step_cpu_s + service.make_cpu_s) / service.num_cores
    if service.is_fast:
        shared_s = (service.make_s + service.step_s) / (num_workers + 1)
        return max(service.step_s, shared_s, all_cores_s)
    alone_s = service.step_s + service.hand_s
    return max(alone_s, service.make_s / num_workers, all_cores_s + service.hand_s / service.num_cores)


def best_workers(service: Service, most: int, tolerance: float = 0.02) -> int:
    """The smallest number of workers whose prediction is as good as any."""
    predicted = [predict_batch_s(service, number) for number in range(most + 1)]
    return next(number for number, each in enumerate(predicted) if each <= min(predicted) * (1 + tolerance))
