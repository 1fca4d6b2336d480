"""`flatout bench augment` at a tiny scale: the form of its document, and that different work stops the race."""

from __future__ import annotations

import json
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from flatout.augment import draw_keys
from flatout.bench import AugmentBench, augment_images, augment_signals, augment_turns, bench_augment
from flatout.bench.augment_eager import EAGER, run_all, run_one
from flatout.bench.augment_images import IMAGE_CASES, NEUTRAL, ImageCase, Strength, measure_images, our_chain
from flatout.bench.augment_scipy import SCIPY, run_each
from flatout.bench.augment_signals import check_equal, measure_keys, six_transforms
from flatout.bench.augment_turns import milliseconds_in_turns
from flatout.cli.main import main
from flatout.errors import FlatoutError, MissingDependencyError

REPOSITORY = Path(__file__).resolve().parents[2]


def only_flipping(strength: Strength, shape: tuple[int, ...]) -> Callable[[torch.Tensor], torch.Tensor]:
    """A peer that flips, and so passes for one."""
    return lambda x: x.flip(-1)


TINY_CASES = {
    "image": ImageCase((2, 3, 16, 16), "torch", only_flipping),
    "volume": ImageCase((1, 1, 6, 8, 8), "torch", only_flipping),
}


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flatout.bench.augment.SIGNAL_SHAPE", (4, 1, 400))
    monkeypatch.setattr("flatout.bench.augment.IMAGE_CASES", TINY_CASES)
    monkeypatch.setattr("flatout.bench.augment_bank.START_S", 0.0)


@pytest.mark.usefixtures("tiny")
def test_the_document(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "augment", "--seconds", "0.002", "--rounds", "3", "--peers", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["batch"], document["length"]) == (4, 400)
    rates = {
        name: document[name]["samples_per_s"] for name in ("flatout", "eager_reference", "scipy_reference")
    }
    assert document["ratio_to_scipy"] == pytest.approx(rates["flatout"] / rates["scipy_reference"])
    assert document["ratio_to_eager"] == pytest.approx(rates["flatout"] / rates["eager_reference"])
    for operations in (document["per_op_ms"], document["eager_reference"]["per_op_ms"]):
        assert set(operations) == set(EAGER)
        assert min(operations.values()) > 0
    keyed, chain_ms = document["keyed"], 4e3 / rates["flatout"]
    assert keyed["share_of_chain"] == pytest.approx(keyed["draw_ms"] / chain_ms)
    assert keyed["overhead"] == pytest.approx((keyed["draw_ms"] - keyed["generator_draw_ms"]) / chain_ms)
    for name in ("image", "volume"):
        found = document[name]
        assert found["ratio_to_peer"] == pytest.approx(found["samples_per_s"] / found["peer_samples_per_s"])
    assert document["peers"]["torch"]["samples_per_s"] > 0
    assert document["machine"]["cores"] >= 1
    assert document["machine"]["libraries"]["torch"]


@pytest.mark.usefixtures("tiny")
def test_people_get_a_table_with_targets(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "augment", "--seconds", "0.002", "--rounds", "1"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    for text in (
        "4 signals of 400 values",
        "times SciPy",
        ">= 25",
        ">= 4",
        "<= 5%",
        "time_stretch",
        "ms a batch",
    ):
        assert text in shown
    assert "times kornia" not in shown


def test_calls_take_turns_and_the_median_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    now, said = [0.0], []
    monkeypatch.setattr(augment_turns.time, "perf_counter", lambda: now[0])
    lengths = {"a": iter([9.0, 1.0, 5.0, 2.0]), "b": iter([9.0, 4.0, 4.0, 4.0])}

    def call(name: str) -> None:
        said.append(name)
        now[0] += next(lengths[name])

    found = milliseconds_in_turns({name: lambda name=name: call(name) for name in "ab"}, 3, 0.5)
    assert "".join(said) == "ab" + "ab" + "ba" + "ab"
    assert found == {"a": 2000.0, "b": 4000.0}


def test_a_round_goes_on_until_its_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    now, calls = [0.0], []
    monkeypatch.setattr(augment_turns.time, "perf_counter", lambda: now[0])

    def call() -> None:
        calls.append(now[0])
        now[0] += 0.25

    assert milliseconds_in_turns({"only": call}, 1, 0.6) == {"only": 250.0}
    assert len(calls) == 4  # one before the clock starts


@pytest.mark.parametrize("shape", [(5, 1, 400), (3, 2, 333)], ids=str)
def test_the_straightforward_versions_do_the_same_as_ours(shape: tuple[int, int, int]) -> None:
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    check_equal(six_transforms(), x, draw_keys(torch.arange(shape[0]), seed=1, epoch=0))


@pytest.mark.parametrize("name", EAGER)
def test_different_work_is_noticed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    change, draw = EAGER[name]
    monkeypatch.setitem(EAGER, name, (lambda x, *values: change(x, *values) * 1.5, draw))
    x = torch.randn(4, 1, 400, generator=torch.Generator().manual_seed(0))
    with pytest.raises(FlatoutError, match=f"{name}: the two batched versions differ"):
        check_equal(six_transforms(), x, draw_keys(torch.arange(4), seed=1, epoch=0))


def test_every_chain_has_the_same_six_and_changes_every_sample() -> None:
    assert [change.__name__ for change in SCIPY] == list(EAGER)
    x = torch.randn(6, 1, 500, generator=torch.Generator().manual_seed(0))
    alone = run_each(x.numpy(), np.random.default_rng(0))
    for made in (six_transforms()(x), run_all(x), torch.from_numpy(alone)):
        assert made.shape == x.shape
        assert made.dtype == torch.float32
        assert made.isfinite().all()
        assert (made != x).flatten(1).any(1).all()
    assert run_one("time_mask", x, p=0.0).equal(x)


def test_the_band_that_filtfilt_takes_out_is_gone() -> None:
    sample = np.random.default_rng(1).standard_normal((1, 4000))
    filtered = SCIPY[2](sample, np.random.default_rng(5))
    assert filtered.shape == sample.shape
    assert 0.5 < filtered.std() / sample.std() < 1.0


def test_keys_are_compared_with_a_generator(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, Any] = {}

    def fake(calls: dict[str, Any], rounds: int, seconds: float) -> dict[str, float]:
        seen.update({name: call() for name, call in calls.items()})
        return {"keyed": 3.0, "generator": 1.0}

    monkeypatch.setattr(augment_signals, "milliseconds_in_turns", fake)
    x = torch.randn(8, 1, 400)
    found = measure_keys(six_transforms(), x, chain_ms=40.0, rounds=1, seconds=0.0)
    assert found["overhead"] == pytest.approx(0.05)
    assert found["share_of_chain"] == pytest.approx(0.075)
    assert [type(one) for one in seen["keyed"]] == [type(one) for one in seen["generator"]]


def test_a_peer_that_does_something_else_is_refused() -> None:
    case = ImageCase((2, 1, 8, 8), "other", lambda strength, shape: lambda x: x)
    with pytest.raises(FlatoutError, match="other: a chain that should only flip"):
        measure_images(case, 1, 0.001, has_peer=True)
    assert "ratio_to_peer" not in measure_images(case, 1, 0.001, has_peer=False)


def test_our_chain_does_more_than_flip() -> None:
    x = torch.rand(2, 1, 12, 12)
    torch.testing.assert_close(our_chain(NEUTRAL, x.shape)(x), x.flip(-1))
    assert (our_chain(Strength(), x.shape)(x) - x.flip(-1)).abs().mean() > 0.02


@pytest.mark.parametrize("name", IMAGE_CASES)
def test_peers_flip_too(name: str) -> None:
    case = IMAGE_CASES[name]
    if find_spec(case.peer) is None:
        pytest.skip(f"{case.peer} is not installed; 'make bench' installs it")
    shape = (2, case.shape[1], *(8 * (2 + axis) for axis in range(len(case.shape) - 2)))
    x = torch.rand(shape, generator=torch.Generator().manual_seed(0))
    augment_images.check_flip(case.peer, case.chain(NEUTRAL, shape), x)
    made = case.chain(Strength(), shape)(x)
    assert len(made) == 2
    assert made[0].shape == x[0].shape


def test_missing_peers_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    cases = {"image": ImageCase((1, 1, 2, 2), "no_such_peer", only_flipping)}
    monkeypatch.setattr("flatout.bench.augment.IMAGE_CASES", cases)
    with pytest.raises(MissingDependencyError, match="no_such_peer; 'make bench'"):
        bench_augment(AugmentBench(has_peers=True))


def committed_results() -> list[Path]:
    results = sorted((REPOSITORY / "benchmarks" / "results").rglob("augment--*.json"))
    return results or pytest.skip("no result of a quiet machine has been committed yet")


def test_every_committed_result_has_the_form() -> None:
    for path in committed_results():
        document = json.loads(path.read_text())
        assert (document["batch"], document["length"]) == (64, 4000)
        assert {"flatout", "per_op_ms", "eager_reference", "scipy_reference", "peers"} <= set(document)
        assert set(document["peers"]) == {"kornia", "monai"}
