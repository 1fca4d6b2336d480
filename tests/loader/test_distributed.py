"""Real processes under torchrun on gloo: ranks share every epoch exactly."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from flatout.loader.loader import FastDataLoader
from flatout.store import StoreReader

SCRIPT = """
import json, sys
import torch.distributed as dist
from flatout.loader.loader import FastDataLoader
store, out, state = sys.argv[1:4]
dist.init_process_group("gloo")
loader = FastDataLoader(store, 4, shuffle=True, seed=5, num_workers=1)
if state != "none":
    loader.load_state_dict(json.load(open(state)))
seen, states = [], []
for batch in loader:
    seen.append(batch["key"][batch["valid"]].tolist())
    states.append(loader.state_dict())
    dist.barrier()
json.dump({"seen": seen, "states": states, "len": len(loader)}, open(f"{out}{dist.get_rank()}.json", "w"))
dist.destroy_process_group()
"""


def torchrun(store: StoreReader, folder: Path, num_ranks: int, state: str = "none") -> list[dict]:
    script = folder / "script.py"
    script.write_text(SCRIPT)
    command = [sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={num_ranks}", "--standalone"]
    out = folder / "rank"
    subprocess.run([*command, str(script), str(store.folder), str(out), state], check=True, timeout=120)
    return [json.loads(Path(f"{out}{rank}.json").read_text()) for rank in range(num_ranks)]


def test_two_ranks_share_an_epoch_and_one_continues_it(store: StoreReader, tmp_path: Path) -> None:
    wanted = [k for batch in FastDataLoader(store, 8, shuffle=True, seed=5) for k in batch["key"].tolist()]
    ranks = torchrun(store, tmp_path, 2)
    assert ranks[0]["len"] == ranks[1]["len"] == len(ranks[0]["seen"])
    steps = zip(ranks[0]["seen"], ranks[1]["seen"], strict=True)
    assert [key for first, second in steps for key in (*first, *second)] == wanted
    state = tmp_path / "state.json"
    state.write_text(json.dumps(ranks[0]["states"][3]))
    rest = FastDataLoader(store, 1, shuffle=True, seed=5, num_workers=0)
    rest.load_state_dict(json.loads(state.read_text()))
    assert [key for batch in rest for key in batch["key"].tolist()] == wanted[4 * 8 :]
    # Others than began it, as real processes that load the state before their first batch.
    ranks = torchrun(store, tmp_path, 3, str(state))
    steps = zip(*(rank["seen"] for rank in ranks), strict=True)
    assert [key for step in steps for part in step for key in part] == wanted[4 * 8 :]
    assert ranks[0]["len"] == -(-len(wanted) // 8)
    assert ranks[0]["states"] == ranks[2]["states"]
    assert ranks[0]["states"][0]["samples"] == 5 * 8
