"""The ready-made chains hold what the config says, with the config's defaults and nobody else's."""

from __future__ import annotations

import copy
import inspect
import pickle

import pytest
import torch
from tests.augment.cases import backgrounds, batch_keys, signals

from flatout.augment import get_gpu_downstream_transforms, get_gpu_pretrain_transforms
from flatout.augment.filters import DEFAULT_SAMPLE_RATE
from flatout.augment.ready import CHAIN
from flatout.config import Config, load_config
from flatout.config.augmentation import AugmentationSection
from flatout.errors import AugmentError, ConfigError

SIX = [
    "GPUTimeStretch",
    "GPUTimeShift",
    "GPUFrequencyMask",
    "GPUAmplitudeScale",
    "GPUGaussianNoise",
    "GPUTimeMask",
]
FIELDS = AugmentationSection.model_fields
OPTIONAL = [name for name in CHAIN if FIELDS[name].default is None and name != "background_mix"]


def names(chain: object) -> list[str]:
    return [type(transform).__name__ for transform in chain]  # type: ignore[attr-defined]


def test_the_section_and_the_chain_name_the_same_transforms() -> None:
    assert set(CHAIN) | {"sample_rate", "images"} == set(AugmentationSection.model_fields)


@pytest.mark.parametrize("name", CHAIN)
def test_constructors_have_the_defaults_of_the_config(name: str) -> None:
    found = inspect.signature(CHAIN[name]).parameters
    section = load_config({"augmentation": {name: {}}}, environ={}).augmentation
    for key, value in getattr(section, name).model_dump().items():
        assert found[key].default == value, key
    assert set(found) - set(getattr(section, name).model_dump()) <= {"sample_rate", "backgrounds"}


def test_pretraining_has_six_by_default() -> None:
    chain = get_gpu_pretrain_transforms()
    assert names(chain) == SIX
    assert chain.training
    assert {transform.p for transform in chain} == {0.5}


def test_downstream_keeps_what_labels_stand_for() -> None:
    assert names(get_gpu_downstream_transforms()) == ["GPUTimeShift", "GPUAmplitudeScale", "GPUGaussianNoise"]
    x = signals(3)
    chain = get_gpu_downstream_transforms(training=False)
    assert len(chain) == 0
    assert chain(x) is x


@pytest.mark.parametrize("name", OPTIONAL)
def test_a_section_brings_its_transform_in(name: str) -> None:
    config = {name: {"p": 0.25}}
    for chain in (get_gpu_pretrain_transforms(config), get_gpu_downstream_transforms(config)):
        assert [t.p for t in chain if type(t) is CHAIN[name]] == [0.25]
        assert names(chain) == sorted(names(chain), key=[kind.__name__ for kind in CHAIN.values()].index)


def test_settings_reach_the_transforms() -> None:
    mapping = {"time_shift": {"p": 1.0, "max_fraction": 0.3}, "time_mask": {"num_masks": 4}}
    whole = load_config({"augmentation": mapping}, environ={})
    chains = [get_gpu_pretrain_transforms(config) for config in (mapping, whole, whole.augmentation)]
    for chain in chains:
        shift, mask = chain[1], chain[5]
        assert (shift.max_fraction, shift.p, mask.num_masks, mask.p) == (0.3, 1.0, 4, 0.5)
    x, keys = signals(4), batch_keys(4)
    assert chains[0](x, keys).equal(chains[1](x, keys))
    assert names(get_gpu_pretrain_transforms(Config())) == SIX


def test_the_rate_of_the_config_goes_first() -> None:
    config = {"high_pass": {}}
    assert get_gpu_pretrain_transforms(config)[2].sample_rate == DEFAULT_SAMPLE_RATE == 5000
    assert get_gpu_pretrain_transforms(config, 2500)[2].sample_rate == 2500
    assert get_gpu_pretrain_transforms({**config, "sample_rate": 4000}, 2500)[2].sample_rate == 4000
    assert get_gpu_downstream_transforms({**config, "sample_rate": 4000}, 2500)[1].sample_rate == 4000


def test_backgrounds_are_used_when_they_are_given() -> None:
    assert "GPUBackgroundMix" in names(get_gpu_pretrain_transforms(backgrounds=backgrounds()))
    chain = get_gpu_downstream_transforms({"background_mix": {"snr_db": [1, 2]}}, backgrounds=backgrounds())
    assert [t.snr_db for t in chain if type(t).__name__ == "GPUBackgroundMix"] == [(1.0, 2.0)]
    with pytest.raises(AugmentError, match="there are no backgrounds"):
        get_gpu_pretrain_transforms({"background_mix": {}})


def test_wrong_settings_are_named() -> None:
    with pytest.raises(ConfigError, match="time_shfit"):
        get_gpu_pretrain_transforms({"time_shfit": {"p": 1.0}})
    with pytest.raises(ConfigError, match=r"time_shift\.p"):
        get_gpu_pretrain_transforms({"time_shift": {"p": 2.0}})
    with pytest.raises(AugmentError, match="range: got"):
        get_gpu_pretrain_transforms({"time_stretch": {"range": [1.2, 0.9]}})
    with pytest.raises(AugmentError, match="half of the sample rate, 500"):
        get_gpu_pretrain_transforms({"low_pass": {}}, sample_rate=1000)


def test_the_whole_chain_changes_a_batch_and_repeats() -> None:
    config = {name: {} for name in OPTIONAL}
    chain = get_gpu_pretrain_transforms(config, backgrounds=backgrounds())
    assert len(chain) == len(CHAIN)
    x, keys = signals(8, 1, 4000), batch_keys(8)
    y = chain(x, keys)
    assert y.shape == x.shape
    assert y.isfinite().all()
    assert (y != x).flatten(1).any(1).all()
    assert y.equal(chain(x, keys))
    assert not y.equal(chain(x, batch_keys(8, epoch=1)))
    assert torch.equal(x, signals(8, 1, 4000))
    for again in (copy.deepcopy(chain), pickle.loads(pickle.dumps(chain))):
        assert y.equal(again(x, keys))
