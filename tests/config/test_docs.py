"""docs/config.md says what the code does; run this file to write its tables anew."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml

from flatout.config import Config, list_tasks, load_config
from flatout.config.dialect import FLATTENED, RENAMED
from flatout.config.fields import AnyField, FieldSection
from flatout.config.keys import Key, list_keys
from flatout.config.text import parse_yaml

PAGE = Path(__file__).resolve().parents[2] / "docs" / "config.md"
SPLITS = ("train_ds", "validation_ds", "test_ds")
KINDS = get_args(get_args(AnyField)[0])


def written(value: Any) -> str:
    return (
        yaml.safe_dump(value, default_flow_style=True, sort_keys=False, width=1000)
        .removesuffix("...\n")
        .strip()
    )


def key_row(key: Key, *before: str) -> str:
    default = "" if key.is_section else "required" if key.is_required else f"`{written(key.default)}`"
    return "| " + " | ".join([*before, f"`{'.'.join(key.path)}`", default, key.doc]) + " |"


def is_top_level(key: Key) -> bool:
    return key.path[0] not in (*SPLITS, "fields") or len(key.path) == 1


def field_rows() -> list[str]:
    common = list_keys(FieldSection)
    rows = [key_row(key, "every kind") for key in common]
    for kind in KINDS:
        own = [key for key in list_keys(kind) if key not in common and key.path != ("kind",)]
        rows += [key_row(key, f"`{kind.model_fields['kind'].default}`") for key in own]
    return rows


def table(header: str, rows: Iterable[str]) -> str:
    return "\n".join([header, "|---" * (header.count("|") - 1) + "|", *rows])


def tables() -> dict[str, str]:
    spellings = [*RENAMED.items(), *((f"{section}.KEY", "KEY") for section in FLATTENED)]
    tasks = [f"| `{name}` | {written(values).strip('{}')} |" for name, values in list_tasks().items()]
    keys = [key_row(key) for key in list_keys(Config) if is_top_level(key)]
    return {
        "spellings": table("| written | canonical |", [f"| `{old}` | `{new}` |" for old, new in spellings]),
        "tasks": table("| task | sets |", tasks),
        "keys": table("| key | default | meaning |", keys),
        "fields": table("| kind | key | default | meaning |", field_rows()),
    }


@pytest.mark.parametrize("name", ["spellings", "tasks", "keys", "fields"])
def test_table_is_what_the_code_does(name: str) -> None:
    page = PAGE.read_text(encoding="utf-8")

    assert tables()[name] in page, f"docs/config.md is out of date: run python {Path(__file__).name}"


def test_every_key_says_what_it_means() -> None:
    assert [key.path for key in list_keys(Config) if not key.doc and key.path[-1] != "kind"] == []


def test_the_example_loads() -> None:
    example = re.search(r"```yaml\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert example is not None

    config = load_config(parse_yaml(example[1], "docs")[0], environ={})

    assert config.learning_rate == 1e-4
    assert config.fields["ct"].kind == "volume"


def rewrite() -> None:
    page = PAGE.read_text(encoding="utf-8")
    for name, rows in tables().items():
        page = re.sub(
            rf"<!-- {name} -->.*?<!-- /{name} -->",
            lambda _, name=name, rows=rows: f"<!-- {name} -->\n{rows}\n<!-- /{name} -->",
            page,
            flags=re.DOTALL,
        )
    PAGE.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    rewrite()
