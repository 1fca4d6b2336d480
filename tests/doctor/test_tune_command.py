"""`flatout tune` as a user types it: files that load, a proof that says everything, Ctrl-C, refusals."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.train.tiny import config_of, prepare, write_rows

from flatout.cli.main import main
from flatout.config import load_config, to_yaml
from flatout.doctor.tune import child as tune_child
from flatout.doctor.tune import process as tune_process
from flatout.doctor.tune import run as tuning
from flatout.doctor.tune.bed import Bed
from flatout.doctor.tune.model import Service
from flatout.doctor.tune.options import TuneOptions
from flatout.doctor.tune.process import Trials
from flatout.doctor.tune.race import Failed, Slice
from flatout.doctor.tune.run import Tuned, left_of, slice_of, tune
from flatout.doctor.tune.setting import Setting
from flatout.doctor.tune.write import write_tuned
from flatout.errors import ConfigError, FlatoutError, LoaderError
from flatout.loader.machine import describe_machine


@pytest.fixture(scope="module")
def manifest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = write_rows(tmp_path_factory.mktemp("tune") / "raw")
    prepare(config_of(path, path.parent))
    return path


class Here:
    """Trials without a process of their own."""

    interrupt_at: int | None = None
    count = 0

    def __init__(self, config: Any, cap_bytes: int, command: str, *, patience_s: float) -> None:
        self._bed = Bed(config, Path(config.output_dir))
        assert cap_bytes > 0
        assert patience_s > 0
        Here.count = 0

    def __enter__(self) -> Here:
        return self

    def __exit__(self, *_: Any) -> None:
        pass

    def facts(self) -> Any:
        return self._bed.facts()

    def probe(self, seconds: float) -> Service:
        return self._bed.probe(seconds)

    def get_ready(self, setting: Setting, *, on_sample: bool) -> None:
        self._bed.get_ready(setting, on_sample=on_sample)

    def run(self, setting: Setting, seconds: float, *, on_sample: bool) -> Slice | Failed:
        Here.count += 1
        if Here.count == Here.interrupt_at:
            raise KeyboardInterrupt
        rate = 100.0 * (1 + setting.num_workers) * setting.batch_size  # threads help here, whatever they do
        return Slice(rate, 9, seconds, 0.5, 0.1, 1 << 20, 0.01)


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning, "Trials", Here)
    monkeypatch.setattr(Here, "interrupt_at", None)


@pytest.fixture
def config_file(manifest: Path, tmp_path: Path) -> Path:
    config = config_of(manifest, tmp_path / "runs", num_workers=0)
    del config["num_workers"], config["epochs"]
    config |= {"train_ds": {"num_workers": 0, "shuffle": False}, "ims_per_gpu": 4, "max_epochs": 3}
    path = tmp_path / "config.yaml"
    path.write_text("# a comment\n" + to_yaml(config))
    (tmp_path / "runs").mkdir()
    return path


@pytest.mark.usefixtures("here")
def test_a_tuned_config_and_its_proof(config_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = config_file.with_name("faster.yaml")
    assert main(["tune", "--config", str(config_file), "--budget", "2s", "-o", str(out), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    before, after = load_config(config_file, environ={}), load_config(out, environ={})
    assert after.loader_for("train").num_workers == document["after"]["num_workers"] > 0
    assert after.loader_for("train").shuffle is False
    assert after.num_workers == before.num_workers == "auto"  # prepare works as before
    kept = {"train_ds", "num_workers"}
    assert after.model_dump(exclude=kept) == before.model_dump(exclude=kept)
    assert document["config"] == str(out)
    proof = json.loads(Path(document["proof"]).read_text())
    assert proof == {name: value for name, value in document.items() if name not in ("config", "proof")}
    assert proof["kind"] == "flatout.tune"
    assert proof["gain"]["low"] > 1
    assert proof["changes_results"] == []
    assert set(proof["not_tried"]) >= {"batch_size", "encoding", "order"}
    trial = proof["stages"][0]["trials"][0]
    assert {"setting", "samples_per_s", "low", "high", "cpu_share", "memory_bytes", "rounds"} <= set(trial)
    assert trial["predicted_samples_per_s"] > 0
    assert proof["machine"]["num_cores"] >= 1
    assert proof["stages"][-1]["name"] == "proof"


@pytest.mark.usefixtures("here")
def test_what_people_see(config_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = config_file.with_name("tuned.yaml")
    arguments = ["tune", "--config", str(config_file), "--allow", "batch-size", "-o", str(out)]
    arguments += ["--set", "batch_size=3"]
    assert main(arguments) == 0
    shown = capsys.readouterr().out
    for text in (
        "times as fast as before",
        "train_ds.batch_size: 6",
        "batch_size changes results",
        "not tried: order",
    ):
        assert text in shown
    assert load_config(out, environ={}).loader_for("train").batch_size == 6
    assert main(["train", "--config", str(out), "--epochs", "1"]) == 0


@pytest.mark.usefixtures("here")
def test_settings_that_are_best_already_stay(config_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = config_file.with_name("tuned.yaml")
    again = ["--set", "train_ds.num_workers=8", "--set", "train_ds.prefetch_factor=2"]
    assert main(["tune", "--config", str(config_file), *again, "-o", str(out)]) == 0
    shown = capsys.readouterr().out
    assert "the settings as they are stay" in shown
    assert "(the settings as they were)" in " ".join(shown.split())
    assert "found nothing better" in out.read_text().splitlines()[0]
    assert load_config(out, environ={}).loader_for("train").num_workers == 8
    assert json.loads(out.with_name("tuned.proof.json").read_text())["keys"] == {}


@pytest.mark.usefixtures("here")
def test_ctrl_c_keeps_the_best_so_far(
    config_file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Here, "interrupt_at", 17)
    out = config_file.with_name("tuned.yaml")
    assert main(["tune", "--config", str(config_file), "-o", str(out)]) == 130
    assert "the best so far is in" in capsys.readouterr().err
    assert load_config(out, environ={}).loader_for("train").num_workers != 0
    assert not json.loads(out.with_name("tuned.proof.json").read_text())["is_complete"]


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ([], "nothing to tune"),
        (["--config", "absent.yaml"], "absent.yaml"),
        (["--config", "{config}", "--budget", "soon"], "no length of time"),
        (["--config", "{config}", "--allow", "seed"], "allow 'seed'"),
        (["--config", "{config}", "--cpu-budget", "7"], "cpu_budget 7"),
        (["--config", "{config}", "-o", "out.json"], "ends in .yaml"),
        (["--config", "{config}", "-o", "{config}"], "is the config that is tuned"),
        (["--config", "{config}", "-o", "nowhere/out.yaml"], "there is no folder"),
    ],
)
def test_refusals(options: list[str], told: str, config_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tune", *(text.replace("{config}", str(config_file)) for text in options)]) == 2
    assert told in capsys.readouterr().err


@pytest.mark.usefixtures("here")
def test_another_encoding_gets_another_folder(config_file: Path, tmp_path: Path) -> None:
    tuned = tune(str(config_file), options=TuneOptions(budget_s=1.0))
    changed = tuned.found.setting.changed(encoding="float16+zstd")
    tuned.found.setting = changed
    other = Tuned(**{**vars(tuned), "facts": type(tuned.facts)(**{**vars(tuned.facts), "encodable": ("x",)})})
    assert other.keys["preprocessed_data_dir"].endswith("store-float16-zstd")
    path, _ = write_tuned(other, config_file, tmp_path / "encoded.yaml")
    read = load_config(path, environ={})
    assert (read.fields["x"].encoding, read.fields["x"].compression) == ("float16", "zstd")
    assert read.fields["x"].kind == "array"
    assert other.changes_results == ["encoding"]


@pytest.mark.usefixtures("here")
def test_a_dict_and_a_config_can_be_tuned(manifest: Path, tmp_path: Path) -> None:
    given = config_of(manifest, tmp_path)
    for source in (given, load_config(given, environ={})):
        tuned = tune(source, options=TuneOptions(budget_s=1.0))
        path, _ = write_tuned(tuned, source, tmp_path / "tuned.yaml")
        assert load_config(path, environ={}).loader_for("train").num_workers == tuned.setting.num_workers


def test_opening_the_data_is_part_of_the_budget() -> None:
    assert left_of(60.0, 6.0) == 54.0
    assert left_of(60.0, 50.0) == 30.0


def test_stretches_follow_the_costs_and_the_budget() -> None:
    assert slice_of(Service(True, 2, 8, 0.001, 0.001), 60) == pytest.approx(0.3)
    assert slice_of(Service(True, 2, 8, 0.1, 0.1), 60) == pytest.approx(0.8)
    assert slice_of(Service(True, 2, 8, 5.0, 5.0), 600) == pytest.approx(3.0)
    assert slice_of(Service(True, 2, 8, 5.0, 5.0), 6) == pytest.approx(0.1)


def test_a_process_of_its_own(manifest: Path, tmp_path: Path) -> None:
    """The real thing, once: asked, answering, refusing, killed in the middle, started again, ended."""
    config = load_config(config_of(manifest, tmp_path, num_workers=1), environ={})
    with Trials(config, 4 << 30) as trials:
        facts = trials.facts()
        assert facts.start == Setting(1, 4, 4)
        assert trials.probe(0.01).make_s > 0
        trials.get_ready(facts.start, on_sample=False)
        assert isinstance(trials.run(facts.start, 0.01, on_sample=False), Slice)
        wrong = trials.run(facts.start.changed(order="backwards"), 0.01, on_sample=False)
        assert isinstance(wrong, Failed)
        assert "order" in wrong.reason
        child = trials._child
        assert child is not None
        os.kill(child._process.pid, signal.SIGKILL)
        killed = trials.run(facts.start, 0.01, on_sample=False)
        assert killed == Failed("the system killed the process: out of memory")
        pid = child._process.pid
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    assert trials._child is None


def test_errors_of_the_process_are_ours(
    manifest: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers: list[dict[str, Any]] = []

    class Child:
        def __init__(self, folder: Path, config_dir: Path | None) -> None:
            assert json.loads((folder / "request.json").read_text())["cap_bytes"] == 5

        def ask(self, request: dict[str, Any], limit_s: float) -> dict[str, Any]:
            return answers.pop(0)

        def stop(self) -> None:
            pass

    monkeypatch.setattr(tune_process, "_Child", Child)
    with Trials(load_config(config_of(manifest, tmp_path), environ={}), 5) as trials:
        for kind, wanted in (
            ("ConfigError", ConfigError),
            ("LoaderError", LoaderError),
            ("KeyError", FlatoutError),
        ):
            answers.append({"error": "because", "kind": kind})
            with pytest.raises(wanted, match="because"):
                trials.facts()
        answers += [{"died": "one"}, {"died": "two"}, {"died": "three"}]
        run: Callable[..., Any] = trials.run
        reasons = [run(Setting(0, 1, 1), 1.0, on_sample=False).reason for _ in range(4)]
        assert reasons == ["one", "two", "three", "the process of the trials has died 3 times"]


def test_a_trial_that_fills_the_memory_is_ended_from_outside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A trial that waits for its workers cannot look itself."""

    def full(reserve: float) -> None:
        raise MemoryError(f"below {reserve:g}")

    started = subprocess.Popen
    code = "import sys; sys.stdin.read()"
    monkeypatch.setattr(tune_process, "LOOK_S", 0.0)
    monkeypatch.setattr(tune_process, "check_free", full)
    monkeypatch.setattr(
        tune_process.subprocess,
        "Popen",
        lambda command, **options: started([command[0], "-c", code], **options),
    )
    child = tune_process._Child(tmp_path, None)
    assert child.ask({"do": "facts"}, 60.0) == {"died": "out of memory: below 0.03"}
    child.stop()
    assert child._process.returncode != 0


def test_whoever_is_left_alone_ends_and_clears_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command was killed: its end of the pipe is closed, and nobody else removes the copies."""
    scratch = tmp_path / "1"
    (scratch / "copy0").mkdir(parents=True)
    request = scratch / "request.json"
    request.write_text(json.dumps({"cap_bytes": 5, "scratch": str(scratch), "config": {}}))
    capped: list[int] = []
    monkeypatch.setattr(tune_child, "cap_memory", capped.append)
    monkeypatch.setattr(tune_child.os, "dup2", lambda one, other: None)
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    tune_child.main(request)
    assert capped == [5]
    assert not scratch.exists()
    assert tmp_path.exists()


def test_copies_lie_beside_a_store_that_no_memory_holds(
    manifest: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = tmp_path / "data" / "store"
    (store / "shards").mkdir(parents=True)
    (store / "shards" / "0").write_bytes(bytes(1000))
    config = load_config(config_of(manifest, tmp_path, preprocessed_data_dir=str(store)), environ={})
    for free_bytes, place in ((2000, None), (500, store.parent)):
        small = replace(describe_machine(look_for_gpu=False), free_bytes=free_bytes)
        monkeypatch.setattr(tune_process, "describe_machine", lambda look_for_gpu, found=small: found)
        assert tune_process._place_for_copies(config) == place
    none = load_config(config_of(manifest, tmp_path, preprocessed_data_dir=None), environ={})
    assert tune_process._place_for_copies(none) is None
