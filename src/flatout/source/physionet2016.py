"""PhysioNet/CinC 2016 as it is published: folders training-a to training-f, each with REFERENCE.csv."""

from __future__ import annotations

import re
from pathlib import Path

from flatout.errors import ManifestError
from flatout.source.published import AGAIN, Recording, class_of, read_lines, read_named

CLASSES = {"-1": "normal", "1": "abnormal"}
REFERENCE, QUALITY = "REFERENCE.csv", "REFERENCE-SQI.csv"
_APPENDIX = re.compile(r"online[ _]appendix[ _]training[ _]set\.csv", re.IGNORECASE)


def read_physionet2016(folder: Path) -> tuple[list[Recording], list[str]]:
    """The recordings, and what was decided about them.

    Those whose quality REFERENCE-SQI.csv calls unsure (0) are left out. The folder `validation` is not read: it
    repeats recordings of the others. Whose a recording is stands in the set's online appendix alone; without
    it all of a folder count as one patient's: some gave ten, and none may stand in two splits.

    Raises:
        ManifestError: a table or a recording is missing, or holds what the set's description does not have.
    """
    subjects, rows, num_unsure = _subjects(folder), [], 0
    for place in _places(folder):
        unsure = _unsure(place / QUALITY)
        for name, label in _references(place):
            num_unsure += name in unsure
            if name not in unsure:
                file = (place / f"{name}.wav").relative_to(folder).as_posix()
                patient = f"{place.name}/{subjects.get(name, name)}" if subjects else place.name
                rows.append(Recording(file, label, patient))
    if not rows:
        raise ManifestError(f"label_set physionet2016: no recording below {folder} is of usable quality")
    notes = [f"left out {num_unsure:,} recordings of unsure quality ({QUALITY})"] if num_unsure else []
    if not subjects:
        notes.append(
            "there is no 'annotations/Online Appendix_training set.csv', which says whose a recording is: each "
            "training folder stays in one split (splits.group: file divides it, and patients with it)"
        )
    return rows, notes


def _places(folder: Path) -> list[Path]:
    root = folder / "training" if (folder / "training").is_dir() else folder
    places = [place for place in sorted(root.glob("training-*")) if place.is_dir()]
    if not places and (folder / REFERENCE).is_file():
        return [folder]
    if not places:
        raise ManifestError(
            f"label_set physionet2016: {folder} has no folders training-a, training-b, ...; set `manifest` to "
            "the folder of the data set"
        )
    return places


def _references(place: Path) -> list[tuple[str, str]]:
    """Name and class of each recording of a folder."""
    found = []
    for number, cells in read_lines(place / REFERENCE):
        where = f"{place / REFERENCE}, line {number}"
        if len(cells) < 2:
            raise ManifestError(f"{where}: got {','.join(cells)!r}, wanted a name and a class: a0001,-1")
        if not (place / f"{cells[0]}.wav").is_file():
            raise ManifestError(f"{where}: there is no {place / cells[0]}.wav; {AGAIN}")
        found.append((cells[0], class_of(where, cells[1], CLASSES)))
    return found


def _unsure(path: Path) -> set[str]:
    """Names whose third cell, the quality, is 0; none where there is no such table."""
    if not path.is_file():
        return set()
    return {cells[0] for _, cells in read_lines(path) if len(cells) > 2 and cells[2] == "0"}


def _subjects(folder: Path) -> dict[str, str]:
    """Patient of each recording, where the appendix is there and says it."""
    places = [place for place in (folder, folder / "annotations") if place.is_dir()]
    tables = [file for place in places for file in sorted(place.iterdir()) if _APPENDIX.fullmatch(file.name)]
    for table in tables:
        names, rows = read_named(table)
        record = next((name for name in names if name.lower() == "challenge record name"), None)
        subject = next((name for name in names if name.lower().startswith("subject")), None)
        if record is not None and subject is not None:
            return {row[record]: row[subject] for _, row in rows if row[record] and row[subject]}
    return {}
