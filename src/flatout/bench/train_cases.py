"""TrainCase: rows of files in; a manifest, a store and a config to train with out."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from flatout.bench.train_generated import Rows
from flatout.store import DataPreprocessor

VAL_EVERY = 8
"""Every so many rows one is for validation."""
MOST_ROWS = 4000
"""Different samples that are taken of a large set."""


@dataclass(frozen=True)
class TrainCase:
    """The data of one task."""

    settings: Mapping[str, Any]
    """Fields, and whatever else the data asks for."""
    find: Callable[[Path, Path], Rows]
    """Rows of the real set; the folder of all sets and a scratch folder in. None of them: it is not there."""
    generate: Callable[[Path], Rows]
    folder: str = ""
    """Of the real set, below that of all sets; paths of its rows start there."""
    manifest: str = "rows.csv"

    def prepare(
        self,
        task: str,
        data: Path,
        scratch: Path,
        num_samples: int,
        settings: Sequence[tuple[str, Any]] = (),
        most_rows: int = MOST_ROWS,
    ) -> tuple[dict[str, Any], bool]:
        """Write the manifest and make the store; the config, and whether the samples are real, out.

        There are at least so many train samples: files are named again under other keys where they are fewer.
        """
        rows, base, is_real = self._rows(data, scratch)
        rows = rows[:most_rows]
        path = scratch / self.manifest
        write_rows(path, _repeated(rows, num_samples))
        config = {
            "task": task,
            "manifest": str(path),
            "base_path": str(base),
            "key_column": "id",
            "splits": {"column": "split"},
            "preprocessed_data_dir": str(scratch / "store"),
            "output_dir": str(scratch / "runs"),
            **self.settings,
            **dict(settings),
        }
        DataPreprocessor(config).run()
        return config, is_real

    def _rows(self, data: Path, scratch: Path) -> tuple[Rows, Path, bool]:
        made = scratch / "files"
        made.mkdir(parents=True)
        if rows := self.find(data, made):
            return rows, made if any(made.iterdir()) else data / self.folder, True
        return self.generate(made), made, False


def write_rows(path: Path, rows: Rows) -> None:
    """A manifest in the format of its name: CSV, JSON lines or Parquet."""
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    elif path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    else:
        with open(path, "w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)


def read_rows(path: Path) -> Rows:
    """What `write_rows` wrote; of a CSV as texts."""
    if path.suffix == ".parquet":
        rows: Rows = pq.read_table(path).to_pylist()
        return rows
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".jsonl":
        return [json.loads(line) for line in text.splitlines()]
    return list(csv.DictReader(io.StringIO(text)))


def cut_epoch(config: Mapping[str, Any], num_samples: int) -> dict[str, Any]:
    """The config with so many train samples, read from their files: short epochs that end by themselves."""
    manifest = Path(config["manifest"])
    rows = [row for row in read_rows(manifest) if row["split"] == "train"][:num_samples]
    few = manifest.with_name(f"first-{num_samples}{manifest.suffix}")
    write_rows(few, rows)
    return {**config, "manifest": str(few), "preprocessed_data_dir": str(few.with_suffix(".store"))}


def _repeated(rows: Rows, num_samples: int) -> Rows:
    """Rows again and again, with keys and splits, until there are so many of train."""
    num_rows = max(len(rows), num_samples * VAL_EVERY // (VAL_EVERY - 1) + VAL_EVERY)
    return [
        {"id": f"{number:06d}", **rows[number % len(rows)], "split": "train" if number % VAL_EVERY else "val"}
        for number in range(num_rows)
    ]
