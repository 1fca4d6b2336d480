"""Sheet: a table of pictures, a row a sample and a column a view, as one PNG or one HTML page."""

from __future__ import annotations

import base64
import html
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import Image, ImageDraw, ImageFont

from flatout.store.files import write_durable

MARGIN = 32
COLUMN_GAP = 24
ROW_GAP = 36
HEADING = 30
SMALL = 22
INK = (33, 37, 41)
PALE = (96, 103, 112)
FORMATS = (".png", ".html")


@dataclass(frozen=True)
class Sheet:
    """What is shown, at twice the size it is shown in."""

    title: str
    headings: Sequence[str]
    """One a column."""
    rows: Sequence[tuple[str, Sequence[Image.Image]]]
    """A caption and a picture a column."""
    notes: Sequence[str]
    """What was done, a line each."""

    def write(self, path: Path) -> None:
        """Write `.png` or `.html`, whole or not at all."""
        content = self.to_html().encode() if path.suffix == ".html" else _png(self.to_image())
        path.parent.mkdir(parents=True, exist_ok=True)
        write_durable(path, [content])

    def to_image(self) -> Image.Image:
        """All of it as one picture."""
        widths = [max(row[1][at].width for row in self.rows) for at in range(len(self.headings))]
        heights = [max(image.height for image in row[1]) for row in self.rows]
        lines = [self.title, *self.notes]
        wide = max(_font(SMALL).getlength(line) for line in lines)
        width = max(sum(widths) + COLUMN_GAP * (len(widths) - 1), int(wide) + 8) + 2 * MARGIN
        head = 2 * HEADING + ROW_GAP
        foot = (SMALL + 10) * len(self.notes) + ROW_GAP
        body = sum(heights) + (ROW_GAP + SMALL) * len(heights)
        image = Image.new("RGB", (width, 2 * MARGIN + head + body + foot), (255, 255, 255))
        draw = ImageDraw.Draw(image)
        draw.text((MARGIN, MARGIN), self.title, fill=INK, font=_font(HEADING))
        at = MARGIN + HEADING + ROW_GAP // 2
        for left, heading in zip(_lefts(widths), self.headings, strict=True):
            draw.text((left, at), heading, fill=PALE, font=_font(SMALL + 2))
        at = self._draw_rows(image, draw, MARGIN + head, widths, heights)
        for line in self.notes:
            draw.text((MARGIN, at), line, fill=PALE, font=_font(SMALL))
            at += SMALL + 10
        return image.resize((image.width // 2, image.height // 2), Image.Resampling.LANCZOS)

    def to_html(self) -> str:
        """A page that needs nothing else."""
        heads = "".join(f"<th>{html.escape(heading)}</th>" for heading in self.headings)
        body = "".join(_html_row(caption, images) for caption, images in self.rows)
        notes = "".join(f"<li><code>{html.escape(note)}</code></li>" for note in self.notes)
        title = html.escape(self.title)
        return (
            f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title><style>{_STYLE}'
            f"</style></head><body><h1>{title}</h1><table><thead><tr><th>sample</th>{heads}</tr></thead>"
            f"<tbody>{body}</tbody></table><h2>What was done</h2><ul>{notes}</ul></body></html>\n"
        )

    def _draw_rows(
        self, image: Image.Image, draw: Any, at: int, widths: Sequence[int], heights: Sequence[int]
    ) -> int:
        for (caption, images), height in zip(self.rows, heights, strict=True):
            draw.text((MARGIN, at), caption, fill=INK, font=_font(SMALL))
            at += SMALL + 8
            for left, shown in zip(_lefts(widths), images, strict=True):
                image.paste(shown, (left, at))
            at += height + ROW_GAP - 8
        return at


_STYLE = """
body { font: 15px/1.45 system-ui, sans-serif; margin: 2rem; color: #212529; }
table { border-spacing: 14px 10px; } th { text-align: left; color: #606770; font-weight: 500; }
td { vertical-align: top; } td:first-child { min-width: 8rem; max-width: 14rem; overflow-wrap: anywhere; }
td img { display: block; } code { font-size: 13px; }
"""


def _html_row(caption: str, images: Sequence[Image.Image]) -> str:
    cells = []
    for image in images:
        half = image.resize((image.width // 2, image.height // 2), Image.Resampling.LANCZOS)
        data = base64.b64encode(_png(half)).decode()
        cells.append(f'<td><img alt="" width="{half.width}" src="data:image/png;base64,{data}"></td>')
    return f"<tr><td>{html.escape(caption)}</td>{''.join(cells)}</tr>"


def _lefts(widths: Sequence[int]) -> list[int]:
    return [MARGIN + sum(widths[:at]) + COLUMN_GAP * at for at in range(len(widths))]


def _png(image: Image.Image) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, "PNG")
    return buffer.getvalue()


def _font(size: int) -> Any:
    return ImageFont.load_default(size)
