"""docs/guides.md leaves nothing out: every token, option, key, name, file, figure and row of the guides."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[1]
GUIDES = REPOSITORY.parent / "shared" / "guides"
PAGE = REPOSITORY / "docs" / "guides.md"
NUMBERS = ("000", "001", "002", "003", "004")

NUMBER = r"\d+(?:\.\d+)?(?:-\d+(?:\.\d+)?)?"
UNITS = r"(?:倍|x(?!\w)|%|秒|分钟|samples/sec|ms|GB|MiB|步|个|行)"
CHANGE = rf"从(?:默认)?({NUMBER})[^\d\s]{{0,4}}到({NUMBER})"
"""From one number to another, in words."""
SUFFIXES = r"(?:py|yaml|json|h5|log|pt|csv|npy)"
TYPES = r"(?:bool|int|float|str)"


@dataclass(frozen=True)
class Item:
    """One thing that a guide names."""

    kind: str
    text: str
    figures: tuple[str, ...] = ()
    """Of a row: its numbers, which must stand in the same row of the page."""

    def is_named(self, page: str) -> bool:
        if self.kind == "row":
            return any(self._is_row(line) for line in page.splitlines() if line.startswith("|"))
        if self.kind == "code":
            return self.text in page
        if self.kind == "option":
            return whole(self.text.replace("_", "-")).search(page.replace("_", "-")) is not None
        return whole(self.text).search(page) is not None

    def _is_row(self, line: str) -> bool:
        cells = plain(line)
        return self.text in cells and all(whole(figure).search(cells) for figure in self.figures)


def whole(text: str) -> re.Pattern[str]:
    """The text where it is no part of a longer word or number."""
    before = r"(?<![\d.])(?<!\d-)" if text[0].isdigit() else r"(?<![\w-])" if text[0] == "-" else r"(?<!\w)"
    behind = r"(?![\d]|\.\d|-\d)" if text[0].isdigit() else r"(?![\w-])"
    return re.compile(before + re.escape(text) + behind)


def plain(cell: str) -> str:
    return " ".join(cell.replace("`", "").replace("*", "").split())


def fences(text: str) -> list[tuple[str, str]]:
    """Language and content of each block of code; a text without a language is one, too."""
    return re.findall(r"^[ ]*```(\w*)\n(.*?)^[ ]*```", text, re.MULTILINE | re.DOTALL)


def without_fences(text: str) -> str:
    return re.sub(r"^[ ]*```.*?^[ ]*```", "", text, flags=re.MULTILINE | re.DOTALL)


def extract(guide: str) -> set[Item]:
    """Everything that a guide names."""
    prose = without_fences(guide)
    found = {Item("code", text.strip()) for text in re.findall(r"`([^`\n]+)`", prose)}
    found |= {Item("option", text) for text in re.findall(r"(?<![\w-])--[a-z][\w-]*", guide, re.ASCII)}
    found |= {Item("file", text) for text in re.findall(rf"[\w./-]*\w\.{SUFFIXES}\b(?!\()", guide, re.ASCII)}
    found |= {Item("file", text) for text in re.findall(r"python -m (\w[\w.]*\.\w+)", guide, re.ASCII)}
    figures = re.findall(rf"(?<![\w.-])({NUMBER})\+?\s*{UNITS}", guide, re.ASCII)
    figures += [text for pair in re.findall(CHANGE, prose) for text in pair]
    found |= {Item("figure", text) for text in figures}
    found |= set(rows(prose))
    for language, block in fences(guide):
        found |= set(of_block(language, block))
    return found


def rows(prose: str) -> Iterator[Item]:
    """Rows of tables without their headings: the first cell, and all numbers behind it."""
    lines = prose.splitlines()
    for number, line in enumerate(lines):
        is_heading = number + 1 < len(lines) and re.match(r"\|[\s:|-]+\|\s*$", lines[number + 1])
        if line.startswith("|") and not is_heading and not re.match(r"\|[\s:|-]+\|\s*$", line):
            first, *others = [plain(cell) for cell in line.strip().strip("|").split("|")]
            yield Item("row", first, tuple(re.findall(NUMBER, " ".join(others))))


def of_block(language: str, block: str) -> Iterator[Item]:
    """Keys of settings, names of Python, programs of a shell, names of tests."""
    if language in ("json", "yaml"):
        yield from (
            Item("key", key) for key in re.findall(r'(?:^|[{,])\s*"?([a-zA-Z_]\w*)"?\s*:', block, re.MULTILINE)
        )
    if language == "python":
        yield from (Item("key", key) for key in re.findall(r"(?<![\w.])([a-z_]\w*)=(?!=)", block))
        yield from (Item("key", key) for key in re.findall(rf"^\s*([a-z_]\w*): {TYPES}\b", block, re.MULTILINE))
        yield from (Item("key", key) for key in re.findall(r"\[[\"'](\w+)[\"']\]", block))
        names = re.findall(r"^\s*(?:class|def) (\w+)", block, re.MULTILINE)
        names += [name for line in re.findall(r"^\s*from [\w.]+ import (.+)$", block, re.MULTILINE)
                  for name in re.findall(r"\w+", line)]  # fmt: skip
        yield from (Item("name", name) for name in names if not name.startswith("__"))
    if language == "bash":
        commands = re.sub(r"\\\n", " ", block).splitlines()
        words = [line.split()[0] for line in commands if line.strip() and not line.lstrip().startswith("#")]
        yield from (Item("program", word) for word in words if word != "python")
    yield from (Item("name", name) for pair in re.findall(r"::(\w+)::(\w+) PASSED", block) for name in pair)


def section(page: str, number: str) -> str:
    """What the page says on one guide: from its heading to that of the next."""
    found = re.search(rf"^## Guide {number}\b.*?(?=^## |\Z)", page, re.MULTILINE | re.DOTALL)
    return found[0] if found else ""


def missing(guide: str, part: str) -> list[str]:
    """What the guide names and the page does not."""
    return sorted(f"{item.kind}: {item.text} {item.figures or ''}".strip()
                  for item in extract(guide) if not item.is_named(part))  # fmt: skip


@pytest.mark.parametrize("number", NUMBERS)
def test_nothing_of_a_guide_is_left_out(number: str) -> None:
    found = list(GUIDES.glob(f"{number}*.md"))
    if not found:
        pytest.skip("the guides are not on this machine")
    part = section(PAGE.read_text(encoding="utf-8"), number)
    assert missing(found[0].read_text(encoding="utf-8"), part) == []


@pytest.mark.parametrize(("number", "least"), list(zip(NUMBERS, (50, 130, 25, 35, 60), strict=True)))
def test_much_is_found_in_each_guide(number: str, least: int) -> None:
    found = list(GUIDES.glob(f"{number}*.md"))
    if not found:
        pytest.skip("the guides are not on this machine")
    assert len(extract(found[0].read_text(encoding="utf-8"))) >= least


MADE_UP = """# A guide

Set `num_cooks=2` in `kitchen/stove.py`; **3-5x** faster, 12.5% less, not 99 cooks.
温度从0.05增加到0.1。 Use --no_salt.

| what | before | after |
|------|--------|-------|
| `heat` | 180 | 200-220 |
| **time** | long | short |

```yaml
pan_size: 24   # cm
```

```json
{ "lid": true,
  "salt": {"fine": 1} }
```

```python
from kitchen import Stove, light

class Cook(Stove):
    def stir(self, spoon: bool, spoons=2, *,
             speed: int = 3):
        result = stove["plate1"]
```

```bash
# a comment
python -m kitchen.tools.chop --fine \\
    --board wood
sharpen -l 1
```

```
tests/test_cook.py::TestCook::test_stir PASSED
```
"""

FOUND = {
    Item("code", "num_cooks=2"), Item("code", "kitchen/stove.py"), Item("code", "heat"),
    Item("option", "--no_salt"), Item("option", "--fine"), Item("option", "--board"),
    Item("file", "kitchen/stove.py"), Item("file", "kitchen.tools.chop"), Item("file", "tests/test_cook.py"),
    Item("figure", "3-5"), Item("figure", "12.5"), Item("figure", "0.05"), Item("figure", "0.1"),
    Item("row", "heat", ("180", "200-220")), Item("row", "time"),
    Item("key", "pan_size"), Item("key", "lid"), Item("key", "salt"), Item("key", "fine"),
    Item("key", "spoons"), Item("key", "speed"), Item("key", "plate1"),
    Item("name", "Stove"), Item("name", "light"), Item("name", "Cook"), Item("name", "stir"),
    Item("name", "TestCook"), Item("name", "test_stir"), Item("program", "sharpen"),
}  # fmt: skip

COMPLETE = """| `num_cooks=2` | `kitchen/stove.py`, `kitchen.tools.chop`, `tests/test_cook.py` |
| `heat` | from 180 to 200-220 |
| time (how long) | |
`--no-salt` `--fine` `--board` 3-5 12.5 0.05 0.1 `pan_size` `lid` `salt` `spoons` `speed` `plate1`
`Stove` `light` `Cook` `stir` `TestCook` `test_stir` `sharpen`
"""


def test_the_extractor_finds_what_a_guide_names() -> None:
    assert extract(MADE_UP) == FOUND


def test_a_complete_page_lacks_nothing_and_an_empty_one_everything() -> None:
    assert missing(MADE_UP, COMPLETE) == []
    assert len(missing(MADE_UP, "")) == len(FOUND)


@pytest.mark.parametrize("item", sorted(FOUND, key=str), ids=lambda item: f"{item.kind} {item.text}")
def test_each_thing_that_is_left_out_is_noticed(item: Item) -> None:
    spelled = item.text.replace("_", "-") if item.kind == "option" else item.text
    assert spelled in COMPLETE
    told = missing(MADE_UP, COMPLETE.replace(spelled, "..."))
    assert f"{item.kind}: {item.text} {item.figures or ''}".strip() in told


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("from 180 to 200-220", "from 180 to 200"),  # one of a row's figures
        ("3-5 ", "13-5 "),
        ("12.5", "12.51"),
        ("`lid`", "`lids`"),
        ("--fine", "--finely"),
        ("| `heat` | from 180", "| `heat` |\n| from 180"),  # the figures in another row
    ],
)
def test_what_only_looks_like_it_does_not_count(right: str, wrong: str) -> None:
    assert right in COMPLETE
    assert missing(MADE_UP, COMPLETE.replace(right, wrong)) != []


def test_a_section_ends_where_the_next_begins() -> None:
    page = "# Page\n\n## Guide 000: a\n\none\n\n### more\n\n## Guide 001: b\n\ntwo\n"
    assert "more" in section(page, "000")
    assert "two" not in section(page, "000")
    assert section(page, "001").endswith("two\n")
    assert section(page, "002") == ""


def spans() -> set[str]:
    return set(re.findall(r"`([^`\n]+)`", PAGE.read_text(encoding="utf-8")))


@pytest.mark.parametrize("name", sorted(s for s in spans() if re.fullmatch(r"flatout(\.\w+)+", s)))
def test_every_place_that_the_page_names_exists(name: str) -> None:
    parts = name.split(".")
    for cut in range(len(parts), 0, -1):
        try:
            found = importlib.import_module(".".join(parts[:cut]))
        except ModuleNotFoundError:
            continue
        for attribute in parts[cut:]:
            found = getattr(found, attribute)
        return
    pytest.fail(f"{name} does not exist")


def test_every_file_that_stands_here_exists() -> None:
    named = {s for s in spans() if re.match(r"(?:src/flatout|tests/\w+|docs|benchmarks|examples)/", s)}
    of_guides = {"tests/test_gpu_transforms.py"}
    assert [name for name in sorted(named - of_guides) if not (REPOSITORY / name).exists()] == []
