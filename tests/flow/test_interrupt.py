"""Ctrl-C and SIGTERM: the command ends within seconds, says that it can go on, and does when called again."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import random
import re
import signal
import subprocess
import sys
import termios
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.store.crashing import left_over, wait_until

from flatout.store.journal import num_finished
from flatout.store.reader import StoreReader
from flatout.store.verification import verify

CALL = "import sys; from flatout.cli.main import main; sys.exit(main())"
NUM_ROWS = 40

TRANSFORM = """
import time
from pathlib import Path
import numpy as np

def make(row):
    Path(f"begun-{row['id']}-{time.monotonic_ns()}").touch()
    time.sleep(0.05)
    return {"x": np.full(4096, float(row["id"]))}
"""


@pytest.fixture
def work(tmp_path: Path) -> Path:
    """A folder with a config whose rows take their time; a shard has two of them."""
    (tmp_path / "slow_rows.py").write_text(TRANSFORM)
    (tmp_path / "rows.csv").write_text("id\n" + "".join(f"{number}\n" for number in range(NUM_ROWS)))
    config = {
        "manifest": str(tmp_path / "rows.csv"),
        "preprocessed_data_dir": str(tmp_path / "store"),
        "transform": "slow_rows:make",
        "num_workers": 2,
        "preprocess_batch_size": 1,
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    return tmp_path


def command(work: Path) -> list[str]:
    return [sys.executable, "-c", CALL, "prepare", "--config", str(work / "config.json")]


def start(work: Path, **more: Any) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command(work), cwd=work, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **more
    )


def shards(work: Path) -> set[str]:
    return {path.name for path in (work / "store" / "shards").glob("*.h5")}


def check_stopped(work: Path, workers: list[psutil.Process]) -> None:
    """Nothing runs, nothing half done lies around; what is finished stays."""
    assert wait_until(lambda: not any(process.is_running() for process in workers))
    assert not [name for name in left_over(work / "store") if name.endswith((".tmp", ".lock"))]


def finish(work: Path) -> str:
    """The same command again; what it said."""
    done = subprocess.run(command(work), cwd=work, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    reader = StoreReader(work / "store")
    assert [reader.read(at)["x"][0] for at in range(len(reader))] == list(range(NUM_ROWS))
    assert verify(work / "store")
    assert left_over(work / "store") == []
    return done.stderr


@pytest.mark.parametrize(
    ("number", "code", "word"), [(signal.SIGINT, 130, "interrupted"), (signal.SIGTERM, 143, "terminated")]
)
def test_a_signal_stops_cleanly(work: Path, number: signal.Signals, code: int, word: str) -> None:
    process = start(work, start_new_session=True)
    assert wait_until(lambda: num_finished(work / "store") >= 3)
    workers = psutil.Process(process.pid).children(recursive=True)

    os.killpg(process.pid, number)
    out, said = process.communicate(timeout=10)

    assert process.returncode == code
    assert f"error: {word}" in said
    assert "finished shards are kept; the same command continues" in said
    assert "Traceback" not in out + said
    assert len(workers) == 2
    check_stopped(work, workers)
    finished = shards(work)
    begun = len(list(work.glob("begun-*")))
    assert re.search(r"continuing: \d+ of \d+ shards are finished", finish(work))
    assert finished < shards(work)
    assert len(list(work.glob("begun-*"))) - begun < NUM_ROWS


@pytest.mark.parametrize("stage", ["first look", "prepare"])
def test_a_slow_row_is_not_waited_for(work: Path, stage: str) -> None:
    """Neither when the first rows are looked at nor later; then nothing is finished, and that is said."""
    slow = "True" if stage == "first look" else "len(list(Path().glob('begun-*'))) > 10"
    code = TRANSFORM.replace("time.sleep(0.05)", f"time.sleep(1000 if {slow} else 0)")
    (work / "slow_rows.py").write_text(code)
    process = start(work, start_new_session=True)
    assert wait_until(lambda: len(list(work.glob("begun-*"))) >= (1 if stage == "first look" else 11))
    os.killpg(process.pid, signal.SIGINT)
    _, said = process.communicate(timeout=10)
    assert process.returncode == 130
    if stage == "first look":
        assert "no shard was finished yet; the same command starts again" in said
        assert not (work / "store").exists()


def test_ctrl_c_on_a_terminal(work: Path) -> None:
    """With the progress bar on, as a user sees it."""
    ours, theirs = pty.openpty()

    def own_terminal() -> None:
        os.setsid()
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)

    process = subprocess.Popen(
        command(work), cwd=work, stdin=theirs, stdout=theirs, stderr=theirs, preexec_fn=own_terminal
    )
    os.close(theirs)
    os.set_blocking(ours, False)
    shown = bytearray()

    def read() -> None:
        try:
            shown.extend(os.read(ours, 65536))
        except OSError:  # nothing to read now, or the other end is closed
            return

    def is_under_way() -> bool:
        read()
        return num_finished(work / "store") >= 3

    assert wait_until(is_under_way)
    workers = psutil.Process(process.pid).children(recursive=True)
    os.write(ours, b"\x03")

    def is_over() -> bool:
        read()
        return process.poll() is not None

    assert wait_until(is_over, seconds=10)
    read()
    os.close(ours)
    assert process.returncode == 130
    assert b"the same command continues" in shown
    assert b"Traceback" not in shown
    check_stopped(work, workers)
    finish(work)


@pytest.mark.parametrize("seed", [*range(3), *(pytest.param(n, marks=pytest.mark.slow) for n in range(3, 30))])
def test_signals_at_any_moment(work: Path, seed: int) -> None:
    """Also while it starts, while it ends, and twice."""
    draw = random.Random(seed)
    process = start(work, start_new_session=True)
    time.sleep(draw.uniform(0.1, 2.5))
    workers = []
    for _ in range(draw.randint(1, 3)):
        if process.poll() is None:
            workers += psutil.Process(process.pid).children(recursive=True)
            os.killpg(process.pid, draw.choice([signal.SIGINT, signal.SIGTERM]))
            time.sleep(draw.choice([0.0, 0.01, 0.1]))
    _, said = process.communicate(timeout=10)

    # Before the command has taken over, the interpreter itself ends by the signal.
    assert process.returncode in (0, 130, 143, -signal.SIGINT, -signal.SIGTERM), said
    assert wait_until(lambda: not any(process.is_running() for process in workers))
    finish(work)
