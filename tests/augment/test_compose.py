"""A chain is its transforms one after another, each drawn for its own position."""

from __future__ import annotations

import pytest
import torch
from tests.augment.cases import CASES, batch_keys, signals, tensors
from tests.augment.image_cases import images

from flatout.augment import (
    GPUAmplitudeScale,
    GPUCompose,
    GPUCutout,
    GPUImageCompose,
    GPUPolarityInversion,
    GPURandomCrop,
    GPUTimeShift,
)
from flatout.augment.draws import Draws, position_keys
from flatout.errors import AugmentError


def chain() -> GPUCompose:
    return GPUCompose(
        [CASES[name](0.5) for name in ("time_shift", "gaussian_noise", "amplitude_scale", "time_mask")]
    )


def test_a_chain_is_one_after_another() -> None:
    x, keys, wanted = signals(6), batch_keys(6), signals(6)
    for position, transform in enumerate(chain()):
        wanted = transform(wanted, keys.position(position))
    assert chain()(x, keys).equal(wanted)


def test_sample_then_apply_is_forward() -> None:
    x, keys = signals(6), batch_keys(6)
    params = chain().sample(x, keys)
    assert len(params) == 4
    assert chain().apply(x, params).equal(chain()(x, keys))


def test_equal_transforms_at_two_positions_draw_differently() -> None:
    params = GPUCompose([GPUAmplitudeScale(p=0.5), GPUAmplitudeScale(p=0.5)]).sample(
        signals(20), batch_keys(20)
    )
    assert not params[0].factor.equal(params[1].factor)
    assert not params[0].active.equal(params[1].active)


def test_settings_of_one_leave_the_others_alone() -> None:
    x, keys = signals(20), batch_keys(20)
    one = GPUCompose([GPUTimeShift(0.1, p=0.2), GPUAmplitudeScale()]).sample(x, keys)
    other = GPUCompose([GPUTimeShift(0.3, p=0.9), GPUAmplitudeScale()]).sample(x, keys)
    assert all(a.equal(b) for a, b in zip(tensors(one[1]), tensors(other[1]), strict=True))


def test_eval_of_the_chain_and_of_one_member() -> None:
    x, keys = signals(5), batch_keys(5)
    both = GPUCompose([GPUPolarityInversion(p=1.0), GPUAmplitudeScale((2.0, 2.0), p=1.0)])
    assert both(x, keys).equal(x * -2)
    both[0].eval()
    assert both(x, keys).equal(x * 2)
    assert both.eval()(x, keys) is x
    assert both.train()(x, keys).equal(x * -2)


def test_chains_nest() -> None:
    x, keys = signals(5), batch_keys(5)
    nested = GPUCompose([chain(), GPUCompose(), chain()])
    assert len(nested) == 3
    params = nested.sample(x, keys)
    assert nested.apply(x, params).equal(nested(x, keys))
    assert not params[0][0].shift.equal(params[2][0].shift)


def test_an_empty_chain_is_the_identity() -> None:
    x = signals(3)
    assert GPUCompose([])(x) is x
    assert GPUCompose().sample(x) == ()


def test_without_keys_the_generator_is_used_once() -> None:
    x = signals(3)
    generators = [torch.Generator().manual_seed(4) for _ in range(2)]
    first = chain()(x, generator=generators[0])
    assert first.equal(chain()(x, generator=generators[1]))
    alone = torch.Generator().manual_seed(4)
    torch.randint(0, 1 << 62, (3,), generator=alone)
    assert torch.randint(100, (9,), generator=alone).equal(torch.randint(100, (9,), generator=generators[0]))


def test_wrong_shapes_are_refused() -> None:
    with pytest.raises(AugmentError, match=r"GPUCompose: got \(4, 9\).*wanted \(B, C, T\)"):
        chain()(torch.zeros(4, 9))


def test_draws_made_together_are_those_made_alone() -> None:
    """More than the chain makes for all at once, fewer, and none; an empty batch has none of any."""
    for num_samples in (5, 0):
        keys = batch_keys(num_samples)
        together = position_keys(keys, [2, 40, 1])
        assert len(together) == 3
        for at, own in enumerate(together):
            assert own.states.equal(keys.position(at).states)
            for num in (1, 2, 16, 17, 40):
                found, wanted = Draws(own, num), Draws(keys.position(at), num)
                assert found.uniform(slice(0, num)).equal(wanted.uniform(slice(0, num)))
    assert position_keys(batch_keys(5), []) == []


def test_parameters_are_for_the_shape_that_a_crop_leaves() -> None:
    x, keys = images((40, 1, 24, 24)), batch_keys(40)
    plain = GPUCompose([GPURandomCrop((6, 6)), GPUCutout(max_fraction=1.0, p=1.0, fill=9.0)])
    for chain in (plain, GPUCompose([GPUCompose([plain[0]]), plain[1]])):
        params = chain.sample(x, keys)
        assert chain.apply(x, params).equal(chain(x, keys))
        assert ((chain(x, keys) == 9.0).flatten(1).any(1)).all()  # every box lies in the window


def test_a_member_in_eval_takes_no_part_in_steps_either() -> None:
    x, keys = signals(5), batch_keys(5)
    both = GPUCompose([GPUPolarityInversion(p=1.0), GPUAmplitudeScale((2.0, 2.0), p=1.0)])
    both[0].eval()
    params = both.sample(x, keys)
    assert both.apply(x, params).equal(both(x, keys))
    assert both.eval().apply(x, params).equal(x * -2)  # parameters that have been drawn are applied


def test_what_a_crop_in_eval_leaves_is_all_of_it() -> None:
    x, keys = images((60, 1, 24, 24)), batch_keys(60)
    for make in (GPUCompose, GPUImageCompose):
        chain = make([GPURandomCrop((6, 6)), GPUCutout(p=1.0)])
        chain[0].eval()
        start = chain.sample(x, keys)[1].start
        assert start.max() > 6
