"""`flatout bench guides`: every row switches something, is legal, and ends in a number or in 'needs CUDA'."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.bench.test_train_bench import round_of

from flatout.bench import GuidesBench, bench_guides, guides, guides_measure
from flatout.bench.guides_measure import KINDS, GroupSetting, compare, measure_group, mode_of
from flatout.bench.guides_rows import AFTER, ROWS, GuideRow
from flatout.bench.train_cases import read_rows, write_rows
from flatout.bench.train_process import Contestant
from flatout.bench.train_rounds import Asked, Figures
from flatout.bench.train_sets import GUIDE_CASES
from flatout.cli.bench_guides import measured
from flatout.cli.main import main
from flatout.config import load_config
from flatout.errors import ConfigError, FlatoutError
from flatout.train.task import BUILT_IN

SETTING = GroupSetting(0.1, 3, lambda text: None)
CONFIGS = {task: {"task": task, **GUIDE_CASES[task].settings} for task in BUILT_IN}


def named(row: GuideRow) -> str:
    return f"{row.guide} {row.row}"


@pytest.mark.parametrize("row", ROWS, ids=named)
def test_every_row_switches_something_legal(row: GuideRow) -> None:
    base = guides.base_of(row, CONFIGS[row.task])
    switch = guides._switched(row, CONFIGS[row.task])
    before = load_config(CONFIGS[row.task], overrides=base).model_dump()
    after = load_config(CONFIGS[row.task], overrides={**base, **switch}).model_dump()
    assert before != after
    changed = {name for name in after if after[name] != before[name]}
    follows = {"prefetch_factor", "persistent_workers"}  # without workers there are none
    assert changed <= {name.partition(".")[0] for name in switch} | follows


def test_one_row_at_a_time() -> None:
    for row in ROWS:
        if AFTER not in row.switch:
            assert len({name.partition(".")[0] for name in row.switch}) <= 3, row.row
    assert len({(row.guide, row.row, row.measure) for row in ROWS}) == len(ROWS)
    assert {row.guide for row in ROWS} == {"000", "001", "002", "003", "004"}
    assert all(len({row.task for row in ROWS if row.guide == each.guide}) == 1 for each in ROWS)


def test_only_what_needs_a_gpu_is_marked() -> None:
    for row in ROWS:
        is_gpu = row.measure == "device_memory" or any(
            row.switch.get(name) == value
            for name, value in (("precision", "16-mixed"), ("pin_memory", True), ("deterministic", False))
        )
        assert row.needs_cuda == is_gpu, row.row
    assert {128, 256} <= {row.switch.get("batch_size") for row in ROWS if row.guide == "001"}


def figures_of(guide: str) -> str:
    return " ".join(row.figure for row in ROWS if row.guide == guide)


def text_of(guide: str, data_dir: Path) -> str:
    """A guide as it was written, percentages with a space as they stand in the rows."""
    folder = data_dir.parent / "guides"
    if not folder.is_dir():
        pytest.skip("the guides are not on this machine")
    (text,) = [file.read_text(encoding="utf-8") for file in folder.glob(f"{guide}_*.md")]
    return re.sub(r"(?<=\d)倍", "x", re.sub(r"(?<=\d)%", " %", text))


def cells_below(heading: str, text: str) -> list[list[str]]:
    """The rows of the table with this heading, without it."""
    _, found, rest = text.partition(heading)
    assert found, heading
    lines = itertools.takewhile(lambda line: line.startswith("|"), rest.splitlines()[2:])
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


NUMBER = r"\d+(?:-\d+)?"


def test_the_table_of_guide_004(data_dir: Path) -> None:
    """The figures of the guides' own tables of effects stand in the rows."""
    table = cells_below("| 优化措施 | 预期速度提升 | 内存使用变化 |", text_of("004", data_dir))
    assert len(table) == 7
    for _, speed, memory in table:
        assert speed in figures_of("004"), speed
        assert memory.replace("无变化", "no change") in figures_of("004"), memory
    unchanged = [row.row for row in ROWS if row.guide == "004" and row.figure == "no change"]
    assert unchanged == ["memory, gradient accumulation", "memory, compiled model"]


def test_the_table_of_guide_001(data_dir: Path) -> None:
    table = cells_below("| 指标 | 优化前 | 优化后 | 提升倍数 |", text_of("001", data_dir))
    assert len(table) == 5
    for _, *cells in table:
        numbers = [number for cell in cells for number in re.findall(NUMBER, cell)]
        rows = [row for row in ROWS if row.guide == "001" and "after" in row.switch]
        assert [row for row in rows if all(number in row.figure for number in numbers)], cells


def test_the_table_of_guide_002(data_dir: Path) -> None:
    text = text_of("002", data_dir)
    table = cells_below("| 配置项 | 优化前 | 优化后 | 影响 |", text)
    rows = [row for row in ROWS if row.guide == "002"]
    assert {name.strip("`") for name, *_ in table} <= {name for row in rows for name in row.switch}
    for name, _, after, _ in table:
        switched = {str(row.switch[key]) for row in rows for key in row.switch if key == name.strip("`")}
        assert after in switched, name
    expected = re.findall(rf"\*\*({NUMBER}(?:x| %))\*\*", text)
    assert len(expected) == 5
    assert [figure for figure in expected if figure not in figures_of("002")] == []


def test_what_guides_000_and_003_expect(data_dir: Path) -> None:
    assert all(figure in figures_of("000") for figure in ("21x", "45-60 % -> 85-95 %", "2-3x"))
    _, _, expected = text_of("003", data_dir).partition("## 性能提升预期")
    numbers = re.findall(rf"{NUMBER}(?:x| %)", expected.partition("## 配置建议")[0])
    assert len(numbers) == 7
    assert [figure for figure in numbers if figure not in figures_of("003")] == []


class Scripted(Contestant):
    """Answers without training; by its settings it is fast or slow, or fails."""

    def __init__(self, name: str, entry: dict[str, Any]) -> None:
        super().__init__(name, entry)
        self.asked: list[Asked] = []
        self.config, self.overrides, self.options = entry["config"], entry["overrides"], entry["options"]
        MADE.append(self)

    @contextmanager
    def running(self) -> Iterator[Contestant]:
        if self.overrides.get("seed") == 13:
            raise FlatoutError("x failed:\nunlucky")
        self.facts = {"notes": ["batch_size: too many", "device: other"]}
        yield self

    def run(self, asked: Asked) -> Figures:
        self.asked.append(asked)
        wall_s = 2.0 / self.overrides.get("batch_size", 1) * len(self.asked)
        return round_of(wall_s, wall_s / 4, step_s=[0.5, 0.1, 0.1, 0.3], epoch_starts=[0, 3], device_bytes=7)


MADE: list[Scripted] = []


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> list[Scripted]:
    MADE.clear()
    monkeypatch.setattr(guides_measure, "Contestant", Scripted)
    return MADE


def test_rows_that_switch_the_same_are_measured_once(scripted: list[Scripted]) -> None:
    base = {"batch_size": 1, "save_top_k": 3}
    rows: Any = [({"batch_size": 4}, "speed"), ({"batch_size": 4}, "data_time"), ({"seed": 13}, "speed")]
    speed, data, failed = measure_group({"task": "x"}, base, rows, "rounds", SETTING)
    assert [each.overrides for each in scripted] == [
        {"batch_size": 1},
        {"batch_size": 4},
        {"batch_size": 1, "seed": 13},
    ]
    assert [len(each.rounds) for each in scripted] == [3, 3, 0]
    assert speed["ratio"] == pytest.approx(4.0)
    assert speed["gain"] == pytest.approx(3.0)
    assert (speed["from"], speed["to"]) == (pytest.approx(8 / 6), pytest.approx(16 / 3))
    assert speed["notes"] == ["batch_size: too many"]
    assert data["gain"] == pytest.approx(0.75)
    assert failed == {"failed": "unlucky"}


def test_what_falls_between_steps_is_measured_by_itself(scripted: list[Scripted]) -> None:
    base, rows = {"save_top_k": 3}, [({"save_top_k": 2}, "run")]
    measure_group({"task": "x"}, base, rows, "run", SETTING)  # type: ignore[arg-type]
    assert scripted[1].overrides == {"save_top_k": 2}
    assert scripted[1].options == {"limit_train_batches": guides_measure.RUN_STEPS}
    assert all(asked.is_whole for asked in scripted[1].asked[1:])
    assert [mode_of(each) for each in ("epoch_switch", "monitor", "run", "speed", "memory")] == [
        *("epochs", "monitor", "run", "rounds", "rounds")
    ]


@pytest.mark.parametrize("suffix", ["csv", "jsonl", "parquet"])
def test_short_epochs_end_by_themselves(suffix: str, tmp_path: Path, scripted: list[Scripted]) -> None:
    path = tmp_path / f"rows.{suffix}"
    rows = [{"id": f"{number:02d}", "split": "val" if number % 4 == 0 else "train"} for number in range(40)]
    write_rows(path, rows)
    config = {"manifest": str(path), "preprocessed_data_dir": "made"}
    switch: Any = [({"persistent_workers": True}, "epoch_switch")]
    measure_group(config, {"batch_size": 3}, switch, "epochs", SETTING)
    before, after = scripted
    assert before.config == after.config
    assert before.config["preprocessed_data_dir"] != "made"
    found = read_rows(Path(before.config["manifest"]))
    assert found == [row for row in rows if row["split"] == "train"][: 3 * guides_measure.EPOCH_STEPS]


def test_every_measure() -> None:
    before, after = Contestant("before", {}), Contestant("after", {})
    figures = {"step_s": [0.5, 0.1, 0.1, 0.3], "epoch_starts": [0, 3], "device_bytes": 8, "num_samples": 80}
    before.rounds = [round_of(2.0, 0.5, **figures)]
    after.rounds = [round_of(1.0, 0.1, **{**figures, "step_s": [0.2, 0.1], "epoch_starts": [0]})]
    after.facts = {"notes": []}
    wanted = {
        "speed": (4.0, 8.0, 1.0),
        "run": (4.0, 8.0, 1.0),
        "epoch_time": (20.0, 10.0, 0.5),
        "data_time": (250.0, 50.0, 0.8),
        "utilisation": (0.75, 0.9, 0.2),
        "cpu": (0.8, 1.6, -1.0),
        "memory": (5, 5, 0.0),
        "device_memory": (8, 8, 0.0),
        "epoch_switch": (300.0, 100.0, 1 - 1 / 3),
        "monitor": (2e-4, 4e-4, -1.0),
    }
    assert set(wanted) == set(KINDS)
    for measure, (old, new, gain) in wanted.items():
        found = compare(before, after, {}, measure)  # type: ignore[arg-type]
        assert (found["from"], found["to"]) == (pytest.approx(old), pytest.approx(new)), measure
        assert found["gain"] == pytest.approx(gain), measure


def test_no_epoch_began() -> None:
    assert KINDS["epoch_switch"].of({"step_s": [0.1, 0.2], "epoch_starts": []}) == 0.0


@pytest.mark.slow  # 14 s: trainings
def test_a_guide_from_end_to_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Real trainings of a generated set: two rows, of which one needs what is not here."""
    rows = (
        GuideRow("002", "speech", "batch", {"batch_size": 8}, "4x"),
        GuideRow("002", "speech", "half", {"precision": "16-mixed"}, "20 %", needs_cuda=True),
        GuideRow("000", "cardiac_ct", "another task", {"batch_size": 8}, "21x"),
    )
    empty = tmp_path / "empty"
    empty.mkdir()
    options = GuidesBench(("speech",), 0.02, 1, empty, tmp_path, (("model", {"dim": 8}),), rows)
    document = bench_guides(options)
    batch, half = document["rows"]
    assert (batch["before"], batch["after"]) == ({"batch_size": 2}, {"batch_size": 8})
    assert batch["from"] > 0
    assert batch["to"] > 0
    assert batch["is_real"] is False
    if not torch.cuda.is_available():
        assert half["needs"] == "needs CUDA"
    assert list(tmp_path.iterdir()) == [empty]


def test_tasks_that_are_not_there() -> None:
    with pytest.raises(ConfigError, match="no task 'sound'"):
        bench_guides(GuidesBench(tasks=("sound",)))


ROW = {"guide": "000", "task": "cardiac_ct", "row": "loading", "guide_figure": "21x", "notes": ["n: a note"]}
SHOWN = [
    (
        {"measure": "data_time", "from": 200.0, "to": 4.0, "unit": "ms a batch", "ratio": 0.02, "gain": 0.98},
        "50.0x",
    ),
    ({"measure": "speed", "from": 9.0, "to": 8.1, "unit": "samples/s", "ratio": 0.9, "gain": -0.1}, "-10.0%"),
    ({"measure": "speed", "from": 0.9, "to": 2.7, "unit": "samples/s", "ratio": 3.0, "gain": 2.0}, "3.0x"),
    ({"measure": "memory", "from": 1e9, "to": 3e9, "unit": "bytes", "ratio": 3.0, "gain": -2.0}, "-200.0%"),
    (
        {"measure": "utilisation", "from": 0.5, "to": 0.9, "unit": "of the time", "ratio": 1.8, "gain": 0.8},
        "+40.0",
    ),
    ({"needs": "needs CUDA", "measure": "speed"}, ""),
    ({"failed": "no compiler", "measure": "speed"}, ""),
]


@pytest.mark.parametrize(("figures", "gain"), SHOWN)
def test_a_row_as_it_is_shown(figures: dict[str, Any], gain: str) -> None:
    values, shown = measured({**ROW, **figures})
    assert shown.startswith(gain)
    assert values == figures.get("needs", figures.get("failed", values))
    assert values


def test_people_get_a_table(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    document = {"rows": [{**ROW, **figures} for figures, _ in SHOWN], "machine": {}, "options": {}}
    monkeypatch.setattr("flatout.bench.bench_guides", lambda options, say: document, raising=False)
    assert main(["bench", "guides"]) == 0
    shown = capsys.readouterr().out
    for text in ("200.0 -> 4.0 ms a batch", "50.0x", "needs CUDA", "no compiler", "21x", "n: a note"):
        assert text in shown
    assert main(["bench", "guides", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["rows"]) == len(SHOWN)


def test_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "guides", "--help"]) == 0
    shown = capsys.readouterr().out
    for option in ("--task", "--seconds", "--rounds", "--json"):
        assert option in shown
