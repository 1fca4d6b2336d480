"""The service-time model: what a step takes, by its parts, the workers that make batches, and the cores."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Work:
    """One step's work in seconds, as it would be if nobody stood in anybody's way."""

    compute_s: float
    """The training thread's own: copies, forward, backward, optimiser, and the rest of the loop."""
    compute_cpu_s: float
    """Core seconds of the same: two threads that compute for 10 ms take 20 ms."""
    make_s: float
    """Making a batch from start to end, in one process."""
    make_cpu_s: float
    """Core seconds of the same; what is missing to `make_s` is waiting for a disk or a network."""
    hand_over_s: float
    """The way of a batch from a worker to the training thread, both sides together."""
    uneven_s: float
    """Waits that come once in a while, spread over all steps: workers that start, a slow sample."""
    extra_s: float
    """Evaluation and logging, spread over all steps."""
    num_workers: int
    num_cores: float

    def step_s(self) -> float:
        """Seconds a step, the mean over many.

        Without workers all of it is a sum. With workers the slowest of three things rules: the training thread,
        the workers, the cores that both share.
        """
        rest_s = self.uneven_s + self.extra_s
        if self.num_workers == 0:
            return self.compute_s + self.make_s + rest_s
        thread_s = self.compute_s + self.hand_over_s / 2
        workers_s = (self.make_s + self.hand_over_s / 2) / self.num_workers
        cores_s = (self.compute_cpu_s + self.make_cpu_s + self.hand_over_s) / self.num_cores
        return max(thread_s, workers_s, cores_s) + rest_s


def best_workers(work: Work, most: int, least: int = 0) -> int:
    """The fewest workers with which a step takes at most 3 % more than with the best number of them."""
    steps = {number: _with_workers(work, number).step_s() for number in range(least, max(most, least) + 1)}
    best_s = min(steps.values())
    return next(number for number, step_s in steps.items() if step_s <= 1.03 * best_s)


def _with_workers(work: Work, num_workers: int) -> Work:
    return Work(**{**work.__dict__, "num_workers": num_workers})


def clipped(gain: float, most: float) -> float:
    """A prediction between no gain and the most that there is to win."""
    return max(1.0, min(gain, most))
