"""Remedies in the arguments of the DataLoader: how many workers, kept alive or not, how far ahead."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from flatout.config import LoaderSettings
from flatout.config.settle import MOST_WORKERS
from flatout.doctor.predict import best_workers
from flatout.doctor.record import Remedy
from flatout.doctor.rules.case import Case
from flatout.doctor.rules.words import count, duration, share, times
from flatout.loader.platform import decide
from flatout.units import bytes_text

PREFETCH = 8
"""Batches ahead of each worker that are advised where single samples hold everybody up."""
MIN_GAIN = 1.1
"""Below this the number of workers is left as it is."""
DEAR = 0.3
"""What a second on another core takes from the training, from which that is why workers do not pay."""
WITH_RESTARTS = 1.5
"""In seconds of restarts: the most that goes with them. Of short epochs 1.3 were won; beside programs that keep
all cores busy 4.5x was foretold of restarts that took 15 % of all time, because the rest was not explained."""
IO_SHARE = 0.5
"""Part of a batch's making that is waiting, from which more workers than cores pay."""


def advise_workers(case: Case) -> Remedy | None:
    """More workers, or fewer: the number with which the model's step is shortest."""
    number = wanted_workers(case)
    if number == case.loader.num_workers:
        return None
    gain = gain_of_workers(case, number)
    return Remedy(
        name="workers",
        evidence=_evidence(case, number),
        predicted_gain=gain,
        cost=_cost(case, number),
        how=f"DataLoader(..., {_arguments(case, number)})",
        settings=_settings(case, number),
        changes_results=draws_otherwise(case),
    )


def draws_otherwise(case: Case) -> bool:
    """Whether samples get other random numbers: a worker has a seed of its own, from when it is started."""
    return bool(case.facts.draws_random)


def wanted_workers(case: Case) -> int:
    """The number of workers that suits the work, the cores, the memory and the platform."""
    most = most_workers(case)
    if case.loader.is_iterable:  # a second worker would read the same samples again, unless it is told not to
        most = min(most, max(1, case.loader.num_workers))
    wanted = best_workers(case.work, most)
    current = case.loader.num_workers
    if current <= most and gain_of_workers(case, wanted) < MIN_GAIN:
        return current
    return wanted


def most_workers(case: Case) -> int:
    """What the platform rules allow at the most; twice the cores where workers mostly wait for a disk."""
    loader = case.loader
    settings = LoaderSettings(
        num_workers="auto",
        batch_size=loader.batch_size or 1,
        prefetch_factor=loader.prefetch_factor or LoaderSettings.model_fields["prefetch_factor"].default,
    )
    machine = case.machine
    most = decide(settings, machine=machine, is_fast=False, sample_bytes=case.sample_bytes).num_workers
    if most == machine.num_cores and case.make_s > 0 and case.io_s / case.make_s > IO_SHARE:
        return min(2 * most, MOST_WORKERS)
    return most


def gain_of_workers(case: Case, number: int) -> float:
    """How many times as fast with that number.

    What too many workers cost is in the step, not in the model; without any of them it is gone as well.
    """
    is_crowd = case.loader.num_workers > most_workers(case)
    gain = case.gain_over_step if is_crowd or number == 0 else case.gain_in_model
    return gain(num_workers=number, uneven_s=case.stall_s)


def why_no_more(case: Case) -> str:
    """Why no more workers are advised where everybody would ask for them first; empty: nobody would."""
    loader, most = case.loader, most_workers(case)
    if loader.is_iterable or loader.num_workers >= most or wanted_workers(case) != loader.num_workers:
        return ""
    gain = case.work.step_s() / replace(case.work, num_workers=most).step_s()
    if gain >= MIN_GAIN:
        return ""
    lost = case.work.slowdown
    why = f": what another core does takes {share(lost)} of that time from the training, as measured"
    return (
        f"more workers are not advised: with {most} a step is predicted to be {times(gain)} as fast"
        f"{why if lost >= DEAR else ''}"
    )


def advise_persistent(case: Case) -> Remedy | None:
    """Workers that stay alive between epochs."""
    loader = case.loader
    if case.restart_s <= 0:
        return None
    starts = loader.worker_starts / max(loader.num_workers, 1)
    each_s = case.facts.epoch_start_s or case.restart_s * len(case.record.steps) / max(starts, 1)
    length = case.facts.steps_per_epoch
    when = f"anew every {count(length, 'step')}" if length else f"{starts:.0f} times"
    first_s = min((case.make_s + case.hand_over_s) / length, case.restart_s) if length else 0.0
    return Remedy(
        name="persistent",
        evidence=f"{count(loader.num_workers, 'worker')} started {when}, {duration(each_s)} each time, "
        f"{share(case.restart_s / case.step_s)} of all time",
        # What the model does not know goes with the restarts; an epoch's first batch is still waited for.
        predicted_gain=min(
            case.gain_over_step(uneven_s=first_s), case.gain_without(WITH_RESTARTS * case.restart_s)
        ),
        cost="the memory of the workers between epochs",
        how="DataLoader(..., persistent_workers=True)",
        settings={"persistent_workers": True},
        changes_results=draws_otherwise(case),
    )


def advise_prefetch(case: Case) -> Remedy | None:
    """More batches ahead: evens out what is only now and then too slow."""
    loader = case.loader
    if not loader.num_workers or (loader.prefetch_factor or 2) >= PREFETCH or case.stall_s <= 0:
        return None
    ahead = loader.num_workers * PREFETCH * (loader.batch_bytes or 0)
    return Remedy(
        name="prefetch",
        evidence=f"{duration(case.stall_s)} a step are waited for single slow samples, while on average "
        "batches are made in time",
        # Half of the way: how unevenly batches come is seen, but not how far ahead one has to be.
        predicted_gain=case.gain_of(uneven_s=case.restart_s + case.stall_s / 2),
        cost=f"up to {bytes_text(ahead)} of memory for batches made ahead",
        how=f"DataLoader(..., prefetch_factor={PREFETCH})",
        settings={"prefetch_factor": PREFETCH},
    )


def advise_shards(case: Case) -> Remedy | None:
    """An iterable dataset that gives each worker its own part."""
    loader = case.loader
    if not loader.is_iterable or case.machine.num_cores < 2:
        return None
    number = best_workers(case.work, most_workers(case))
    if number < 2 or number <= loader.num_workers:
        return None
    return Remedy(
        name="shard",
        evidence=f"a batch takes {duration(case.make_s)} to make, training on it {duration(case.compute_s)}; "
        "each worker of an iterable dataset reads all of it unless it is told its part",
        predicted_gain=case.gain_of(num_workers=number, uneven_s=0.0),
        cost=_cost(case, number),
        how="in __iter__: info = torch.utils.data.get_worker_info(); yield only every info.num_workers-th "
        f"sample, from info.id on; then DataLoader(..., num_workers={number}, persistent_workers=True)",
        changes_results=True,
    )


def _evidence(case: Case, number: int) -> str:
    loader, cores = case.loader, case.cores_text
    made = f"a batch takes {duration(case.make_s)} to make and {duration(case.compute_s)} to train on"
    if loader.num_workers == 0:
        return f"{made}, one after the other: nobody makes the next batch meanwhile ({cores})"
    if number < loader.num_workers:
        verb = "shares" if loader.num_workers == 1 else "share"
        way = f"; the way from a worker takes {duration(case.hand_over_s)}" if case.hand_over_s else ""
        return f"{made}; {count(loader.num_workers, 'worker')} {verb} {cores}{way}"
    verb = "makes" if loader.num_workers == 1 else "make"
    return f"{made}; {count(loader.num_workers, 'worker')} on {cores} {verb} them"


def _arguments(case: Case, number: int) -> str:
    return ", ".join(f"{name}={value}" for name, value in _settings(case, number).items())


def _settings(case: Case, number: int) -> dict[str, int | bool]:
    """Of workers that are kept alive where they are worth having; without any the rest must go."""
    if not number:
        return {"num_workers": 0}
    return {"num_workers": number, "persistent_workers": True}


def _cost(case: Case, number: int) -> str:
    loader = case.loader
    if number < loader.num_workers:
        return "none; it frees memory"
    ahead = number * (loader.prefetch_factor or 2) * (loader.batch_bytes or 0)
    processes = "1 process" if number == 1 else f"{number} processes"
    if case.num_ranks > 1:
        processes += " of each rank"
    return f"{processes} with the dataset" + (f", {bytes_text(ahead)} of batches made ahead" if ahead else "")


WORKER_RULES: tuple[Callable[[Case], Remedy | None], ...] = (
    advise_workers,
    advise_persistent,
    advise_prefetch,
    advise_shards,
)
