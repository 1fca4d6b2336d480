"""Remedies in how a batch is made: made once and kept, augmented all at once, stacked simply."""

from __future__ import annotations

from collections.abc import Callable

from flatout.doctor.record import Remedy
from flatout.doctor.rules.case import Case
from flatout.doctor.rules.making import (
    augment_s,
    costliest,
    files_per_sample,
    has_small_files,
    is_cold,
    stage_share,
)
from flatout.doctor.rules.words import count, duration, place, share
from flatout.loader.platform import AUTO_SHARE
from flatout.units import bytes_text

HIT_S = 10e-6
"""A sample from `flatout.cached`: 6 to 18 us for small ones (docs/cached.md)."""
COPY_BYTES_PER_S = 4e9
"""What a copy through memory makes, on a machine of two cores."""
MADE_SHARE = 0.3
"""Part of the making that reading and preparing must have before keeping the result pays."""
BATCHED = 1 / 20
"""What augmenting a whole batch at once takes, against one sample after another in SciPy, if not measured."""
STACKED = 1 / 20
"""What plain stacking takes of a collate function that is the trouble, if not measured."""
MADE_OF = {"reading": "fetch", "preparing": "prepare"}
SAID = 0.01
"""Part of the other that reading or preparing must take to be named."""
PASSES = 4
"""A collate function of whole arrays goes over the batch so often: it stacks, and does what it did."""


def advise_cache(case: Case) -> Remedy | None:
    """Each sample made once, and read back from then on."""
    loader = case.loader
    kept_s = _kept_s(case)
    if loader.is_iterable or not loader.num_samples or kept_s < MADE_SHARE * case.stages_s:
        return None
    is_random = augment_s(case) > 0 or bool(case.facts.draws_random)
    gain = case.gain_of(uneven_s=case.restart_s, **_made_with(case, kept_s, case.io_s, hit_s(case)))
    # Each rank makes the samples of its own batches; the folder is one for all.
    fill_s = loader.num_samples / max(loader.batch_size or 1, 1) * case.make_s / case.num_ranks
    disk = f"{bytes_text(case.dataset_bytes)} on the disk, " if case.dataset_bytes is not None else ""
    how = 'import flatout; dataset = flatout.cached(dataset, "cache")'
    if is_random:
        how = (
            'import flatout; dataset = flatout.cached(dataset, "cache", transform=augment), '
            "the random part moved into augment"
        )
    return Remedy(
        name="cache",
        evidence=_evidence_of_making(case),
        predicted_gain=gain,
        cost=f"{disk}a first epoch of {duration(fill_s)} of work",
        how=how,
        settings={} if is_random else {"cache": True},
    )


def advise_preload(case: Case) -> Remedy | None:
    """Everything in memory, and no workers: nothing is left for them to do."""
    loader, needed = case.loader, case.dataset_bytes
    if loader.is_iterable or needed is None or not loader.num_workers or case.facts.draws_random:
        return None
    kept_s = _kept_s(case)
    if needed > AUTO_SHARE * case.machine.free_bytes or kept_s < MADE_SHARE * case.stages_s:
        return None
    return Remedy(
        name="preload",
        evidence=f"all {loader.num_samples:,} samples take {bytes_text(needed)}, "
        f"{bytes_text(case.machine.free_bytes)} of memory are free"
        + (" for each rank" if case.num_ranks > 1 else ""),
        # Nothing of what workers did is left, whatever it was: only the collate function is still called.
        predicted_gain=case.gain_over_step(
            num_workers=0, uneven_s=0.0, here_s=hit_s(case) + _collate_here_s(case)
        ),
        cost=f"{bytes_text(needed)} of memory" + (" of each rank" if case.num_ranks > 1 else ""),
        how='import flatout; dataset = flatout.cached(dataset, "cache"), and DataLoader(..., num_workers=0); '
        "or samples = list(dataset)",
        settings={"cache": True, "num_workers": 0},
    )


def advise_batch_augment(case: Case) -> Remedy | None:
    """Random augmentation of the whole batch on the device instead of sample by sample."""
    spent_s = augment_s(case)
    if spent_s < 0.2 * case.stages_s:
        return None
    measured_s = case.facts.augment_here_s
    batched_s = BATCHED * spent_s * case.undisturbed if measured_s is None else measured_s
    found = costliest(case, "augment")
    where = f" ({found.name}, {place(*found.users_line)})" if found else ""
    return Remedy(
        name="batch_augment",
        evidence=f"augmentation of single samples{where} takes {duration(spent_s)} of the "
        f"{duration(case.stages_s)} that a batch takes to make",
        predicted_gain=case.gain_of(
            **_made_with(case, spent_s, 0.0, 0.0),
            compute_s=case.compute_s + batched_s,
            compute_cpu_s=case.compute_cpu_s + batched_s,
        ),
        cost="a little time of the device; the random numbers are others",
        how="return the plain sample from __getitem__ and augment the batch in the training loop: "
        "flatout.augment has the usual transforms (docs/augment.md)",
        changes_results=True,
    )


def advise_collate(case: Case) -> Remedy | None:
    """A collate function that only stacks."""
    spent_s = case.loader.seconds.get("collate", 0.0)
    if stage_share(case, "collate") < 0.25 or case.has_default_collate:
        return None
    found = next((f for f in case.loader.functions if "collate" in f.name.lower()), None)
    where = f" ({found.name}, {place(*found.users_line)})" if found else ""
    stacked_s = case.facts.stack_here_s
    now_s = spent_s * case.undisturbed
    left_s = STACKED * now_s if stacked_s is None else min(PASSES * stacked_s, now_s)
    return Remedy(
        name="collate",
        evidence=f"stacking the samples of a batch{where} takes {duration(spent_s)} of the "
        f"{duration(case.stages_s)} that it takes to make",
        predicted_gain=case.gain_of(**_made_with(case, spent_s, 0.0, left_s)),
        cost="none",
        how="arrays of one shape from __getitem__ and torch.stack in collate_fn (or none at all); no loops "
        "over elements, no lists of Python numbers, no work that __getitem__ could do once",
    )


def advise_disk(case: Case) -> Remedy | None:
    """Data on a disk that does not keep the workers waiting."""
    kind = case.facts.disk_kind
    if kind not in ("rotational", "network") or case.io_s < 0.2 * case.make_s:
        return None
    name = "a rotating disk" if kind == "rotational" else "a network file system"
    return Remedy(
        name="disk",
        evidence=f"the files are on {name}; {duration(case.io_s)} of the {duration(case.make_s)} of a batch "
        "are waiting for it",
        predicted_gain=case.gain_of(make_s=case.make_cpu_s, here_s=max(0.0, case.here_s - case.io_s)),
        cost="room for the data on a local SSD",
        how="copy the data to a local NVMe SSD, or keep the prepared samples there: import flatout; dataset = "
        'flatout.cached(dataset, "/local/cache"), or flatout prepare --output-dir /local/store',
    )


def hit_s(case: Case) -> float:
    """Seconds to read a batch of samples back from the cache."""
    return HIT_S * (case.loader.batch_size or 1) + (case.loader.batch_bytes or 0) / COPY_BYTES_PER_S


def _collate_here_s(case: Case) -> float:
    """Seconds of the collate function in the training thread."""
    known_s = case.facts.collate_here_s
    return case.loader.seconds.get("collate", 0.0) * case.undisturbed if known_s is None else known_s


def _kept_s(case: Case) -> float:
    """Seconds a batch that need not be spent again once the samples are kept."""
    made_s = case.loader.seconds.get("fetch", 0.0) + case.loader.seconds.get("prepare", 0.0)
    if not case.loader.seconds:
        made_s = case.stages_s
    return max(0.0, made_s - augment_s(case))


def _made_with(case: Case, saved_s: float, saved_io_s: float, added_s: float) -> dict[str, float]:
    """The making of a batch without some of its seconds (wall, as seen) and with others."""
    io_s = max(0.0, case.io_s - saved_io_s)
    busy_s = max(0.0, case.stages_s - saved_s - io_s)
    disturbed_s = case.stages_s - case.io_s  # with the seconds that its maker had no core
    cpu_s = busy_s * (case.make_cpu_s / disturbed_s if disturbed_s > 0 else 1.0) + added_s
    return {"make_s": cpu_s + io_s, "make_cpu_s": cpu_s, "here_s": cpu_s + io_s}


def _evidence_of_making(case: Case) -> str:
    """What takes the time of a batch, in numbers of the record."""
    text = _reading_and_preparing(case)
    if case.has_slow_samples:
        return f"{text}; the slowest hundredth of the samples takes {share(case.slow_share)} of that"
    if has_small_files(case):
        opened = count(case.facts.opens_per_batch or 0, "file")
        return f"{text}; {opened} are opened for it, {files_per_sample(case):.0f} a sample"
    if is_cold(case):
        from_disk = case.facts.disk_bytes_per_batch
        delivered = f"; {bytes_text(from_disk)} come from the disk itself" if from_disk else ""
        return f"{text}, {duration(case.io_s)} of it waiting for the disk{delivered}"
    found = costliest(case)
    if found is None:
        return text
    # It was looked at now and then: that may come to more than what was timed.
    seconds = min(
        found.seconds_per_batch, sum(case.loader.seconds.get(each, 0.0) for each in ("fetch", "prepare"))
    )
    return f"{text}; {found.name} ({place(*found.users_line)}) {duration(seconds)} of it"


def _reading_and_preparing(case: Case) -> str:
    """What of the two takes time at all: who keeps samples in memory reads nothing."""
    seconds = {what: case.loader.seconds.get(stage, 0.0) for what, stage in MADE_OF.items()}
    least_s = SAID * max(seconds.values())
    said = [(what, s) for what, s in seconds.items() if s > least_s] or [("making it", case.stages_s)]
    first, *more = [f"{what}{' takes' if at == 0 else ''} {duration(s)}" for at, (what, s) in enumerate(said)]
    return " and ".join([first, *more]) + " a batch"


DATA_RULES: tuple[Callable[[Case], Remedy | None], ...] = (
    advise_cache,
    advise_preload,
    advise_batch_augment,
    advise_collate,
    advise_disk,
)
