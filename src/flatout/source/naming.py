"""Names of fields from those of columns: without the words for path, and such that a store can hold them."""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Container

from flatout.types import LONGEST_NAME, is_field_name

_PATH_WORDS = {
    "path",
    "paths",
    "file",
    "files",
    "filepath",
    "filename",
    "fname",
    "name",
    "rel",
    "relative",
    "abs",
}


def without_path_words(column: str) -> str:
    """A column's name without the words for path; empty where nothing else is left."""
    spaced = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", column).lower()
    words = [word for word in re.split(r"[^a-z0-9]+", spaced) if word and word not in _PATH_WORDS]
    return "_".join(words)


def usable_name(name: str) -> str:
    """A name that a field can have: this one where it can, else what is left of it; empty for nothing.

    `Age (years)` -> Age_years, `Größe` -> Grosse, `2nd` -> column_2nd.
    """
    if is_field_name(name):
        return name
    # Letters apart from their accents, so that the letters stay.
    letters = unicodedata.normalize("NFKD", name.replace("ß", "ss"))
    letters = "".join(letter for letter in letters if not unicodedata.combining(letter))
    found = re.sub(r"[^A-Za-z0-9-]+", "_", letters).strip("_-")
    if found and not is_field_name(found[:LONGEST_NAME]):  # it starts with a digit, or is reserved
        found = f"column_{found}"
    return found[:LONGEST_NAME].rstrip("_-")


def free_name(name: str, stem: str, taken: Container[str]) -> str:
    """The name, or if it is taken the stem with the first number from 2 on that makes another."""
    number = 2
    while name in taken:
        end = f"_{number}"
        name, number = stem[: LONGEST_NAME - len(end)] + end, number + 1
    return name


def setting_of(column: str, kind: str = "KIND") -> str:
    """What to write in a config so that a column becomes a field of this kind."""
    name = usable_name(column) or "NAME"
    if name == column:
        return f"fields.{name}.kind: {kind}"
    return f"fields.{name}: {{kind: {kind}, column: {json.dumps(column, ensure_ascii=False)}}}"
