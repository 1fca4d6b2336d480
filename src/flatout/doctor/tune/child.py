"""The process that trials run in: requests on standard input, answers on standard output, a cap on its memory.

`python -m flatout.doctor.tune.child REQUEST.json`. It may die of a trial; whoever asked goes on without it.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from flatout.config import load_config
from flatout.doctor.tune.bed import Bed
from flatout.doctor.tune.setting import Setting
from flatout.errors import FlatoutError
from flatout.train.cap import cap_device, cap_memory
from flatout.train.device import choose_place
from flatout.train.memory import is_out_of_memory


def main(request: Path) -> None:
    """Open the data, then answer until standard input ends; whatever libraries print goes to standard error."""
    asked = json.loads(request.read_text(encoding="utf-8"))
    with os.fdopen(os.dup(1), "w") as answers:
        os.dup2(2, 1)
        with suppress(FlatoutError):  # the first answer tells it
            cap_device(choose_place(load_config(asked["config"], environ={})).device)
        cap_memory(asked["cap_bytes"])  # after it: what CUDA itself takes does not count
        bed: list[Bed] = []
        for line in sys.stdin:
            answers.write(json.dumps(_answer(json.loads(line), asked, bed)) + "\n")
            answers.flush()
    shutil.rmtree(asked["scratch"], ignore_errors=True)  # whoever asked was killed, and cannot


def _answer(wanted: dict[str, Any], asked: dict[str, Any], bed: list[Bed]) -> dict[str, Any]:
    """What was asked for, or why it cannot be had."""
    try:
        if not bed:
            config = load_config(asked["config"], environ={})
            bed.append(Bed(config, Path(asked["scratch"]), asked["command"]))
        return {"found": _do(bed[0], wanted)}
    except Exception as error:
        told = f"out of memory: {error}" if is_out_of_memory(error) else f"{error}"
        kind = type(error).__name__
        return {"error": told if isinstance(error, FlatoutError) else f"{kind}: {told}", "kind": kind}


def _do(bed: Bed, wanted: dict[str, Any]) -> dict[str, Any]:
    if wanted["do"] == "facts":
        return bed.facts().to_json()
    if wanted["do"] == "probe":
        return bed.probe(wanted["seconds"]).to_json()
    setting = Setting(**wanted["setting"])
    if wanted["do"] == "ready":
        bed.get_ready(setting, on_sample=wanted["on_sample"])
        return {}
    return asdict(bed.run(setting, wanted["seconds"], on_sample=wanted["on_sample"]))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
