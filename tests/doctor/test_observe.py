"""Real scripts, run as their users run them, under observation."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
from pathlib import Path
from statistics import fmean

import pytest
from tests.doctor import scripts
from tests.doctor.running import FEW, run

from flatout.doctor.observe.run import observe
from flatout.doctor.observe.settings import ObserveSettings
from flatout.doctor.record import PHASES, DoctorRecord, LoaderFacts


def train_loader(record: DoctorRecord) -> LoaderFacts:
    return next(loader for loader in record.loaders if loader.name == "train")


def test_it_is_stopped_after_enough_steps(plain: DoctorRecord) -> None:
    assert (plain.exit.code, plain.exit.was_stopped, plain.exit.error) == (0, True, None)
    assert plain.num_warmup == 5
    assert len(plain.steps) in (20, 21)
    assert {step.num_samples for step in plain.steps} == {8}


def test_phases_add_up_to_the_step(plain: DoctorRecord) -> None:
    for step, after in zip(plain.steps, plain.steps[1:], strict=False):
        assert set(step.seconds) == set(PHASES)
        assert sum(step.seconds.values()) == pytest.approx(after.start_s - step.start_s, abs=0.002)
        assert all(seconds >= 0 for seconds in step.seconds.values())


def test_the_wait_is_what_the_dataset_sleeps(plain: DoctorRecord) -> None:
    assert all(step.seconds["wait"] >= 8 * 0.001 for step in plain.steps)
    assert all(step.seconds["forward"] > 0 and step.seconds["backward"] > 0 for step in plain.steps)
    assert all(step.seconds["optimiser"] > 0 for step in plain.steps)


def test_evaluation_and_logging_are_told_apart(plain: DoctorRecord) -> None:
    assert sum(step.seconds["evaluate"] > 0 for step in plain.steps) == 2
    assert sum(step.seconds["log"] > 0 for step in plain.steps) >= 4
    assert plain.facts["evaluations"] == pytest.approx(0.1, abs=0.01)
    assert "script.py" in plain.facts["evaluate_place"]
    assert {loader.name for loader in plain.loaders} == {"train", "evaluate"}


def test_stages_of_a_batch(plain: DoctorRecord) -> None:
    loader = train_loader(plain)
    assert loader.seconds["fetch"] >= 8 * 0.001
    assert loader.seconds["prepare"] > 0
    assert loader.cpu_seconds is not None
    assert loader.cpu_seconds < sum(loader.seconds.values())
    assert (loader.num_workers, loader.batch_size, loader.num_samples) == (0, 8, 256)
    assert loader.dataset == "__main__.Slow"
    assert loader.batch_bytes == 8 * 64 * 4 + 8 * 8


def test_functions_are_named(plain: DoctorRecord) -> None:
    names = {function.name.split(".")[-1] for function in train_loader(plain).functions}
    assert "__getitem__" in names
    whole = next(each for each in train_loader(plain).functions if each.name == "Slow.__getitem__")
    assert whole.calls_per_batch == 8
    assert Path(whole.file).name == "script.py"


def test_sync_points_have_their_line(plain: DoctorRecord) -> None:
    (point,) = [each for each in plain.sync_points if each.call == ".item()"]
    line = scripts.PLAIN.splitlines()[point.line - 1]
    assert "the sync point" in line
    assert point.per_step == pytest.approx(1.0, abs=0.11)


def test_a_file_that_is_written_once_is_not_overwritten(plain: DoctorRecord) -> None:
    assert plain.facts["overwritten"] == []
    assert not [text for text in plain.warnings if "model.pt" in text]


SAVES = (
    scripts.HEAD
    + """
log, unused = open("losses.csv", "w"), open("unused.csv", "w")
for step, batch in enumerate(DataLoader(Slow(40000, 0.0), batch_size=8)):
    train_step(batch)
    print(step, file=log)
    if step == 10:
        torch.save(model.state_dict(), "model.pt")
        open("log.part", "w").write("loss")
        os.replace("log.part", "log.csv")
    if step >= 30:
        torch.save(model.state_dict(), "late.pt")
        open("late.part", "w").write("loss")
        os.replace("late.part", "late.csv")
"""
)


def test_files_that_are_overwritten_or_written_late_are_told(tmp_path: Path) -> None:
    for name in ("model.pt", "log.csv"):
        (tmp_path / name).write_text("of last week")
    record = run(tmp_path, SAVES, settings=FEW)
    assert record.exit.was_stopped
    assert record.facts["overwritten"] == ["model.pt", "log.csv"]
    told = [text.split()[4] for text in record.warnings if text.startswith("the script wrote over ")]
    assert told == ["model.pt", "log.csv"]
    late = [text.split()[0] for text in record.warnings if "while batches were replayed" in text]
    gone_on = str(tmp_path / "losses.csv")  # open all the time; at the end some of it is still in a buffer
    assert late == ["late.pt", "late.csv", gone_on]


TWICE = (
    scripts.HEAD
    + """
for x, y in DataLoader(Slow(40000, 0.0), batch_size=8):
    train_step((x, y))
    accuracy = (model(x).argmax(1) == y).float().mean()  # once more
"""
)


def test_a_forward_that_runs_twice_is_named_by_the_line_that_calls_it_again(tmp_path: Path) -> None:
    found = run(tmp_path, TWICE).facts["repeated_forward"]
    assert (found["module"], found["calls_per_step"]) == ("Sequential", 2.0)
    assert Path(found["file"]).name == "script.py"
    assert "# once more" in TWICE.splitlines()[found["line"] - 1]


def test_the_ceiling_is_replayed(plain: DoctorRecord) -> None:
    assert plain.facts["ceiling"] == "replayed"
    assert plain.ceiling is not None
    assert plain.ceiling.resident_step_s < plain.ceiling.step_s
    assert plain.ceiling.gain > 2
    assert plain.ceiling.low <= plain.ceiling.gain <= plain.ceiling.high
    assert plain.ceiling.loader_batch_s is not None
    assert plain.ceiling.loader_batch_s >= 8 * 0.001
    assert plain.facts["resident_seconds"]["wait"] < fmean(step.seconds["wait"] for step in plain.steps) / 4


def test_parts_are_measured_alone(plain: DoctorRecord) -> None:
    assert plain.facts["slowdown"] >= 0
    assert plain.facts["items_here_s"] >= 8 * 0.001
    assert 0 < plain.facts["collate_here_s"] < plain.facts["items_here_s"]
    assert all(plain.facts[name] > 0 for name in ("stack_here_s", "hand_over_s", "augment_here_s"))
    assert "trimmed_ratio" not in plain.facts  # nothing is padded


def test_facts_of_the_process(plain: DoctorRecord) -> None:
    assert plain.facts["device"] == "cpu"
    assert plain.facts["precision"] == "float32"
    assert plain.facts["num_threads"] == 1
    assert plain.facts["steps_per_epoch"] == 32
    assert plain.facts["draws_random"] is False
    assert plain.overhead is not None
    assert 0 < plain.overhead < 0.2
    assert plain.looks
    assert plain.machine["num_cores"] >= 1


def test_workers_that_are_forked(tmp_path: Path) -> None:
    record = run(tmp_path, scripts.WORKERS)
    loader = train_loader(record)
    assert record.exit.was_stopped
    assert (loader.num_workers, loader.start_method, loader.prefetch_factor) == (2, "fork", 2)
    assert loader.worker_starts >= 2
    assert loader.seconds["fetch"] >= 8 * 0.001
    assert loader.seconds["hand_over"] > 0
    assert "Slow.__getitem__" in {function.name for function in loader.functions}


@pytest.mark.slow
@pytest.mark.parametrize("context", ["spawn", "forkserver"])
def test_workers_that_are_not_forked(tmp_path: Path, context: str) -> None:
    record = run(tmp_path, scripts.WORKERS, context)
    loader = train_loader(record)
    assert record.exit.was_stopped
    assert loader.start_method == context
    assert loader.seconds["fetch"] >= 8 * 0.001
    assert loader.seconds["hand_over"] > 0


def test_a_stream_that_never_ends(tmp_path: Path) -> None:
    record = run(tmp_path, scripts.STREAM)
    loader = train_loader(record)
    assert (record.exit.code, record.exit.was_stopped) == (0, True)
    assert loader.is_iterable
    assert loader.num_samples is None
    assert loader.seconds["fetch"] >= 4 * 0.002


@pytest.mark.slow
def test_a_script_that_catches_everything(tmp_path: Path) -> None:
    text = scripts.STREAM.replace("for batch in DataLoader", "stream = iter(DataLoader").replace(
        "batch_size=4):", "batch_size=4))"
    )
    text = text.replace(
        "    try:\n        train_step(batch)", "while True:\n    try:\n        train_step(next(stream))"
    )
    record = run(tmp_path, text.replace("except Exception", "except BaseException"))
    assert (record.exit.code, record.exit.was_stopped) == (0, True)


def test_a_crash_is_the_scripts_own(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    record = run(tmp_path, scripts.CRASH, "0")
    assert record.exit.code == 1
    assert not record.exit.was_stopped
    assert record.exit.error is not None
    assert "ValueError: sample 100 is broken" in record.exit.error
    assert "flatout" not in record.exit.error
    shown = capfd.readouterr().err
    assert "ValueError: sample 100 is broken" in shown
    assert "flatout/doctor" not in shown
    assert len(record.steps) > 0


@pytest.mark.slow
def test_a_crash_in_a_worker(tmp_path: Path) -> None:
    record = run(tmp_path, scripts.CRASH, "2")
    assert record.exit.code == 1
    assert record.exit.error is not None
    assert "sample 100 is broken" in record.exit.error
    assert "DataLoader worker process" in record.exit.error
    assert "flatout" not in record.exit.error


@pytest.mark.slow
def test_a_script_that_ends_by_itself(tmp_path: Path) -> None:
    record = run(tmp_path, scripts.SHORT, settings=ObserveSettings(num_steps=500, is_full=True))
    assert (record.exit.code, record.exit.was_stopped) == (0, False)
    assert record.facts["ceiling"] == "from waits"
    assert record.ceiling is not None
    assert record.ceiling.gain > 1


def test_its_own_exit_code(tmp_path: Path) -> None:
    record = run(tmp_path, "import sys\nsys.exit(7)\n")
    assert (record.exit.code, record.exit.error) == (7, None)
    assert record.steps == ()
    assert record.ceiling is None


def test_modules_and_a_sitecustomize_of_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sitecustomize.py").write_text("import builtins\nbuiltins.mine = 'here'\n")
    (tmp_path / "package").mkdir()
    body = (
        "import sys\nassert (mine, __name__) == ('here', '__main__')\nassert sys.argv[1:] == ['--json', '-x']\n"
    )
    (tmp_path / "package" / "thing.py").write_text(body)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    record = run(tmp_path, "", "--json", "-x", module="package.thing")
    assert (record.exit.code, record.exit.error) == (0, None)


def test_ctrl_c(tmp_path: Path) -> None:
    path = scripts.write(tmp_path, scripts.STREAM.replace("except Exception", "except ZeroDivisionError"))
    path.write_text(
        path.read_text().replace(  # well after the five steps of the warm-up
            "index += 1", "index += 1\n            if index == 80:\n                open('going', 'w').close()"
        )
    )
    code = (
        "import sys; from pathlib import Path; from flatout.doctor.observe.run import observe\n"
        "from flatout.doctor.observe.settings import ObserveSettings\n"
        f"record = observe(Path({str(path)!r}), None, (), ObserveSettings(num_steps=100000))\n"
        "print(record.exit.code, len(record.steps) > 0, 'KeyboardInterrupt' in (record.exit.error or ''))\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    going = tmp_path / "going"
    while not going.exists():
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(0.05)
            pytest.fail("the script ended by itself")
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=60)
    assert out.split() == ["130", "True", "True"]


@pytest.mark.slow
def test_training_in_a_thread(tmp_path: Path) -> None:
    record = run(tmp_path, scripts.THREAD)
    assert (record.exit.code, record.exit.was_stopped) == (0, True)
    assert len(record.steps) in (20, 21)
    assert all(step.seconds["wait"] >= 8 * 0.001 for step in record.steps)


@pytest.mark.slow
def test_lightning(tmp_path: Path) -> None:
    record = run(tmp_path, scripts.LIGHTNING, settings=FEW)
    assert (record.exit.code, record.exit.was_stopped) == (0, True)
    assert fmean(step.seconds["wait"] for step in record.steps) >= 0.004
    assert all(step.seconds["forward"] > 0 for step in record.steps)
    assert record.facts["ceiling"] == "replayed"


@pytest.mark.slow
def test_accelerate(tmp_path: Path) -> None:
    record = run(tmp_path, scripts.ACCELERATE, settings=FEW)
    assert (record.exit.code, record.exit.was_stopped) == (0, True)
    assert all(step.seconds["backward"] > 0 for step in record.steps)


@pytest.mark.slow
def test_ranks_of_torchrun(tmp_path: Path) -> None:
    path = scripts.write(tmp_path, scripts.RANKS)
    arguments = ["--nproc_per_node=2", "--master_port=29599", str(path)]
    record = observe(None, "torch.distributed.run", arguments, FEW, stdout=subprocess.DEVNULL)
    assert (record.exit.code, record.exit.was_stopped) == (0, True)
    assert record.facts["num_processes"] == 2
    assert len(record.steps) in (20, 21)
    assert train_loader(record).seconds["fetch"] >= 8 * 0.0005
