"""Two processes on the CPU train what one does: the same samples a step, the same weights; resumed by one."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.train.tiny import Tiny, TinyModule

from flatout.config import to_yaml
from flatout.train import fit
from flatout.train.weights import read_weights

REPOSITORY = Path(__file__).resolve().parents[2]
PATHS = f"{REPOSITORY}{os.pathsep}{REPOSITORY / 'src'}"
"""The tests, and this tree's own package."""
Make = Callable[..., dict[str, Any]]

SCRIPT = """
import json, os, sys
import torch
from flatout.train import fit
from tests.train.tiny import Tiny, TinyModule

torch.set_num_threads(1)
config, out, resume = json.loads(sys.argv[1]), sys.argv[2], sys.argv[3] or None
said = []
result = fit(config, resume=resume, say=said.append)
rank = os.environ.get("LOCAL_RANK", "0")
with open(f"{out}/rank{rank}.json", "w") as file:
    told = {"seen": Tiny.made.seen, "folder": str(result.folder), "metrics": result.metrics, "said": said}
    json.dump({**told, "samples": (result.speed.samples_per_s or 0) * result.speed.train_s}, file)
"""


def start_two(config: dict[str, Any], tmp_path: Path, resume: str = "") -> int:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    environment = {**os.environ, "PYTHONPATH": PATHS, "MASTER_ADDR": "127.0.0.1"}
    given = json.dumps({**config, "device": "cpu", "devices": 2})
    command = [sys.executable, str(script), given, str(tmp_path), resume]
    return subprocess.run(command, timeout=240, env=environment, cwd=tmp_path).returncode


def train_with_two(config: dict[str, Any], tmp_path: Path, resume: str = "") -> list[dict[str, Any]]:
    assert start_two(config, tmp_path, resume) == 0
    return [json.loads((tmp_path / f"rank{rank}.json").read_text()) for rank in range(2)]


@pytest.mark.slow
@pytest.mark.parametrize("steps", [1, 3])
def test_two_processes_train_what_one_does(make_config: Make, tmp_path: Path, steps: int) -> None:
    settings = {"task": "tests.train.tiny:Steady", "gradient_accumulation_steps": steps}
    ranks = train_with_two(make_config(**settings, batch_size=2), tmp_path)
    assert len({rank["folder"] for rank in ranks}) == 1
    alone = fit(make_config(**settings, batch_size=4))
    seen = [sorted({*chain(*step)}) for step in zip(*(rank["seen"] for rank in ranks), strict=True)]
    assert seen == [sorted(keys) for keys in Tiny.made.seen]
    assert alone.weights is not None
    together = read_weights(Path(ranks[0]["folder"]) / "weights.safetensors")
    for name, value in read_weights(alone.weights).items():
        torch.testing.assert_close(together[name], value, rtol=1e-4, atol=1e-5)
    # Of all ranks' samples, not of the first one's.
    assert alone.speed.samples_per_s is not None
    assert ranks[0]["samples"] == pytest.approx(alone.speed.samples_per_s * alone.speed.train_s)
    assert ranks[0]["metrics"]["train_loss"] == ranks[1]["metrics"]["train_loss"]
    assert ranks[0]["metrics"]["train_loss"] == pytest.approx(alone.metrics["train_loss"], rel=1e-3)
    # 5 val samples are 3 and 2: each counts once.
    for name in ("val_loss", "val_distance"):
        assert ranks[0]["metrics"][name] == ranks[1]["metrics"][name]
        assert ranks[0]["metrics"][name] == pytest.approx(alone.metrics[name], rel=1e-3)


@pytest.mark.slow
def test_one_goes_on_where_two_stopped(make_config: Make, tmp_path: Path) -> None:
    settings = {"task": "tests.train.tiny:Steady"}
    ranks = train_with_two(make_config(**settings, batch_size=2, epochs=1), tmp_path)
    rest = fit(make_config(**settings, batch_size=4, epochs=3), resume=ranks[0]["folder"])
    seen = Tiny.made.seen
    whole = fit(make_config(**settings, batch_size=4, epochs=3))
    assert seen == Tiny.made.seen[4:]
    assert rest.metrics["val_loss"] == pytest.approx(whole.metrics["val_loss"], rel=1e-3)


@pytest.mark.slow
def test_the_command_prints_once(make_config: Make, tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(to_yaml(make_config(epochs=1, batch_size=2)))
    command = [str(Path(sys.executable).with_name("flatout")), "train", "--config", str(config), "--json"]
    environment = {**os.environ, "PYTHONPATH": PATHS}
    done = subprocess.run(
        [*command, "--device", "cpu", "--devices", "2"],
        capture_output=True,
        text=True,
        timeout=240,
        env=environment,
        cwd=tmp_path,
        check=True,
    )
    result = json.loads(done.stdout)  # one document
    assert result["rank"] == 0
    assert done.stderr.count("run folder: ") == 1
    assert done.stderr.count("epoch 1/1: ") == 1
    assert len(list((tmp_path / "runs").iterdir())) == 1


@pytest.mark.slow
def test_validation_is_counted_by_what_each_device_has(make_config: Make, tmp_path: Path) -> None:
    """7 train batches are 4 on each of two devices, 5 val batches are 3: of these 0.3 is less than one."""
    validation = {"validation_ds": {"batch_size": 1}, "val_check_interval": 5, "limit_val_batches": 0.3}
    config = make_config(task="tests.train.tiny:Steady", batch_size=2, **validation)
    first, second = train_with_two(config, tmp_path)
    assert first["metrics"]["val_loss"] == second["metrics"]["val_loss"]
    assert "limit_val_batches: 0.3 of 3 val batches is less than one; one is taken" in first["said"]
    assert "the test split is tested by one device only; this run had several" in first["said"]
    assert len(first["said"]) == len(set(first["said"]))
    assert second["said"] == []


@pytest.mark.slow
def test_the_best_checkpoint_inside_an_accumulation(make_config: Make, tmp_path: Path) -> None:
    """Gradients of both ranks are in it: two, and one alone, go on as if there had been no break."""
    steps = {"gradient_accumulation_steps": 2, "val_check_interval": 3, "epochs": 1}
    settings = {"task": "tests.train.tiny:Steady", **steps}
    config = make_config(**settings, batch_size=2)
    folder = Path(train_with_two(config, tmp_path)[0]["folder"])
    (saved,) = (folder / "checkpoints").glob("epoch*.ckpt")
    assert "flatout_gradients" in torch.load(saved, weights_only=True)
    again = Path(train_with_two(config, tmp_path, str(saved))[0]["folder"])
    alone = fit(make_config(**settings, batch_size=4), resume=saved).folder
    whole = read_weights(folder / "weights.safetensors")
    for rest in (again, alone):
        for name, value in read_weights(rest / "weights.safetensors").items():
            torch.testing.assert_close(value, whole[name], rtol=1e-5, atol=1e-6)


class SpoiltModule(TinyModule):
    """The second rank's first loss is NaN."""

    def measure(self, batch: Any) -> Any:
        factor = float("nan") if os.environ.get("LOCAL_RANK") == "1" else 1.0
        return {name: value * factor for name, value in super().measure(batch).items()}


class Spoilt(Tiny):
    def module(self, config: Any, data: Any) -> Any:
        return SpoiltModule(config, data)


@pytest.mark.slow
def test_what_ends_the_second_rank_stands_in_the_record(make_config: Make, tmp_path: Path) -> None:
    config = make_config(task="tests.train.test_distributed:Spoilt", batch_size=2)
    assert start_two(config, tmp_path) != 0
    (folder,) = (tmp_path / "runs").iterdir()
    record = json.loads((folder / "run.json").read_text())
    assert record["status"] == "failed"
    assert record["error"].startswith("rank 1: NonfiniteLossError: the loss is nan at step 1. Samples: s")


@pytest.mark.slow
def test_every_torchrun_has_a_folder_of_its_own(make_config: Make, tmp_path: Path) -> None:
    """Also without an id, which is 'none' for all of them."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    given = json.dumps(make_config(batch_size=2, epochs=1, device="cpu", devices=2))
    folders = []
    for _ in range(2):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        options = ["--nproc-per-node", "2", "--master-port", str(port)]
        torchrun = [sys.executable, "-m", "torch.distributed.run", *options]
        command = [*torchrun, str(script), given, str(tmp_path), ""]
        subprocess.run(command, check=True, timeout=240, env={**os.environ, "PYTHONPATH": PATHS}, cwd=tmp_path)
        told = [json.loads((tmp_path / f"rank{rank}.json").read_text()) for rank in range(2)]
        folders.append([Path(rank["folder"]).name for rank in told])
    assert folders == [["run-0001"] * 2, ["run-0002"] * 2]
    assert sorted(path.name for path in (tmp_path / "runs").iterdir()) == ["run-0001", "run-0002"]
