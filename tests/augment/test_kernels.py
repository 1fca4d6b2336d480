"""Compiled loops and torch operations do the same: bit for bit but for noise and spectra."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.augment.cases import CASES, batch_keys, signals, tensors
from torch.autograd import forward_ad

from flatout.augment import (
    GPUCompose,
    GPUGaussianNoise,
    GPUTimeShift,
    GPUTimeStretch,
    bands,
    draw_keys,
    get_gpu_pretrain_transforms,
    host,
)
from flatout.augment.draws import normals, position_keys
from flatout.augment.geometry import ShiftParams, StretchParams
from flatout.augment.host import host_kernels
from flatout.augment.keys import FIRST_DRAW, mix, sequence
from flatout.augment.looped import LoopedTransform
from flatout.augment.masks import TimeMaskParams

kernels = pytest.importorskip("flatout.augment.kernels", reason="Numba is not installed")

LOOPED = [name for name, make in CASES.items() if isinstance(make(1.0), LoopedTransform)]
EXACT = {"time_shift", "time_stretch", "time_mask", "amplitude_scale"}


def without_kernels(work: Callable[[], Any]) -> Any:
    """What torch operations alone give."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(host, "load_kernels", lambda: None)
        assert host_kernels(torch.zeros(1)) is None
        return work()


def test_the_six_of_every_pretraining_have_loops() -> None:
    assert {type(CASES[name](1.0)) for name in LOOPED} == {type(each) for each in get_gpu_pretrain_transforms()}


@pytest.mark.parametrize("p", [1.0, 0.5])
@pytest.mark.parametrize(
    "shape", [(9, 2, 400), (5, 1, 97), (1, 3, 64), (6, 1, 2), (4, 2, 1), (3, 2, 1001)], ids=str
)
@pytest.mark.parametrize("name", LOOPED)
def test_loops_and_torch_agree(name: str, shape: tuple[int, int, int], p: float) -> None:
    x, keys, transform = signals(*shape), batch_keys(shape[0]), CASES[name](p)
    params = transform.sample(x, keys)
    found, wanted = transform.apply(x, params), without_kernels(lambda: transform.apply(x, params))
    if name in EXACT:
        assert found.equal(wanted)
    torch.testing.assert_close(found, wanted, rtol=2e-6, atol=2e-6)
    inactive = ~params.active
    assert found[inactive].equal(x[inactive])


@settings(max_examples=40)
@given(st.integers(1, 300), st.floats(0.05, 20.0), st.integers(-1000, 1000))
def test_any_length_factor_and_shift(length: int, factor: float, shift: int) -> None:
    x, active = signals(2, 1, length), torch.tensor([True, True])
    stretched = StretchParams(active, torch.tensor([factor, 1.0]))
    rolled = ShiftParams(active, torch.tensor([shift, 0]))
    for transform, params in ((GPUTimeStretch(p=1.0), stretched), (GPUTimeShift(p=1.0), rolled)):
        found = transform.apply(x, params)
        assert found.equal(without_kernels(lambda t=transform, own=params: t.apply(x, own)))
        assert found[1].equal(x[1])


@settings(max_examples=40)
@given(st.lists(st.tuples(st.integers(-50, 250), st.integers(0, 300)), min_size=1, max_size=3))
def test_masks_that_do_not_fit_stay_within_the_batch(masks: list[tuple[int, int]]) -> None:
    x = signals(3, 2, 200)
    start, width = (torch.tensor([list(each)] * 3) for each in zip(*masks, strict=True))
    params = TimeMaskParams(torch.tensor([False, True, False]), start, width)
    mask = CASES["time_mask"](1.0)
    assert mask.apply(x, params).equal(without_kernels(lambda: mask.apply(x, params)))


@given(st.integers(-(2**63), 2**63 - 1), st.integers(1, 40))
def test_numbers_of_a_state_are_bit_equal(state: int, num: int) -> None:
    states = torch.tensor([state, 0, -1])
    assert mix(states).equal(without_kernels(lambda: mix(states)))
    keys = draw_keys(states, seed=state % 1000, epoch=num)
    assert keys.states.equal(without_kernels(lambda: draw_keys(states, seed=state % 1000, epoch=num)).states)
    wanted = without_kernels(lambda: position_keys(keys, [num, 3]))
    for own, other in zip(position_keys(keys, [num, 3]), wanted, strict=True):
        assert all(one.equal(another) for one, another in zip(own, other, strict=True))
    for num_bits in (64, 31, 1):
        found = sequence(states, FIRST_DRAW, num, num_bits)
        assert found.equal(without_kernels(lambda bits=num_bits: sequence(states, FIRST_DRAW, num, bits)))


def test_normals_agree_to_the_last_digits() -> None:
    states = batch_keys(300).states
    found, wanted = normals(states, 2001), without_kernels(lambda: normals(states, 2001))
    np.testing.assert_allclose(
        found.numpy(), wanted.numpy(), rtol=3e-6, atol=4e-6
    )  # torch rounds the angle, up to 6.28
    assert found.abs().max() > 4.5


@pytest.mark.parametrize("count", [1, 2, 3, 2**23 - 1, 2**23, 2**24 - 1, 2**24])
def test_the_logarithm_at_its_ends(count: int) -> None:
    found = kernels._log_share(np.int32(count))
    assert found == pytest.approx(np.log(count / 2**24), rel=2e-7, abs=1e-12)


def test_chains_agree() -> None:
    x, keys = signals(20), batch_keys(20)
    chain = GPUCompose([make(0.5) for make in CASES.values()])
    found, wanted = chain.sample(x, keys), without_kernels(lambda: chain.sample(x, keys))
    assert all(one.equal(other) for one, other in zip(tensors(found), tensors(wanted), strict=True))
    torch.testing.assert_close(chain(x, keys), without_kernels(lambda: chain(x, keys)), rtol=1e-4, atol=1e-5)


def test_noise_of_a_sample_is_the_same_in_any_batch_bit_for_bit() -> None:
    x, noise = signals(50), GPUGaussianNoise(p=1.0)
    whole = noise(x, batch_keys(50))
    hashes = torch.arange(50) * 1_000_003
    for at in (0, 17, 49):
        alone = noise(x[at : at + 1], draw_keys(hashes[at : at + 1], seed=7, epoch=0))
        assert alone[0].equal(whole[at])


@pytest.mark.parametrize("name", LOOPED)
def test_parameters_of_another_batch_are_refused_not_read_beyond(name: str) -> None:
    transform = CASES[name](1.0)
    params = transform.sample(signals(3), batch_keys(3))
    with pytest.raises(RuntimeError):
        transform.apply(signals(5), params)


@pytest.mark.parametrize("factor", [-1.0, float("nan"), -1e-30])
def test_impossible_factors_are_not_read_beyond(factor: float) -> None:
    params = StretchParams(torch.tensor([True, True]), torch.tensor([1.0, factor]))
    with pytest.raises((RuntimeError, IndexError)):
        GPUTimeStretch(p=1.0).apply(signals(2), params)


def test_what_kernels_are_not_given() -> None:
    x = torch.zeros(3)
    assert host_kernels(x) is kernels
    assert host_kernels(x, x.requires_grad_()) is None
    with torch.no_grad():
        assert host_kernels(x) is kernels
    assert host_kernels(torch.zeros(3, device="meta")) is None
    assert host_kernels(torch.nn.Parameter(x.detach())) is None
    assert host_kernels(torch.zeros(3).to_sparse()) is None
    with forward_ad.dual_level():
        assert host_kernels(torch.zeros(3)) is None


def test_while_tracing_kernels_are_not_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch._C, "_is_tracing", lambda: True)
    assert host_kernels(torch.zeros(3)) is None


@pytest.mark.parametrize("length", [49, 50])
@pytest.mark.parametrize("num_samples", [1, 7, 24])
def test_blocks_and_threads_do_not_count(
    num_samples: int, length: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, keys, mask = signals(num_samples, 2, length), batch_keys(num_samples), CASES["frequency_mask"](0.6)
    wanted = mask(x, keys)
    monkeypatch.setattr(bands, "_PART_VALUES", 1)  # a part for each eight rows
    monkeypatch.setattr(bands, "_BLOCK_VALUES", 300)  # three samples a block where it is SciPy's
    assert mask(x, keys).equal(wanted)
    torch.set_num_threads(3)  # one again by the fixture's rule
    try:
        assert mask(x, keys).equal(wanted)
    finally:
        torch.set_num_threads(1)


@pytest.mark.parametrize("name", LOOPED)
def test_what_torch_makes_by_default_does_not_count(name: str) -> None:
    """Neither the default device nor the default dtype: both are set for models, for all threads."""
    x, keys, transform = signals(4), batch_keys(4), CASES[name](0.7)
    wanted = transform(x, keys)
    with torch.device("meta"):
        assert transform(x, keys).equal(wanted)
        assert GPUCompose([transform])(x, keys).device == x.device
    torch.set_default_dtype(torch.float64)
    try:
        assert transform(x, keys).equal(wanted)
        assert normals(keys.states, 5).dtype == torch.float32
    finally:
        torch.set_default_dtype(torch.float32)


def test_arrays_of_another_device_are_refused() -> None:
    """A copy would be filled, and the tensor stay as it was."""
    with pytest.raises((TypeError, NotImplementedError)):
        host.array(torch.zeros(3, device="meta"))


def test_under_vmap_torch_does_it() -> None:
    x, stretch = signals(4), GPUTimeStretch(p=1.0)
    params = stretch.sample(x, batch_keys(4))
    together = torch.stack([x, 2 * x])
    found = torch.func.vmap(lambda one: stretch.change(one, params))(together)
    torch.testing.assert_close(found, torch.stack([stretch.apply(one, params) for one in together]))


def test_views_of_other_numbers_are_read_rightly() -> None:
    """The imaginary part of a conjugate is a view whose sign stands in a flag."""
    x = torch.complex(signals(3), signals(3, seed=1)).conj().imag
    assert x.is_neg()
    for name in LOOPED:
        transform = CASES[name](1.0)
        params = transform.sample(x, batch_keys(3))
        torch.testing.assert_close(transform.apply(x, params), transform.apply(x.clone(), params))


@pytest.mark.parametrize("first", ["sys.modules['numba'] = None", "os.environ['NUMBA_DISABLE_JIT'] = '1'"])
def test_without_numba_everything_works(first: str) -> None:
    """In a process of its own, where the import fails or nothing would be compiled."""
    script = (
        f"import os, sys; {first}\n"
        "import torch\n"
        "from flatout.augment import get_gpu_pretrain_transforms\n"
        "from flatout.augment.host import load_kernels\n"
        "y = get_gpu_pretrain_transforms()(torch.randn(4, 1, 100))\n"
        "assert load_kernels() is None and y.isfinite().all()\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=120)


def test_nowhere_to_keep_machine_code(monkeypatch: pytest.MonkeyPatch) -> None:
    import numba

    seen = []

    def refuse(cache: bool = False, **options: Any) -> Any:
        seen.append(cache)
        if cache:
            raise RuntimeError("cannot cache function: no locator available")
        return lambda function: function

    monkeypatch.setattr(numba, "njit", refuse)
    assert kernels.compiled(len) is len
    assert seen == [True, False]
