"""Tables of published data sets: opened, and checked with errors that name file, line, and what to do."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from flatout.errors import ManifestError

AGAIN = "download the set anew, or take the line out"


@dataclass(frozen=True)
class Recording:
    """A row that a published set stands for; paths start from the set's folder."""

    file: str
    label: str
    patient: str
    cycles: str | None = None
    """Annotation of its cardiac cycles."""


def read_lines(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Number and cells of each line that is not empty.

    Raises:
        ManifestError: the file is not there, or is no CSV.
    """
    try:
        # The online appendix of PhysioNet 2016 is Latin-1; what is read of any table is plain ASCII.
        with open(path, newline="", encoding="utf-8-sig", errors="replace") as file:
            reader = csv.reader(file)
            for cells in reader:
                if any(cell.strip() for cell in cells):
                    yield reader.line_num, [cell.strip() for cell in cells]
    except OSError as error:
        raise ManifestError(
            f"{path}: {error.strerror or error}. It is part of the published set; `manifest` names its folder"
        ) from error
    except csv.Error as error:
        raise ManifestError(f"{path}: {error}; download the set anew") from error


def read_named(path: Path) -> tuple[list[str], list[tuple[int, dict[str, str]]]]:
    """The column names in the first line, and each further line by them; short lines are filled with blanks.

    Raises:
        ManifestError: the file is not there, or is no CSV.
    """
    lines = read_lines(path)
    _, names = next(lines, (0, []))
    return names, [(number, dict.fromkeys(names, "") | dict(zip(names, cells))) for number, cells in lines]  # noqa: B905


def class_of(where: str, value: str, classes: Mapping[str, str]) -> str:
    """The class that a cell stands for.

    Raises:
        ManifestError: it stands for none.
    """
    if value not in classes:
        raise ManifestError(f"{where}: unknown class {value!r}; wanted one of {', '.join(classes)}")
    return classes[value]
