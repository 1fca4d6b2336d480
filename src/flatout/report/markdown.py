"""Markdown: the same page for places that show text alone; lines of charts become rows of blocks."""

from __future__ import annotations

import re
from collections.abc import Iterator

from flatout.report.page import Cell, Chart, Page, Part, Table, Words
from flatout.report.text import cleaned

_SPECIAL = re.compile(r"[\\`*\[\]|~$]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])")
_FIRST = re.compile(r"^(?:[-+#=]|\d+(?=[.)]))")
"""What begins a list, a heading or a rule at the start of a line."""


def render_markdown(page: Page) -> str:
    """A page as Markdown: headings, tables, blocks of code."""
    lines = [f"# {escaped(page.title)}", ""]
    lines += [_line(page.subtitle), ""] if page.subtitle else []
    lines += [f"**{escaped(page.state)}**: {escaped(page.verdict)}", ""]
    lines += [*_fenced(page.alarm), ""] if page.alarm else []
    if page.facts:
        rows = ((Cell(fact.name), Cell(fact.value), Cell(fact.note)) for fact in page.facts)
        lines += [*_table(Table.of(["", "", ""], rows)), ""]
    for section in page.sections:
        lines += [f"## {escaped(section.title)}", ""]
        lines += [_line(section.lead), ""] if section.lead else []
        for part in section.parts:
            lines += [*_part(part), ""]
    lines += [escaped(f"Written by {page.made_by}.")] if page.made_by else []
    return cleaned("\n".join(lines).rstrip() + "\n")


def escaped(text: str) -> str:
    """Text that no reader of Markdown takes for markup, on one line."""
    plain = " ".join(text.split())
    plain = plain.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return _SPECIAL.sub(lambda found: f"\\{found[0]}", plain)


def _line(text: str) -> str:
    """The same at the start of a line."""
    return _FIRST.sub(_harmless, escaped(text))


def _harmless(found: re.Match[str]) -> str:
    return f"{found[0]}\\" if found[0].isdigit() else f"\\{found[0]}"


def _part(part: Part) -> Iterator[str]:
    if isinstance(part, Chart):
        yield from (f"### {escaped(part.title)}", "")
        yield from _table(_with_sparks(part))
        if part.note:
            yield from ("", _line(part.note))
        return
    if part.title:
        yield from (f"### {escaped(part.title)}", "")
    if isinstance(part, Table):
        yield from _table(part)
    else:
        yield from _words(part)


def _words(part: Words) -> Iterator[str]:
    if part.is_code:
        yield from _fenced("\n".join(part.lines))
    else:
        yield from (f"- {_line(line)}" for line in part.lines)


def _with_sparks(chart: Chart) -> Table:
    if not chart.sparks:
        return chart.table
    rows = [(*row, Cell(chart.sparks.get(row[0].text, ""))) for row in chart.table.rows]
    return Table((*chart.table.headings, ""), tuple(rows), num_left_out=chart.table.num_left_out)


def _table(table: Table) -> Iterator[str]:
    yield _row([escaped(heading) for heading in table.headings])
    kinds = [cell.kind for cell in table.rows[0]] if table.rows else ["text"] * len(table.headings)
    yield _row(["---:" if kind == "number" else "---" for kind in kinds])
    for row in table.rows:
        yield _row([_cell(cell) for cell in row])
    if table.num_left_out:
        yield from ("", f"and {table.num_left_out:,} more")


def _row(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _cell(cell: Cell) -> str:
    """Code in a cell keeps its lines; entities, because a table takes no block."""
    if cell.kind != "code":
        return escaped(cell.text)
    lines = cell.text.splitlines()
    if len(lines) == 1 and not set("`|") & set(cell.text):
        return f"`{cell.text}`"
    return "<br>".join(escaped(line) for line in lines)


def _fenced(text: str) -> Iterator[str]:
    """A block of code whose fence is longer than any row of backticks in it."""
    longest = max((len(run) for run in re.findall("`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    yield from (f"{fence}text", *text.splitlines(), fence)
