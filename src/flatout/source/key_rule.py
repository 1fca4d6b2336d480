"""KeyRule: where a store's keys come from, as a short text that the store keeps and later runs follow."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import unquote

from flatout.errors import ManifestError

OFFSET = "offset"
"""Column with the start of a segment in its file (NeMo)."""

WAY_OUT = "Mend the manifest, or set key_column, or use --force to give every sample a new key"

_EDITS = (
    "a row that is edited counts as another, perhaps in another split (set key_column if one has unique values)"
)
_SEPARATORS = {"%": "%25", ",": "%2C", "|": "%7C", "@": "%40"}


@dataclass(frozen=True)
class KeyRule:
    """One of: a column; path columns, with the offset, with the content of others added; content alone.

    The columns of the content are part of the rule: one that is added to the manifest later does not count.
    """

    column: str | None = None
    paths: tuple[str, ...] = ()
    has_offset: bool = False
    content: tuple[str, ...] | None = None

    @classmethod
    def parse(cls, text: str) -> KeyRule:
        """The rule that `str` wrote.

        Raises:
            ManifestError: it is none.
        """
        kind, _, rest = text.partition(":")
        paths, _, content = rest.partition("|")
        names, has_offset = paths.removesuffix(f"@{OFFSET}"), paths.endswith(f"@{OFFSET}")
        if kind == "column" and rest:
            return cls(column=rest)
        if kind == "content":
            return cls(content=_names(rest))
        if kind == "paths" and names and not content:
            return cls(paths=_names(names), has_offset=has_offset)
        if kind == "paths+content" and names:
            return cls(paths=_names(names), has_offset=has_offset, content=_names(content))
        raise ManifestError(
            f"key_rule '{text}' is none; a rule is column:NAME, paths:A,B, paths+content:A,B|C or content:C,D"
        )

    def __str__(self) -> str:
        if self.column is not None:
            return f"column:{self.column}"
        if not self.paths:
            return f"content:{_listed(self.content or ())}"
        paths = _listed(self.paths) + (f"@{OFFSET}" if self.has_offset else "")
        return f"paths:{paths}" if self.content is None else f"paths+content:{paths}|{_listed(self.content)}"

    @property
    def columns(self) -> tuple[str, ...]:
        """All columns that the keys depend on."""
        own = (self.column,) if self.column is not None else ()
        return (*own, *self.paths, *((OFFSET,) if self.has_offset else ()), *(self.content or ()))

    @property
    def told(self) -> str:
        """A sentence for whoever runs it."""
        if self.column is not None:
            return f"key: column '{self.column}'"
        if not self.paths:
            return f"key: a hash of the row's content; {_EDITS}"
        columns = " and ".join(f"'{name}'" for name in self.paths)
        told = f"key: column{'s' if len(self.paths) > 1 else ''} {columns}"
        is_enough = self.content is None
        return told if is_enough else f"{told} and a hash of the content: paths repeat or are missing; {_EDITS}"


def _listed(names: tuple[str, ...]) -> str:
    return ",".join("".join(_SEPARATORS.get(letter, letter) for letter in name) for name in names)


def _names(text: str) -> tuple[str, ...]:
    return tuple(unquote(name) for name in text.split(",")) if text else ()
