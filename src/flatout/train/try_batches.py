"""The process that tries batch sizes out: two steps of each under a memory cap, results written at once."""

from __future__ import annotations

import json
import logging
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import Any

from flatout.config import Config, load_config
from flatout.errors import TrainMemoryError
from flatout.train.cap import cap_device, cap_memory
from flatout.train.device import choose_place
from flatout.train.engine import memory_explained
from flatout.train.largest_batch import BUDGET_S, search
from flatout.train.longest import end_with_longest
from flatout.train.run import Run
from flatout.train.task import load_task

_log = logging.getLogger(__name__)

TRIAL: dict[str, Any] = {
    "find_batch_size": False,
    "save_top_k": 0,
    "logger": [],
    "epochs": 1,
    "disable_metrics_monitoring": True,
    "compile_model": False,
    "cache_in_memory": False,
    "early_stopping.patience": None,
}
"""What a trial does differently; what costs memory in a step stays."""
OPTIONS = {"limit_train_batches": 2, "limit_val_batches": 0, "limit_test_batches": 0, "max_epochs": 1}


def main(request: Path) -> None:
    """Read what is asked for, write a line for each size that was tried."""
    asked = json.loads(request.read_text(encoding="utf-8"))
    deadline_s = time.monotonic() + BUDGET_S
    cap_device(choose_place(load_config(asked["config"], environ={})).device)
    cap_memory(asked["cap_bytes"])  # after it: what CUDA itself takes does not count

    def fits(size: int) -> bool:
        if time.monotonic() > deadline_s:
            return False
        is_fitting = _trains(asked, size)
        if is_fitting is None:
            return True
        with open(request.with_suffix(".tried"), "a", encoding="utf-8") as file:
            file.write(json.dumps({"size": size, "fits": is_fitting}) + "\n")
        return is_fitting

    search(fits, asked["most"])


def _trains(asked: dict[str, Any], size: int) -> bool | None:
    """Whether this size trains; None: a single sample does not, for another reason (batch normalisation)."""
    overrides = {**TRIAL, "batch_size": size, "output_dir": asked["output_dir"]}
    config = load_config(asked["config"], overrides=overrides, environ={})
    try:
        _train(config)
    except TrainMemoryError:
        return False
    except Exception:
        if size > 1:
            raise
        return None
    return True


def _train(config: Config) -> None:
    """Two steps, of ragged data one with the longest samples."""
    run = Run(config, load_task(config), _log.debug, None, shows_bar=False)
    with closing(run.open_loaders(config, None)) as loaders:
        with memory_explained(config, run.precision, loaders.data.fields):
            end_with_longest(loaders, config.loader_for("train"))
        run.train(loaders, None, None, (), OPTIONS)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
