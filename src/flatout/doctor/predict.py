"""The service-time model: what a step takes, by its parts, the workers that make batches, and the cores."""

from __future__ import annotations

from dataclasses import dataclass, replace

PACKED = 0.9
"""Part of the cores that is used where more processes than cores take turns on them: 0.85 to 0.95 were seen."""


@dataclass(frozen=True)
class Work:
    """One step's work in seconds, as it would be if nobody stood in anybody's way."""

    compute_s: float
    """The training thread's own: copies, forward, backward, optimiser, and the rest of the loop."""
    compute_cpu_s: float
    """Core seconds of the same: two threads that compute for 10 ms take 20 ms."""
    make_s: float
    """Making a batch from start to end, in one worker."""
    make_cpu_s: float
    """Core seconds of the same; what is missing to `make_s` is waiting for a disk or a network."""
    here_s: float
    """Making a batch in the training thread itself: nothing goes through shared memory."""
    hand_over_s: float
    """The way of a batch from a worker to the training thread, both sides together."""
    uneven_s: float
    """Waits that come once in a while, spread over all steps: workers that start, a slow sample."""
    extra_s: float
    """Evaluation and logging, spread over all steps."""
    num_workers: int
    num_cores: float
    slowdown: float = 0.0
    """What a second of somebody busy on another core takes from whoever computes meanwhile, in seconds: two
    "cores" are often halves of one, and all share memory. 0: cores that know nothing of each other; 1 with two
    cores: no more than one."""

    def step_s(self) -> float:
        """Seconds a step, the mean over many.

        Without workers all of it is a sum. With workers the slowest of three things rules: the training thread,
        the workers, the cores that both share.
        """
        rest_s = self.uneven_s + self.extra_s
        if self.num_workers == 0:
            return self.compute_s + self.here_s + rest_s
        return max(self._thread_s(), self._workers_s(), self._cores_s()) + rest_s

    def _thread_s(self) -> float:
        """It never waits, but workers are busy beside it for as long as one batch takes to make."""
        own_s = self.compute_s + self.hand_over_s / 2
        beside_s = min(self.make_cpu_s + self.hand_over_s / 2, own_s * self._most_beside)
        return own_s + self.slowdown * beside_s

    def _workers_s(self) -> float:
        """They never wait: beside each are the others all the time, and the training for a part of it."""
        busy_s, thread_s = self.make_cpu_s + self.hand_over_s / 2, self.compute_s + self.hand_over_s / 2
        trains = min(1.0, self.num_workers * thread_s / busy_s) if busy_s > 0 else 0.0
        beside = min(self.num_workers - 1 + trains, self._most_beside)
        return (self.make_s + self.hand_over_s / 2 + self.slowdown * beside * busy_s) / self.num_workers

    def _cores_s(self) -> float:
        """All cores are busy all the time; threads that compute together were measured beside each other."""
        threads = self.compute_cpu_s / self.compute_s if self.compute_s > 0 else 1.0
        beside = max(0.0, min(self.num_cores - threads, self._most_beside))
        computed_s = self.compute_cpu_s * (1 + self.slowdown * beside)
        made_s = (self.make_cpu_s + self.hand_over_s) * (1 + self.slowdown * self._most_beside)
        packed = PACKED if self.num_workers + 1 > self.num_cores else 1.0
        return (computed_s + made_s) / (packed * self.num_cores)

    @property
    def _most_beside(self) -> float:
        """Cores beside one's own."""
        return max(0.0, self.num_cores - 1)


def best_workers(work: Work, most: int, least: int = 0) -> int:
    """The fewest workers with which a step takes at most 3 % more than with the best number of them."""
    numbers = range(least, max(most, least) + 1)
    steps = {number: replace(work, num_workers=number).step_s() for number in numbers}
    best_s = min(steps.values())
    return next(number for number, step_s in steps.items() if step_s <= 1.03 * best_s)


def clipped(gain: float, most: float) -> float:
    """A prediction between no gain and the most that there is to win."""
    return max(1.0, min(gain, most))
