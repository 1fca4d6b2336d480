"""docs/troubleshooting.md answers every entry of the guides on trouble, on watching, and on what to mind."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[1]
GUIDES = REPOSITORY.parent / "shared" / "guides"
PAGE = REPOSITORY / "docs" / "troubleshooting.md"
TOPICS = ("故障排除", "监控和调试", "注意事项")
"""Troubleshooting, monitoring and debugging, notes: the sections of the guides that are looked at."""
ENTRY = re.compile(r"^#{3,4} (?:\d+\. )?(.+)$|^\d+\. \*\*(.+?)\*\*")
SETTING = re.compile(
    r"`\.?([a-z_]{4,}|item|cpu)(?:\(\))?[`=:]|--([a-z_]+)|\b(nvidia-smi|htop)\b|(\bnum_workers\b)"
)

NOTHING_BELOW = ("常见问题", "监控和调试")
"""Headings of headings."""
ANSWERS: dict[str, dict[str, tuple[str, ...]]] = {
    "000": {
        "预处理失败": ("some files failed", "a wrong path, no permission"),
        "内存不足": ("out of memory on the host", "out of memory in `flatout prepare`"),
        "HDF5文件损坏": (
            "the HDF5 file is damaged",
            "everything has to be made anew",
            "the disk is full",
            "it was interrupted",
        ),
        "数据不一致": ("the store does not match the raw files", "the CSV changed, new data came"),
    },
    "001": {
        "内存使用增加": ("caches take too much",),
        "视图缓存刷新": ("precomputed views repeat too often",),
        "GPU 增强 vs CPU 增强": ("an augmentation that the GPU does not have",),
        "向后兼容": ("settings of another script",),
    },
    "002": {
        "检查GPU利用率": ("the GPU is idle", "Look for yourself"),
        "检查IO性能": ("data time is longer than training time",),
        "检查显存使用": ("the device's memory is half empty", "Look for yourself"),
        "Windows限制": ("Windows",),
        "内存占用": ("caches take too much",),
        "显存溢出": ("out of memory on the GPU", "out of memory on the host"),
        "CPU核心数": ("more workers do not help",),
    },
    "003": {
        "检查数据加载是否仍是瓶颈": ("no idea why", "data time is longer than training time"),
        "如果数据加载时间 > 训练时间": (
            "data time is longer than training time",
            "samples are transformed again in each epoch",
        ),
        "如果GPU利用率 < 80%": (
            "the GPU is idle",
            "the device's memory is half empty",
            "data time is longer than training time",
            "`.item()` or `.cpu()` in the loop",
        ),
        "num_workers设置": ("more workers do not help", "out of memory on the host", "Windows"),
        "FP16稳定性": ("the loss is not finite in half precision",),
        "梯度累积": ("accumulation gives other results", "out of memory on the GPU"),
        "内存监控": ("out of memory on the GPU", "Look for yourself"),
    },
    "004": {
        "内存不足": ("out of memory on the GPU", "out of memory on the host"),
        "数据加载瓶颈": ("data time is longer than training time", "copies to the GPU take long"),
        "GPU利用率低": ("the GPU is idle", "the device's memory is half empty"),
        "检查GPU利用率": ("the GPU is idle", "Look for yourself"),
        "检查CPU和内存使用": ("Look for yourself",),
        "检查数据加载速度": ("no idea why", "Look for yourself"),
        "硬件要求": ("will it fit?",),
        "数据格式": ("is my Parquet or CSV file understood?",),
        "版本兼容性": ("nothing but the model is left",),
        "监控开销": ("logging or monitoring takes long",),
    },
}
"""By guide and entry: the rows of the page, by how they begin, or its sections, that answer it together."""


def entries_of(guide: str) -> dict[str, set[str]]:
    """Each entry with the settings and programs that it names."""
    found: dict[str, set[str]] = {}
    is_wanted, name = False, ""
    for line in guide.splitlines():
        if line.startswith("## "):
            is_wanted, name = any(topic in line for topic in TOPICS), ""
        if not is_wanted:
            continue
        if entry := ENTRY.match(line):
            name = (entry[1] or entry[2]).strip()
            found[name] = set()
        if name:
            found[name] |= {next(filter(None, groups)) for groups in SETTING.findall(line)}
    return {name: settings for name, settings in found.items() if name not in NOTHING_BELOW}


def answer(page: str, begins: str) -> str:
    """A row of the page, or a section without tables; empty: there is none."""
    rows = [line for line in page.splitlines() if line.startswith(f"| {begins}")]
    section = re.search(rf"^## {re.escape(begins)}\n(.*?)(?=^## |\Z)", page, re.MULTILINE | re.DOTALL)
    return "\n".join([*rows, *([section[1]] if section else [])])


@pytest.mark.parametrize("number", list(ANSWERS))
def test_every_entry_is_answered(number: str) -> None:
    page = PAGE.read_text(encoding="utf-8")
    for entry, rows in ANSWERS[number].items():
        assert all(answer(page, row) for row in rows), f"{entry}: {rows}"


@pytest.mark.parametrize("number", list(ANSWERS))
def test_no_entry_of_a_guide_and_no_setting_in_it_is_left_out(number: str) -> None:
    found = list(GUIDES.glob(f"{number}*.md"))
    if not found:
        pytest.skip("the guides are not on this machine")
    page, entries = PAGE.read_text(encoding="utf-8"), entries_of(found[0].read_text(encoding="utf-8"))
    assert entries.keys() == ANSWERS[number].keys()
    for entry, settings in entries.items():
        told = "\n".join(answer(page, row) for row in ANSWERS[number][entry]).replace("-", "_")
        assert {name for name in settings if name.replace("-", "_") not in told} == set(), entry


def test_the_entries_of_a_guide_are_found() -> None:
    guide = "## 使用\n### 1. other\n## 🛠️ 故障排除\n### 常见问题\n#### 1. slow\n--num_workers 4 `.item()`\n"
    guide += "1. **hot**: `batch_size` or `cache_size: 3`\n## 总结\n### end\n"
    assert entries_of(guide) == {"slow": {"num_workers", "item"}, "hot": {"batch_size", "cache_size"}}
