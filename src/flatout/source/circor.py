"""CirCor DigiScope 2022 as it is published: training_data.csv, a line a patient, recordings beside it."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

from flatout.errors import ManifestError
from flatout.source.published import AGAIN, Recording, class_of, read_named

CLASSES = {name: name for name in ("Absent", "Present", "Unknown")}
PATIENT, LOCATIONS, MURMUR, OTHER = "Patient ID", "Recording locations:", "Murmur", "Additional ID"
TABLE, SOUNDS = "training_data.csv", "training_data"


def read_circor(folder: Path) -> tuple[list[Recording], list[str]]:
    """The recordings training_data/ID_PLACE.wav, with the .tsv of their heart sounds where there is one.

    The label is the patient's murmur, whatever place a recording is from. Lines that name each other as
    `Additional ID` are two visits of one patient.

    Raises:
        ManifestError: the table or a recording is missing, or holds what the set's description does not have.
    """
    table = folder / TABLE
    names, lines = read_named(table)
    if lacking := [name for name in (PATIENT, LOCATIONS, MURMUR) if name not in names]:
        raise ManifestError(f"{table} has no column '{lacking[0]}'; it has: {', '.join(names) or 'nothing'}")
    if not lines:
        raise ManifestError(f"{table} has no patients; download the set anew")
    whose = one_patient([(row[PATIENT], row.get(OTHER, "").removesuffix(".0")) for _, row in lines])
    sounds, rows = _sounds(folder / SOUNDS), []
    for number, row in lines:
        where = f"{table}, line {number}"
        label = class_of(where, row[MURMUR], CLASSES)
        for sound in _of_patient(where, row[PATIENT], row[LOCATIONS], sounds):
            states = sound.with_suffix(".tsv")
            cycles = states.relative_to(folder).as_posix() if states.is_file() else None
            file = sound.relative_to(folder).as_posix()
            rows.append(Recording(file, label, whose[row[PATIENT]], cycles))
    return rows, []


def one_patient(pairs: Sequence[tuple[str, str]]) -> dict[str, str]:
    """Pairs of names that stand for one patient in (an empty one stands for nobody); each name's patient out.

    A patient is called by the first of the names, in order of the text.
    """
    parent: dict[str, str] = {}

    def first(name: str) -> str:
        while parent.get(name, name) != name:
            name = parent[name]
        return name

    for one, other in pairs:
        low, high = sorted((first(one), first(other or one)))
        parent[high] = low
    return {name: first(name) for pair in pairs for name in pair if name}


def _sounds(folder: Path) -> Mapping[str, list[Path]]:
    """Files by ID_PLACE; several of one place are ID_PLACE_1, ID_PLACE_2."""
    found: dict[str, list[Path]] = defaultdict(list)
    for file in sorted(folder.glob("*.wav")):
        found[re.sub(r"_\d+$", "", file.stem)].append(file)
    return found


def _of_patient(where: str, patient: str, places: str, sounds: Mapping[str, list[Path]]) -> list[Path]:
    found = []
    for place in dict.fromkeys(places.split("+")):
        files = sounds.get(f"{patient}_{place}", [])
        if not files:
            raise ManifestError(
                f"{where}: patient {patient} has a recording of place '{place}', but there is no "
                f"{SOUNDS}/{patient}_{place}.wav; {AGAIN}"
            )
        found += files
    return found
