"""What is worth a trial: candidates for each thing that can be changed, none that cannot fit into memory."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from flatout.config.settle import MOST_WORKERS
from flatout.doctor.tune.facts import Facts
from flatout.doctor.tune.model import Service, best_workers
from flatout.doctor.tune.setting import AS_IT_IS, ENCODINGS, Setting
from flatout.loader.fetch import UNIT_BYTES
from flatout.loader.memory import CACHE_SHARE, PRELOAD_SHARE, BatchesAhead

MOST_THREADS = 8
LONGEST_PREFETCH = 32


@dataclass(frozen=True)
class Space:
    """Which settings may be tried.

    Args:
        memory_bytes: what batches ahead and samples kept may take.
        allowed: what may be changed although it changes results, see `TuneOptions`.
    """

    facts: Facts
    service: Service
    memory_bytes: int
    allowed: frozenset[str] = frozenset()

    @property
    def most_workers(self) -> int:
        """More are never tried."""
        most = MOST_THREADS if self.facts.is_fast else MOST_WORKERS
        return max(1, min(2 * self.facts.num_cores, most))

    def is_modelled(self, setting: Setting) -> bool:
        """Whether the model knows: it was measured for one batch size, without caches, as the store is."""
        is_same = setting.batch_size == self.service.batch_size and setting.encoding == AS_IT_IS
        return is_same and setting.cache == "none"

    def workers(self, now: Setting) -> list[Setting]:
        """The model's best, its neighbours, and none: where memory is the limit, threads disturb each other.

        Where the model does not know, some numbers between none and the most.
        """
        if self.is_modelled(now):
            best = best_workers(self.service, self._most_that_fit(now))
            wanted = {0, best - 1, best, best + 1}
        else:
            wanted = self._some(now)
        return self._with(now, self._with_workers(now, wanted))

    def _some(self, now: Setting) -> set[int]:
        """Numbers of workers where the model does not know: of samples in memory few, and no more than cores
        where they are what work waits for."""
        numbers = {0, 1, 2} if now.cache != "none" else {0, 1, 2, 4, MOST_THREADS, MOST_WORKERS}
        most = max(2, self.facts.num_cores) if self.service.is_cpu_bound else self.most_workers
        return {number for number in numbers if number <= most}

    def further(self, now: Setting, tried: Collection[int]) -> list[Setting]:
        """Twice as many workers where the most that were tried are the best, half where the fewest are."""
        number, some = now.num_workers, {each for each in tried if each}
        if not number or not some:
            return [now]
        can_grow = number == max(some) and number < self.most_workers
        wanted = {min(2 * number, self.most_workers)} if can_grow else set()
        wanted |= {number // 2} if number == min(some) else set()
        return self._with(now, self._with_workers(now, wanted - {0, *tried}))

    def _with_workers(self, now: Setting, numbers: Iterable[int]) -> list[Setting]:
        """With so many workers, and as many batches ahead as fit."""
        depth = now.prefetch_factor if now.num_workers else 2
        possible = sorted(number for number in numbers if 0 <= number <= self.most_workers)
        found = (now.changed(num_workers=number, prefetch_factor=depth) for number in possible)
        return [self._shallower(setting) for setting in found]

    def prefetch(self, now: Setting) -> list[Setting]:
        """Half and twice as many batches ahead."""
        if not now.num_workers:
            return [now]
        depths = (now.prefetch_factor // 2, 2 * now.prefetch_factor)
        wanted = (now.changed(prefetch_factor=d) for d in depths if 1 <= d <= LONGEST_PREFETCH)
        return self._with(now, wanted)

    def cache(self, now: Setting) -> list[Setting]:
        """Samples kept in memory or on the device, where they fit."""
        facts, room = self.facts, min(self.memory_bytes, self.facts.free_bytes)
        wanted = []
        if not facts.is_fast and facts.sample_bytes * facts.num_all <= PRELOAD_SHARE * room:
            kept = now.changed(cache="memory")
            wanted += [kept.changed(num_workers=0), kept.changed(num_workers=1, prefetch_factor=2)]
        decoded_bytes = facts.sample_bytes * facts.num_samples
        if facts.is_fast and facts.is_compressed and facts.cache_size < facts.num_samples:
            wanted += [now.changed(cache="decoded")] if decoded_bytes <= CACHE_SHARE * room else []
        if facts.is_fast and facts.has_cuda:
            wanted.append(now.changed(cache="device"))
        return self._with(now, wanted)

    def order(self, now: Setting) -> list[Setting]:
        """Shard by shard, where samples have to be sought on a disk; what draws by classes or weights stays."""
        facts = self.facts
        may_help = facts.is_fast and facts.is_shuffled and facts.num_shards > 1 and facts.is_larger_than_memory
        is_open = "order" in self.allowed and now.order == "global"
        wanted = [now.changed(order="shard_local")] if is_open and may_help else []
        return self._with(now, wanted)

    def encoding(self, now: Setting) -> list[Setting]:
        """Other forms of the fields in the store."""
        if "encoding" not in self.allowed or not self.facts.is_fast or not self.facts.encodable:
            return [now]
        others = (name for name in ENCODINGS if name != self.facts.form)
        return self._with(now, (now.changed(encoding=name) for name in (AS_IT_IS, *others)))

    def batch_size(self, now: Setting) -> list[Setting]:
        """Half, twice and four times as many samples."""
        if "batch_size" not in self.allowed or self.facts.has_tokens:
            return [now]
        sizes = (now.batch_size // 2, 2 * now.batch_size, 4 * now.batch_size)
        most = max(1, self.facts.num_samples // 2)
        return self._with(now, (now.changed(batch_size=size) for size in sizes if 1 <= size <= most))

    def fits(self, setting: Setting) -> bool:
        """Whether its batches ahead are within the memory budget, and in /dev/shm where they go through it."""
        batch_bytes = setting.batch_size * self.facts.sample_bytes
        if self.facts.is_fast and setting.num_workers:  # small ones are made many at once
            batch_bytes = max(batch_bytes, UNIT_BYTES)
        ahead = BatchesAhead(setting.num_workers, setting.prefetch_factor, 1, batch_bytes)
        room = self.memory_bytes
        if not self.facts.is_fast and setting.num_workers and self.facts.shared_bytes is not None:
            room = min(room, self.facts.shared_bytes)
        return ahead.num_bytes <= room

    def _most_that_fit(self, now: Setting) -> int:
        """Workers with one batch ahead of each."""
        numbers = range(self.most_workers, 0, -1)
        return next((n for n in numbers if self.fits(now.changed(num_workers=n, prefetch_factor=1))), 0)

    def _shallower(self, setting: Setting) -> Setting:
        """With as many batches ahead as fit."""
        while setting.prefetch_factor > 1 and not self.fits(setting):
            setting = setting.changed(prefetch_factor=setting.prefetch_factor // 2)
        return setting

    def _with(self, now: Setting, wanted: Iterable[Setting]) -> list[Setting]:
        """What stands now, and those that fit."""
        return list(dict.fromkeys([now, *(setting for setting in wanted if self.fits(setting))]))
