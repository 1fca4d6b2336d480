"""What a page says, before it is HTML or Markdown: facts, tables and charts in sections."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from flatout.report.quantity import ABSENT

Tone = Literal["plain", "good", "bad", "warn"]


@dataclass(frozen=True)
class Cell:
    """One cell of a table."""

    text: str
    kind: Literal["text", "number", "code"] = "text"
    tone: Tone = "plain"
    colour: str = ""
    """Class of the little square before it, as in the chart beside; empty: none."""


@dataclass(frozen=True)
class Table:
    """Headings and rows of equal length."""

    headings: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    title: str = ""
    num_left_out: int = 0

    @property
    def is_wide(self) -> bool:
        """Whether a phone shows each row as a block: several columns of text do not fit side by side."""
        texts = [cell for cell in self.rows[0] if cell.kind != "number"] if self.rows else []
        return len(self.headings) > 3 and len(texts) > 1

    @classmethod
    def of(
        cls, headings: Iterable[str], rows: Iterable[Sequence[Cell | str]], title: str = "", most: int = 200
    ) -> Table:
        """Cells, or bare texts; rows beyond `most` are counted only."""
        made = [tuple(cell if isinstance(cell, Cell) else Cell(cell) for cell in row) for row in rows]
        return cls(tuple(headings), tuple(made[:most]), title, max(0, len(made) - most))


@dataclass(frozen=True)
class Chart:
    """A picture, and its numbers for whoever cannot see or hover."""

    title: str
    svg: str
    """Markup of our own making, with every name in it escaped."""
    table: Table
    note: str = ""
    sparks: Mapping[str, str] = field(default_factory=dict)
    """The lines as text, by name."""
    key: str = ""
    """What the marks of the picture mean; left out where only its numbers are shown."""


@dataclass(frozen=True)
class Words:
    """Paragraphs, or lines that are shown as they are."""

    lines: tuple[str, ...]
    is_code: bool = False
    title: str = ""


Part = Chart | Table | Words


@dataclass(frozen=True)
class Section:
    """A heading and what stands under it."""

    title: str
    parts: tuple[Part, ...]
    lead: str = ""


@dataclass(frozen=True)
class Fact:
    """A number at the top of the page."""

    name: str
    value: str
    note: str = ""


@dataclass(frozen=True)
class Page:
    """All of it."""

    title: str
    state: str
    """One word: finished, running, failed, ..."""
    tone: Tone
    verdict: str
    facts: tuple[Fact, ...]
    sections: tuple[Section, ...]
    subtitle: str = ""
    alarm: str = ""
    """What must not be overlooked: an error, a record that no longer grows."""
    made_by: str = ""


def section(title: str, parts: Iterable[Part | None], lead: str = "") -> Section | None:
    """A section of the parts that are there; None where none is."""
    found = tuple(part for part in parts if part is not None and not _is_empty(part))
    return Section(title, found, lead) if found else None


def facts(pairs: Iterable[tuple[str, str] | tuple[str, str, str]]) -> tuple[Fact, ...]:
    """Those that were measured."""
    return tuple(Fact(*pair) for pair in pairs if pair[1] != ABSENT)


def number(text: str, tone: Tone = "plain") -> Cell:
    """A cell set flush right."""
    return Cell(text, "number", tone)


def code(text: str) -> Cell:
    """A cell of code."""
    return Cell(text, "code")


def _is_empty(part: Part) -> bool:
    return (isinstance(part, Table) and not part.rows) or (isinstance(part, Words) and not part.lines)
