"""Columns that settings name: those that the manifest lacks, all in one error, with what was likely meant."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from flatout.config.fields import UNSETTLED, AnyField
from flatout.config.source import SourceSettings
from flatout.config.suggest import nearest_name
from flatout.errors import ConfigError

MAX_SHOWN = 40
"""Columns of a wide table that are listed."""
EXTRA_COLUMNS = ("cycle_column", "offset_column", "duration_column")
"""Settings of a field that name further columns."""


def check_columns(
    columns: Sequence[str],
    fields: Mapping[str, AnyField],
    source: SourceSettings | None = None,
    lists: Sequence[str] = (),
) -> None:
    """Every column that a field, the key or the splits name must be there.

    Args:
        columns: those of plain values, which alone can be keys and splits.
        lists: those of lists, which fields may name, too.

    Raises:
        ConfigError: naming all that are not.
    """
    have = [*columns, *lists]
    missing = [_told(f"field '{name}' wants", column, have) for name, column in _of_fields(fields, have)]
    missing += [_told(f"{setting} names", column, columns) for setting, column in _of_source(source, columns)]
    if not missing:
        return
    told = ", ".join(have[:MAX_SHOWN]) + (f" and {len(have) - MAX_SHOWN:,} more" * (len(have) > MAX_SHOWN))
    # A name that looks misspelt is the user's own, not what a store remembers.
    is_old = "splits." in missing[-1] and "did you mean" not in missing[-1]
    hint = "; if an earlier prepare chose it, --force divides anew" if is_old else ""
    raise ConfigError(f"{'; '.join(missing)}; there are: {told}{hint}")


def _of_fields(fields: Mapping[str, AnyField], have: Sequence[str]) -> Iterator[tuple[str, str]]:
    for name, field in fields.items():
        if field.kind in ("transform", "custom") or (field.kind in UNSETTLED and field.column is None):
            continue
        wanted = [field.column or name]
        if field.kind == "sequence" and field.columns and field.column is None:
            wanted = field.columns
        extra = [column for key in EXTRA_COLUMNS if (column := getattr(field, key, None)) is not None]
        yield from ((name, column) for column in (*wanted, *extra) if column not in have)


def _of_source(source: SourceSettings | None, columns: Sequence[str]) -> Iterator[tuple[str, str]]:
    if source is None:
        return
    splits = source.splits
    named = {
        "key_column": source.key_column,
        "splits.column": splits.column,
        "splits.group": splits.group,
        "splits.stratify": splits.stratify,
    }
    yield from ((key, column) for key, column in named.items() if column is not None and column not in columns)


def _told(who: str, column: str, have: Sequence[str]) -> str:
    nearest = nearest_name(column, have)
    return f"{who} column '{column}'" + (f" (did you mean '{nearest}'?)" if nearest else "")
