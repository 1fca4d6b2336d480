"""HTML: a page as one file that needs nothing else, runs nothing, and escapes everything it was given."""

from __future__ import annotations

from base64 import b64encode
from functools import cache
from hashlib import sha256
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from flatout.report.page import Chart, Page, Part, Table
from flatout.report.text import cleaned

TEMPLATES = Path(__file__).parent / "templates"


def render_html(page: Page, *, is_live: bool = False) -> str:
    """A page as HTML.

    Args:
        is_live: it asks its server for news; otherwise it holds no script at all.
    """
    made = (
        _environment()
        .get_template("page.html")
        .render(
            page=page,
            is_live=is_live,
            style=_text("style.css"),
            script=_text("follow.js"),
            policy=policy(is_live=is_live),
            kind_of=_kind_of,
        )
    )
    return cleaned(made)


def policy(*, is_live: bool) -> str:
    """The content security policy: our own style, for a live page our own script, and nothing else."""
    rules = ["default-src 'none'", f"style-src {_hash('style.css')}", "base-uri 'none'", "form-action 'none'"]
    if is_live:
        rules += [f"script-src {_hash('follow.js')}", "connect-src 'self'"]
    return "; ".join(rules)


def _kind_of(part: Part) -> str:
    return "chart" if isinstance(part, Chart) else "table" if isinstance(part, Table) else "words"


@cache
def _environment() -> Environment:
    return Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


@cache
def _text(name: str) -> str:
    return (TEMPLATES / name).read_text(encoding="utf-8")


def _hash(name: str) -> str:
    """A browser takes the element whose text has this hash."""
    return f"'sha256-{b64encode(sha256(_text(name).encode()).digest()).decode()}'"
