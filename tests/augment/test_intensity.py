"""Brightness, contrast and gamma: distributions, meaning, and that units do not count."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.augment.cases import batch_keys
from tests.augment.image_cases import images
from tests.augment.test_distribution import is_uniform

from flatout.augment import (
    GPUBlur,
    GPUBrightness,
    GPUContrast,
    GPUCutout,
    GPUFlip,
    GPUGamma,
    GPUImageCompose,
    GPUImageNoise,
    host,
)
from flatout.errors import AugmentError

NUM = 20_000


def drawn(transform: Any) -> Any:
    return transform.sample(torch.empty(1).expand(NUM, 1, 2, 2), batch_keys(NUM))


def test_parameters_are_uniform() -> None:
    assert is_uniform(drawn(GPUBrightness((-0.5, 0.2))).shift, -0.5, 0.2)
    assert is_uniform(drawn(GPUContrast((0.5, 1.9))).factor, 0.5, 1.9)
    assert is_uniform(drawn(GPUGamma((0.6, 1.6))).gamma, 0.6, 1.6)
    assert is_uniform(drawn(GPUBlur((0.2, 3.0))).sigma, 0.2, 3.0)


@pytest.mark.parametrize(
    "transform",
    [GPUBrightness(p=1.0), GPUContrast(p=1.0), GPUGamma(p=1.0), GPUImageNoise(p=1.0), GPUBlur(p=1.0)],
    ids=lambda transform: type(transform).__name__,
)
def test_units_do_not_count(transform: Any) -> None:
    """Numbers from 0 to 1 and Hounsfield units: what comes out differs by the units only."""
    x = images().double()
    params = transform.sample(x, batch_keys(6))
    torch.testing.assert_close(
        transform.apply(x * 2000 - 1000, params), transform.apply(x, params) * 2000 - 1000, rtol=1e-6, atol=1e-4
    )


def test_brightness_moves_the_mean_and_contrast_the_deviation() -> None:
    x = images()
    brighter = GPUBrightness((0.5, 0.5), p=1.0)(x, batch_keys(6))
    own = x.flatten(1).std(1, correction=0)
    torch.testing.assert_close(
        brighter.flatten(1).mean(1) - x.flatten(1).mean(1), 0.5 * own, rtol=1e-4, atol=1e-5
    )
    sharper = GPUContrast((2.0, 2.0), p=1.0)(x, batch_keys(6)).flatten(1)
    torch.testing.assert_close(sharper.std(1, correction=0), 2.0 * own, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(sharper.mean(1), x.flatten(1).mean(1), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("transform", [GPUBrightness((0.4, 0.5)), GPUContrast((1.5, 1.9))])
@pytest.mark.parametrize("may_overwrite", [False, True])
@pytest.mark.parametrize("num_threads", [1, 3])
def test_compiled_loops_agree_with_torch(
    transform: Any, may_overwrite: bool, num_threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = images((6, 2, 5, 12, 13)) + 3.0
    params = transform.sample(x, batch_keys(6))._replace(active=torch.arange(6) % 2 == 0)
    with monkeypatch.context() as patched:
        patched.setattr(host, "load_kernels", lambda: None)
        wanted = transform.alter(x, params)
    monkeypatch.setattr(torch, "get_num_threads", lambda: num_threads)
    given = x.clone()
    found = transform.alter(given, params, may_overwrite)
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)
    assert found[1::2].equal(x[1::2])
    assert not found[0].allclose(x[0], atol=0.01)
    assert (found.data_ptr() == given.data_ptr()) == may_overwrite
    assert may_overwrite or given.equal(x)


@pytest.mark.parametrize("by_kernel", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_chain_is_its_members_one_after_another(
    by_kernel: bool, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though mean and deviation are measured once only, behind noise and movements again."""
    if not by_kernel:
        monkeypatch.setattr(host, "load_kernels", lambda: None)
    members = [
        GPUContrast((1.5, 1.9), 0.7),
        GPUBrightness((0.4, 0.5), 0.7),
        GPUContrast((0.5, 0.6), 0.7),
        GPUImageNoise(0.4, 0.7),
        GPUBrightness((0.4, 0.5), 0.7),
        GPUFlip((-1,), 0.7),
        GPUContrast((1.5, 1.9), 0.7),
    ]
    chain = GPUImageCompose(members)
    x = images((24, 2, 5, 12, 13)).to(dtype) + 3.0
    params = chain.sample(x, batch_keys(24))
    wanted = x
    for member, own in zip(members, params, strict=True):
        wanted = member.apply(wanted, own)
    found = chain.apply(x, params)
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)
    is_still = ~torch.stack([own.active for own in params]).any(0)
    assert found[is_still].equal(x[is_still])
    assert not found[~is_still].allclose(x[~is_still], atol=0.01)


@pytest.mark.parametrize("by_kernel", [True, False])
def test_samples_that_stay_keep_what_is_no_number(by_kernel: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not by_kernel:
        monkeypatch.setattr(host, "load_kernels", lambda: None)
    x = images()
    x[1, 0, 0, 0], x[3, 0, 0, 0] = float("nan"), float("inf")
    chain = GPUImageCompose([GPUContrast((1.5, 1.9)), GPUBrightness((0.4, 0.5)), GPUImageNoise()])
    params = tuple(own._replace(active=torch.arange(6) % 2 == 0) for own in chain.sample(x, batch_keys(6)))
    found = chain.apply(x, params)
    torch.testing.assert_close(found[1::2], x[1::2], rtol=0.0, atol=0.0, equal_nan=True)
    assert found[::2].isfinite().all()


def test_parameters_of_another_batch_are_refused_by_torch() -> None:
    transform = GPUContrast(p=1.0)
    params = transform.sample(images((2, 1, 4, 4)), batch_keys(2))
    with pytest.raises(RuntimeError, match="must match"):
        transform.alter(images((6, 1, 4, 4)), params)


def test_states_of_another_batch_are_refused_by_torch() -> None:
    x, noise = images((6, 1, 4, 4)), GPUImageNoise(p=1.0)
    params = noise.sample(x, batch_keys(6))
    with pytest.raises(RuntimeError, match="invalid for input"):
        noise.alter(x, params._replace(states=params.states[:3]))


def test_what_torch_makes_by_default_does_not_count() -> None:
    x, chain = images(), GPUImageCompose([GPUContrast(p=1.0), GPUBrightness(p=1.0), GPUImageNoise(p=1.0)])
    wanted = chain(x, batch_keys(6))
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        assert chain(x, batch_keys(6)).equal(wanted)
    finally:
        torch.set_default_dtype(before)


def test_what_a_subclass_does_counts_in_a_chain() -> None:
    class Negative(GPUContrast):
        def alter(self, x: torch.Tensor, params: Any, may_overwrite: bool = False) -> torch.Tensor:
            return -x

    x = images()
    assert GPUImageCompose([Negative(p=1.0)])(x, batch_keys(6)).equal(-x)


@pytest.mark.parametrize("dtype", [torch.float16, torch.uint8])
def test_other_layouts_are_compiled_in_one_graph(dtype: torch.dtype) -> None:
    x = images((2, 3, 6, 6)).mul(50).abs().to(dtype).to(memory_format=torch.channels_last)
    chain = GPUImageCompose([GPUContrast(p=1.0), GPUBrightness(p=1.0), GPUImageNoise(p=1.0)])
    params = chain.sample(x, batch_keys(2))
    compiled = torch.compile(chain.apply, fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(x, params), chain.apply(x, params), rtol=1e-2, atol=1.01)


def test_gamma_keeps_both_ends() -> None:
    x = images()
    y = GPUGamma((2.0, 2.0), p=1.0)(x, batch_keys(6)).flatten(1)
    torch.testing.assert_close(y.amin(1), x.flatten(1).amin(1))
    torch.testing.assert_close(y.amax(1), x.flatten(1).amax(1))
    assert (y.mean(1) < x.flatten(1).mean(1)).all()


def test_blur_keeps_flat_images_and_softens_edges() -> None:
    flat = torch.full((2, 1, 8, 8), 3.0)
    assert GPUBlur(p=1.0)(flat, batch_keys(2)).allclose(flat)
    edge = (torch.arange(20) >= 10).float().expand(2, 1, 6, 20)
    soft = GPUBlur((2.0, 2.0), p=1.0)(edge, batch_keys(2))
    assert (soft[..., 1:] >= soft[..., :-1]).all()
    assert 0.05 < soft[0, 0, 3, 8].item() < 0.5


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: GPUBrightness((1.0, 0.0)), "range: got"),
        (lambda: GPUContrast((0.0, 1.0)), "range: got"),
        (lambda: GPUGamma((-1.0, 1.0)), "range: got"),
        (lambda: GPUBlur((0.0, 1.0)), "sigma: got"),
        (lambda: GPUImageNoise(-0.1), "std: got"),
        (lambda: GPUImageNoise(float("nan")), "std: got"),
        (lambda: GPUCutout(max_fraction=1.1), "max_fraction: got"),
        (lambda: GPUCutout(num_boxes=0), "num_boxes: got"),
    ],
)
def test_impossible_settings_are_refused(make: Any, match: str) -> None:
    with pytest.raises(AugmentError, match=match):
        make()
