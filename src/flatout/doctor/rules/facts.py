"""The loose facts of a record as the rules read them: every name, its unit, and what stands for "not known"."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any


@dataclass(frozen=True)
class Facts:
    """What the observer may write into `DoctorRecord.facts`; None where it could not tell.

    Figures "a batch" are those of the training's loader, summed over the process that makes the batch.
    """

    loader_cpu_wait_s: float | None = None
    """Seconds a batch that its maker was ready to run and had no core (second number of schedstat)."""
    hand_over_s: float | None = None
    """What it takes to copy one batch into shared memory and send it, measured where there are no workers."""
    items_here_s: float | None = None
    """Seconds to make the samples of a batch in the training thread, nobody beside it."""
    collate_here_s: float | None = None
    """What a loader without workers takes for a batch whose samples are in memory: collation, and its own."""
    stack_here_s: float | None = None
    """Seconds of torch's own collate function, which only stacks, with the same samples."""
    augment_here_s: float | None = None
    """Seconds to augment a whole batch where the model computes, by a usual chain."""
    sent_s: float | None = None
    """Seconds that a step with resident batches takes more if a worker sends them."""
    slowdown: float | None = None
    """What a process that is busy on another core adds to a step with resident batches, as a part of it."""
    epoch_start_s: float | None = None
    """Seconds from the end of an epoch to the first batch of the next, the median of all seen."""
    steps_per_epoch: float | None = None
    """Steps between two `iter(loader)`."""
    unseen_start_s: float | None = None
    """What starts of workers add to the mean step that the measured ones do not show: as many of them as epochs
    should have begun there, by `epoch_start_s`; below 0 where more of them were seen."""
    draws_random: bool | None = None
    """Random numbers are drawn while a sample is made."""
    opens_per_batch: float | None = None
    """Files opened a batch."""
    reads_per_batch: float | None = None
    """Read calls a batch (`syscr` of /proc/self/io)."""
    read_bytes_per_batch: float | None = None
    """Bytes read a batch, from the page cache too (`rchar`)."""
    disk_bytes_per_batch: float | None = None
    """Bytes a batch that the disk itself had to deliver (`read_bytes`)."""
    disk_kind: str | None = None
    """Where the data files are: `ssd`, `rotational`, `network`, `memory`."""
    trim_share: float | None = None
    """Share of the padded length that no sample of the batch uses: padding to its longest saves that."""
    sort_share: float | None = None
    """Share of the padded length that batches of like lengths would save (trim_share included)."""
    trimmed_ratio: float | None = None
    """What forward and backward take of batches padded to their longest, against those of the script."""
    sorted_ratio: float | None = None
    """The same of batches of like lengths."""
    repeated_forward: Mapping[str, Any] | None = None
    """The module whose forward runs more than once a step on the same batch: `module`, `calls_per_step`,
    `seconds_per_step` (of the calls beyond the first), `file`, `line`."""
    device: str | None = None
    """`cpu`, `cuda`, `mps`: where the parameters are."""
    precision: str | None = None
    """`float32`, `float64`, `float16`, `bfloat16` of the parameters, `mixed` under autocast."""
    allows_tf32: bool | None = None
    is_compiled: bool | None = None
    cudnn_benchmark: bool | None = None
    is_deterministic: bool | None = None
    """cudnn.deterministic, or torch.use_deterministic_algorithms."""
    detects_anomalies: bool | None = None
    num_threads: int | None = None
    """torch.get_num_threads()."""
    compute_cpu_s: float | None = None
    """CPU seconds of the training process in a step with resident batches."""
    one_thread_gain: float | None = None
    """How many times as fast one thread computes a step with resident batches; 1 where that may be noise."""
    has_attention: bool | None = None
    """There is an attention module."""
    evaluations: float | None = None
    """Evaluations a step: 0.1 is one every ten steps."""
    log_calls: float | None = None
    """Calls a step that write to the log, the console or a tracker."""
    other_lines: Sequence[Mapping[str, Any]] = ()
    """Lines of the loop that no phase explains: `file`, `line`, `seconds_per_step`."""
    log_place: str | None = None
    """Where most of that time is spent: `file.py:12 print`."""
    evaluate_place: str | None = None
    """Where the evaluation loop stands."""
    num_processes: int | None = None
    """Ranks that train together on this machine; each has its part of cores and memory."""


def read_facts(given: Mapping[str, Any]) -> Facts:
    """The known facts of a record; others are left aside."""
    known = {each.name for each in fields(Facts)}
    return Facts(**{name: value for name, value in given.items() if name in known})
