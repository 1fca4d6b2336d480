"""docs/train.md: its own task trains, its commands run, every file it names is there."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from flatout.cli.main import main
from flatout.demo.recordings import make_recordings
from flatout.train import fit

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "train.md").read_text(encoding="utf-8")
SNIPPETS = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)

CONFIG = """\
manifest: recordings
preprocessed_data_dir: store
output_dir: runs
fields:
  signal: {column: file}
splits: {stratify: label, ratios: {train: 0.5, val: 0.25, test: 0.25}}
num_workers: 0
epochs: 1
precision: "32"
batch_size: 4
"""


@pytest.fixture
def sandbox(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    make_recordings(tmp_path / "recordings", 3)
    (tmp_path / "store").mkdir()
    (tmp_path / "config.yaml").write_text(CONFIG)
    (tmp_path / "mine.py").write_text(SNIPPETS[1])
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    sys.modules.pop("mine", None)


def test_a_task_of_your_own(sandbox: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["prepare", "--config", "config.yaml", "--set", "task=mine:Mine"]) == 0
    assert main(["train", "--config", "config.yaml", "--task", "mine:Mine"]) == 0
    shown = capsys.readouterr().out
    assert "the store" in shown
    assert "val_accuracy" in shown


def test_the_call_from_python(sandbox: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = sandbox / "config.yaml"
    config.write_text(CONFIG + "task: mine:Mine\n")
    exec(SNIPPETS[0].replace('"epochs": 5', '"epochs": 1'), {})
    assert "best.safetensors" in capsys.readouterr().out


def test_every_file_of_a_run_is_named(sandbox: Path) -> None:
    config = sandbox / "config.yaml"
    config.write_text(CONFIG + "task: mine:Mine\nmonitor: {update_frequency: 1}\n")
    folder = fit(config).folder
    for file in folder.rglob("*"):
        name = file.relative_to(folder).as_posix()
        if file.is_file() and not name.startswith("csv/hparams"):
            assert f"`{name}`" in PAGE or name.startswith("checkpoints/epoch="), name
