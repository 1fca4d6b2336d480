"""`batch_size: auto`: the search, what is made of its results, and (slow) a process that runs out of memory."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.train.tiny import BATCH, NUM_TRAIN, Tiny, TinyModule

from flatout.config import load_config
from flatout.errors import ConfigError
from flatout.train import fit, largest_batch, try_batches
from flatout.train.run import Run

Make = Callable[..., dict[str, Any]]


@given(limit=st.integers(0, 5000), most=st.integers(1, 4096))
def test_the_search_comes_close_and_never_over(limit: int, most: int) -> None:
    tried: list[int] = []

    def fits(size: int) -> bool:
        tried.append(size)
        return size <= limit

    found = largest_batch.search(fits, most)
    wanted = min(limit, most)
    assert max(tried) <= most
    assert found == 1 or found <= wanted
    assert wanted - found <= max(1, found // 8)
    assert len(tried) <= 20


def test_auto_is_a_number_to_begin_with() -> None:
    for source in ({"batch_size": "auto"}, {"ims_per_gpu": "auto"}):
        config = load_config({"task": "heart_sound", **source}, environ={})
        assert (config.batch_size, config.find_batch_size) == (64, True)
    assert load_config({"batch_size": "auto"}, environ={}).batch_size == 8
    over = load_config({"batch_size": 12}, overrides={"batch_size": "auto"}, environ={})
    assert (over.batch_size, over.find_batch_size) == (12, True)
    assert not load_config({"batch_size": "auto"}, overrides={"batch_size": 3}, environ={}).find_batch_size


def found_by(
    rows: list[tuple[int, bool]], monkeypatch: pytest.MonkeyPatch, most: int = 100, died: str | None = None
) -> tuple[int, str]:
    def child(request: Path, config_dir: Path | None) -> str | None:
        lines = [json.dumps({"size": size, "fits": fits}) for size, fits in rows]
        request.with_suffix(".tried").write_text("\n".join(lines))
        assert json.loads(request.read_text())["most"] == most
        return died

    monkeypatch.setattr(largest_batch, "_run_child", child)
    return largest_batch.find_batch_size(load_config({}, environ={}), most, 1)


def test_what_is_made_of_the_results(monkeypatch: pytest.MonkeyPatch) -> None:
    assert found_by([(1, True), (8, True), (16, False), (12, True)], monkeypatch) == (
        12,
        "batch_size: auto is 12: 16 does not fit into 80% of the memory",
    )
    assert found_by([(64, True), (100, True)], monkeypatch) == (
        100,
        "batch_size: auto is 100: the whole train split",
    )
    assert found_by([(64, True)], monkeypatch)[1] == "batch_size: auto is 64: larger ones took too long to try"
    assert found_by([], monkeypatch)[0] == 1
    assert found_by([(1, True), (2, True)], monkeypatch, died="signal 9") == (
        2,
        "batch_size: auto is 2: the process that tried the next larger one died of it (signal 9)",
    )
    assert "nothing could be tried out (no module)" in found_by([], monkeypatch, died="no module")[1]


@pytest.mark.parametrize(
    ("code", "told"),
    [
        ("pass", None),
        ("raise ValueError('no such column')", "ValueError: no such column"),
        ("import os; os.kill(os.getpid(), 9)", "signal 9"),
        ("raise SystemExit(3)", "no word"),
    ],
)
def test_why_the_process_died(
    code: str, told: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = subprocess.run
    monkeypatch.setattr(
        subprocess,
        "run",
        lambda command, **options: run([command[0], "-c", code], **options),
    )
    assert largest_batch._run_child(tmp_path / "request.json", None) == told


def test_several_devices_need_a_number() -> None:
    with pytest.raises(ConfigError, match="give a number for several"):
        largest_batch.find_batch_size(load_config({}, environ={}), 10, 2)


def test_a_run_takes_what_was_found(make_config: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "flatout.train.run.find_batch_size", lambda config, num_train, num_devices: (num_train // 2, "found")
    )
    said: list[str] = []
    result = fit(make_config(batch_size="auto", epochs=1), say=said.append)
    assert "found" in said
    assert [len(keys) for keys in Tiny.made.seen] == [NUM_TRAIN // 2] * 2
    record = json.loads((result.folder / "run.json").read_text())["config"]
    assert (record["batch_size"], record["find_batch_size"]) == (7, False)


def test_tokens_leave_nothing_to_be_found(make_config: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: Any) -> Any:
        raise AssertionError("nothing is tried")

    monkeypatch.setattr("flatout.train.run.find_batch_size", never)
    said: list[str] = []
    config = load_config(make_config(batch_size="auto", max_tokens=99), environ={})
    run = Run(config, Tiny(), said.append, None, shows_bar=False)
    run.find_batch_size(config, None)
    assert (run.config.batch_size, run.config.find_batch_size) == (BATCH, False)
    assert [text for text in said if "auto has no effect with max_tokens" in text]


def test_the_process_that_tries(make_config: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In this process, without a cap; sizes of more than five are too much for it."""

    def measure(self: Any, batch: Any) -> Any:
        if len(batch["key"]) > 5:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return original(self, batch)

    original = TinyModule.measure
    monkeypatch.setattr(TinyModule, "measure", measure)
    monkeypatch.setattr(try_batches, "cap_memory", lambda cap_bytes: None)
    capped: list[Any] = []
    monkeypatch.setattr(try_batches, "cap_device", capped.append)
    config = load_config(make_config(batch_size="auto", device="cpu"), environ={}).model_dump(mode="json")
    request = tmp_path / "request.json"
    request.write_text(
        json.dumps({"config": config, "most": NUM_TRAIN, "cap_bytes": 0, "output_dir": str(tmp_path / "out")})
    )
    try_batches.main(request)
    tried = [json.loads(line) for line in request.with_suffix(".tried").read_text().splitlines()]
    assert [(row["size"], row["fits"]) for row in tried] == [
        (1, True),
        (2, True),
        (4, True),
        (8, False),
        (6, False),
        (5, True),
    ]
    assert capped == [torch.device("cpu")]


def test_a_model_that_cannot_train_on_one_sample(
    make_config: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def measure(self: Any, batch: Any) -> Any:
        if len(batch["key"]) == 1 and self.training:
            raise ValueError("Expected more than 1 value per channel when training")
        return original(self, batch)

    original = TinyModule.measure
    monkeypatch.setattr(TinyModule, "measure", measure)
    config = load_config(make_config(), environ={}).model_dump(mode="json")
    asked = {"config": config, "output_dir": str(tmp_path)}
    assert try_batches._trains(asked, 1) is None
    assert try_batches._trains(asked, 2) is True


class HungryModule(TinyModule):
    """50 MB a sample."""

    def measure(self, batch: Any) -> Any:
        eaten = torch.ones(len(batch["key"]), 12_500_000)
        values = super().measure(batch)
        return {**values, "loss": values["loss"] + 0.0 * eaten[:, 0]}


class Hungry(Tiny):
    def module(self, config: Any, data: Any) -> Any:
        return HungryModule(config, data)


@pytest.mark.slow
def test_a_real_process_under_a_real_cap(make_config: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    cap = SimpleNamespace(free_bytes=int(500e6 / largest_batch.MEMORY_SHARE))
    monkeypatch.setattr(largest_batch, "describe_machine", lambda: cap)
    said: list[str] = []
    config = make_config(task="tests.train.test_largest_batch:Hungry", batch_size="auto", epochs=1)
    fit(config, say=said.append)
    (note,) = [text for text in said if text.startswith("batch_size: auto is")]
    assert "does not fit" in note
    assert 3 <= int(note.split()[3].rstrip(":")) <= 10
