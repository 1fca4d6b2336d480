"""How a batch is made: which stage and which functions take the time, and what kind of work that is."""

from __future__ import annotations

import re
from pathlib import Path

from flatout.doctor.record import FunctionCost
from flatout.doctor.rules.case import Case

AUGMENT = re.compile(
    r"augment|random|noise|flip|rotat|shift|stretch|warp|jitter|mask|mixup|cutmix|perturb|distort|elastic|crop|"
    r"transform|resample|filtfilt|butter|albumentations|audiomentations|kornia|imgaug|torchio",
    re.IGNORECASE,
)
DECODE = re.compile(
    r"decod|decompress|inflate|open|read|load|parse|unpack|fetch|gzip|zlib|lzma|bz2|PIL|Image|nibabel|pydicom|"
    r"soundfile|librosa|h5py|json|pickle|imread|imdecode|cv2",
    re.IGNORECASE,
)
SMALL_FILE_BYTES = 64 << 10
FILES_A_SAMPLE = 4
"""Files opened for one sample, from which their number is the trouble and not their size."""
COLD_SHARE = 0.3
"""Part of the bytes read that came from the disk itself, from which it is called cold."""


def stage_share(case: Case, stage: str) -> float:
    """Part of a batch's making, 0 to 1."""
    return case.loader.seconds.get(stage, 0.0) / case.stages_s if case.stages_s > 0 else 0.0


def kind_of(function: FunctionCost) -> str:
    """`augment`, `decode` or `other`, by what the function is called and where it stands."""
    if AUGMENT.search(function.name):
        return "augment"
    if DECODE.search(function.name):
        return "decode"
    library = Path(function.file).parts[-3:]
    found = "/".join(library) if "site-packages" in function.file else ""
    if AUGMENT.search(found) or "scipy" in found:
        return "augment"
    return "decode" if DECODE.search(found) else "other"


def seconds_of(case: Case, kind: str) -> float:
    """Seconds a batch of the costliest function of a kind; functions called by it are within."""
    return max((f.seconds_per_batch for f in case.loader.functions if kind_of(f) == kind), default=0.0)


def costliest(case: Case, kind: str | None = None) -> FunctionCost | None:
    """The function that takes most, of that kind if one is given; the dataset's own entry does not count."""
    wanted = [f for f in case.loader.functions if kind in (None, kind_of(f)) and not _is_entry(f)]
    return max(wanted, key=lambda f: f.seconds_per_batch, default=None)


def augment_s(case: Case) -> float:
    """Seconds a batch of per-sample random augmentation; 0 if nothing random is drawn."""
    if case.facts.draws_random is False:
        return 0.0
    named_s = min(seconds_of(case, "augment"), case.stages_s)
    if named_s or not case.facts.draws_random:
        return named_s
    return 0.0 if seconds_of(case, "decode") else case.loader.seconds.get("prepare", 0.0)


def is_augmentation(case: Case) -> bool:
    """Random augmentation takes more of the making than anything else."""
    return augment_s(case) > max(case.stages_s - augment_s(case), 0.0)


def files_per_sample(case: Case) -> float:
    opened, size = case.facts.opens_per_batch, case.loader.batch_size
    return opened / size if opened and size else 0.0


def has_small_files(case: Case) -> bool:
    """Opening files takes the time: many of them for each sample, each of them small."""
    opened, read = case.facts.opens_per_batch, case.facts.read_bytes_per_batch
    if not opened or files_per_sample(case) < FILES_A_SAMPLE:
        return False
    return read is None or read / opened < SMALL_FILE_BYTES


def is_cold(case: Case) -> bool:
    """The disk itself delivers a good part of what is read, and the making waits for it."""
    from_disk, read = case.facts.disk_bytes_per_batch, case.facts.read_bytes_per_batch
    waits = case.make_s > 0 and case.io_s / case.make_s > COLD_SHARE
    if from_disk is None:
        return waits
    return waits and from_disk > COLD_SHARE * max(read or 0.0, 1.0)


def _is_entry(function: FunctionCost) -> bool:
    return function.name.rpartition(".")[2] in ("__getitem__", "__getitems__", "__iter__", "__next__")
