"""Remedies in the training loop: less evaluation, logging and padding, copies that do not stop the host."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

from flatout.doctor.record import Remedy
from flatout.doctor.rules.case import Case
from flatout.doctor.rules.words import duration, share

EVALUATE_LESS = 10
"""How many times as many steps between two evaluations are advised."""
LOG_LESS = 50
"""Steps between two lines of the log that are advised."""
MIN_SHARE = 0.05
"""Part of a step below which evaluation, logging and copies are left alone."""
MIN_PADDING = 0.25
SHRINKS = 0.95
"""Part of forward and backward that follows the length, if that was not measured."""
NEAR = 3
"""Lines around a call of a logger that are there for its sake."""


def advise_less_evaluation(case: Case) -> Remedy | None:
    """Evaluation less often, or on fewer batches."""
    if case.share_of("evaluate") < MIN_SHARE:
        return None
    spent_s, often = case.seconds["evaluate"], case.facts.evaluations
    every = f", once in {1 / often:.3g} steps" if often else ""
    where = f" ({case.facts.evaluate_place})" if case.facts.evaluate_place else ""
    number = evaluated_batches(case)
    fewer = max(1, round(number / EVALUATE_LESS)) if number >= EVALUATE_LESS else None
    left = fewer / number if fewer else 1 / EVALUATE_LESS
    return Remedy(
        name="evaluate_less",
        evidence=f"evaluation{where} takes {share(case.share_of('evaluate'))} of the time{every}: "
        f"{duration(spent_s)} of each step",
        predicted_gain=case.gain_without(spent_s * (1 - left)),
        cost="fewer points on the validation curve, or rougher ones",
        how=f"evaluate every {EVALUATE_LESS} times as many steps (Lightning: val_check_interval, "
        "check_val_every_n_epoch), or on a tenth of the batches (limit_val_batches=0.1)",
        settings={"evaluate_batches": fewer} if fewer else {},
    )


def evaluated_batches(case: Case) -> int:
    """Batches of the largest loader that is only evaluated with; 0 if that is not known."""
    loaders = [each for each in case.record.loaders if each.name == "evaluate"]
    return max((math.ceil((each.num_samples or 0) / (each.batch_size or 1)) for each in loaders), default=0)


def advise_less_logging(case: Case) -> Remedy | None:
    """Log every so many steps."""
    if case.share_of("log") < MIN_SHARE:
        return None
    spent_s, calls = logged_s(case), case.facts.log_calls
    each = f" in {calls:.3g} calls a step" if calls else ""
    where = f" ({case.facts.log_place})" if case.facts.log_place else ""
    return Remedy(
        name="log_less",
        evidence=f"logging{where} takes {share(spent_s / case.step_s)} of the time{each}: "
        f"{duration(spent_s)} of each step",
        predicted_gain=case.gain_without(spent_s * (1 - 1 / LOG_LESS)),
        cost="fewer points on the curves",
        how=f"if step % {LOG_LESS} == 0: around what is printed, logged or drawn (Lightning: log_every_n_steps="
        f"{LOG_LESS})",
    )


def logged_s(case: Case) -> float:
    """Seconds of a step for logging, with what is computed or waited for on the lines around it."""
    file, _, rest = (case.facts.log_place or "").partition(":")
    line = int(number) if (number := rest.partition(" ")[0]).isdigit() else None
    if line is None:
        return case.seconds["log"]
    points = [(point.file, point.line, point.seconds_per_step) for point in case.record.sync_points]
    others = [(str(o["file"]), int(o["line"]), float(o["seconds_per_step"])) for o in case.facts.other_lines]
    near = [s for where, at, s in (*points, *others) if Path(where).name == file and abs(at - line) <= NEAR]
    return case.seconds["log"] + min(sum(near), case.seconds["sync"] + case.seconds["other"])


def advise_less_padding(case: Case) -> Remedy | None:
    """Padding to the longest of a batch, and batches of like lengths."""
    padding = case.loader.padding_share or 0.0
    trim, sort = case.facts.trim_share, case.facts.sort_share
    if padding < MIN_PADDING:
        return None
    saved = (
        trim if trim is not None and trim >= 0.5 * (sort or 0.0) else sort if sort is not None else padding / 2
    )
    is_trim = trim is not None and saved == trim
    how = "pad each batch to its own longest sample, in collate_fn: torch.nn.utils.rnn.pad_sequence"
    if not is_trim:
        how = "batches of samples of like length (a batch_sampler that sorts by length), each padded to its own"
    ratio = case.facts.trimmed_ratio if is_trim else case.facts.sorted_ratio
    left = 1 - SHRINKS * saved if ratio is None else min(ratio, 1.0)
    return Remedy(
        name="padding",
        evidence=f"{share(padding)} of a batch is padding; {share(saved)} of it all need not be there",
        predicted_gain=case.gain_without(_follows_length_s(case) * (1 - left)),
        cost="shapes that change from batch to batch" + ("" if is_trim else "; batches slightly less random"),
        how=f"{how}; flatout's loader: use_dynamic_padding, length_buckets",
        changes_results=not is_trim,
    )


def advise_copies(case: Case) -> Remedy | None:
    """Copies to the device from page-locked memory, beside the computation."""
    if not case.is_on_gpu or case.share_of("copy") < MIN_SHARE:
        return None
    is_pinned = case.loader.pin_memory
    pinning = "" if is_pinned else "DataLoader(..., pin_memory=True) and "
    return Remedy(
        name="pin_memory",
        evidence=f"copies to the device take {share(case.share_of('copy'))} of a step, from "
        + ("page-locked memory, but the host waits for them" if is_pinned else "pageable memory"),
        predicted_gain=case.gain_without(case.seconds["copy"] / 2),
        cost="page-locked memory for the batches made ahead",
        how=f"{pinning}batch.to(device, non_blocking=True)",
        settings={} if is_pinned else {"pin_memory": True},
    )


def _follows_length_s(case: Case) -> float:
    """Seconds of a step that follow the length of the samples: forward, backward, copies; not the optimiser."""
    return sum(case.seconds[phase] for phase in ("copy", "forward", "backward", "sync"))


LOOP_RULES: tuple[Callable[[Case], Remedy | None], ...] = (
    advise_less_evaluation,
    advise_less_logging,
    advise_less_padding,
    advise_copies,
)
