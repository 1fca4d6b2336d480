"""What the pages of the tasks say, run as it stands there."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from flatout.config.text import parse_yaml

PAGES = Path(__file__).resolve().parents[2] / "docs" / "tasks"


def fences(task: str, language: str) -> list[str]:
    text = (PAGES / f"{task}.md").read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def follow(task: str, folder: Path, data: Path) -> dict[str, Any]:
    """Run the page's Python in `folder`, the current one, on `data`; the page's config over what it made."""
    code = fences(task, "python")[0]
    exec(code.replace(f'Path("{data.name}")', f"Path({str(data)!r})"), {})
    config, _ = parse_yaml(fences(task, "yaml")[0], task)
    return {**config, "base_path": str(data), "output_dir": str(folder / "runs"), "logger": []}
