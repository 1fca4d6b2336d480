"""Pictures of samples and their views: all there, comparable, of what the settings draw."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from tests.bank.conftest import Signals
from tests.bank.transforms import scaled

from flatout.bank import draw_preview
from flatout.bank import preview as previews
from flatout.bank.panels import FLOOR_DB, HEIGHT, SLICE_HEIGHT, WIDTH, Scale, panel
from flatout.bank.preview import _spread
from flatout.bank.sheet import Sheet
from flatout.errors import ConfigError
from flatout.store import DataPreprocessor


def pixels(image: Image.Image) -> Any:
    return np.asarray(image).astype(int)


def tone(cycles: float, length: int = 4000) -> Any:
    return np.sin(np.arange(length) * 2 * np.pi * cycles / length).astype(np.float32)[None]


def test_a_waveform_is_drawn_to_the_originals_scale() -> None:
    scale = Scale(tone(5))
    full, half = (pixels(panel(tone(5) * factor, scale))[:HEIGHT] for factor in (1.0, 0.5))
    rows = [np.flatnonzero((image[4:-4, 4:-4] == (31, 90, 166)).all(-1).any(1)) for image in (full, half)]
    heights = [int(found[-1] - found[0]) for found in rows]
    assert heights[1] == pytest.approx(heights[0] / 2, abs=4)


def test_short_and_long_signals_are_drawn_with_their_peaks() -> None:
    for length in (20, 4000, 100_000):
        values = np.zeros((1, length), np.float32)
        values[0, length // 2] = 1.0
        image = pixels(panel(values, Scale(values)))[:HEIGHT]
        column = (image[:, WIDTH // 2 - 20 : WIDTH // 2 + 40] == (31, 90, 166)).all(-1)
        assert column.any(axis=1)[: HEIGHT // 4].any(), length


def test_a_spectrogram_has_low_tones_below_high_ones() -> None:
    loudest = []
    for cycles in (200, 1500):
        signal = tone(cycles)
        image = pixels(panel(signal, Scale(signal)))[-HEIGHT:]
        loudest.append(int(image[..., 1].sum(1).argmax()))  # green grows along the colours
    assert loudest[0] > HEIGHT * 0.8
    assert loudest[1] == pytest.approx(HEIGHT * 0.25, abs=HEIGHT * 0.05)


def test_what_is_far_below_the_original_is_dark() -> None:
    signal = tone(200)
    scale = Scale(signal)
    dark = pixels(panel(signal * 10 ** (-2 * FLOOR_DB / 20), scale))[-HEIGHT + 4 : -4, 4:-4]
    assert (dark == (68, 1, 84)).all()


def test_images_and_volumes() -> None:
    image = np.zeros((1, 10, 20), np.float32)
    image[0, :, 10:] = 1.0
    drawn = pixels(panel(image, Scale(image)))
    assert drawn.shape == (SLICE_HEIGHT, 2 * SLICE_HEIGHT, 3)
    assert drawn[100, 100].tolist() == [0, 0, 0]
    assert drawn[100, 600].tolist() == [255, 255, 255]
    colours = np.zeros((3, 8, 8), np.float32)
    colours[0] = 1.0
    assert pixels(panel(colours, Scale(colours)))[50, 50].tolist() == [255, 0, 0]
    volume = np.zeros((1, 4, 8, 8), np.float32)
    volume[0, 2] = 1.0  # only the first of the three slices is bright all over
    assert pixels(panel(volume, Scale(volume)))[50, 50].tolist() == [255, 255, 255]
    with pytest.raises(ConfigError, match="cannot be drawn"):
        panel(np.zeros((1, 2, 3, 4, 5)), Scale(volume))


def test_constant_and_broken_samples_can_be_drawn() -> None:
    for values in (np.full((1, 50), 3.0), np.full((1, 50), np.nan), np.zeros((1, 5, 5))):
        good = np.random.default_rng(0).normal(size=values.shape)
        assert panel(values, Scale(values)).size == panel(good, Scale(good)).size


@pytest.mark.parametrize(
    ("there", "wanted", "expected"), [(10, 3, [0, 4, 9]), (2, 5, [0, 1]), (1, 4, [0]), (5, 1, [0])]
)
def test_samples_are_spread_over_the_store(there: int, wanted: int, expected: list[int]) -> None:
    assert _spread(there, wanted) == expected


def test_a_preview_shows_samples_and_views(folder: Path, tmp_path: Path) -> None:
    draw_preview(folder, tmp_path / "a" / "p.png", transform=scaled, num_samples=2, num_views=2)
    with Image.open(tmp_path / "a" / "p.png") as image:
        assert image.width > 3 * WIDTH // 2
        assert image.height > 2 * HEIGHT  # two rows of two pictures at half the size
    for name, seed in (("b", 0), ("c", 1)):
        draw_preview(folder, tmp_path / f"{name}.png", transform=scaled, num_samples=1, num_views=1, seed=seed)
    draw_preview(folder, tmp_path / "d.png", transform=scaled, num_samples=1, num_views=1)
    assert (tmp_path / "b.png").read_bytes() == (tmp_path / "d.png").read_bytes()
    with Image.open(tmp_path / "b.png") as one, Image.open(tmp_path / "c.png") as other:
        below = [pixels(image)[60:].tolist() for image in (one, other)]  # the title tells the seed
    assert below[0] != below[1]


def test_a_page_needs_nothing_else(folder: Path, tmp_path: Path) -> None:
    config = {"amplitude_scale": {"range": [0.25, 4.0]}}
    draw_preview(folder, tmp_path / "p.html", num_samples=2, num_views=1, split="train", config=config)
    page = (tmp_path / "p.html").read_text()
    assert page.count("<img") == 4
    assert page.count("data:image/png;base64,") == 4
    assert "http" not in page
    assert "GPUAmplitudeScale" in page
    assert "(0.25, 4.0)" in page


def test_names_are_shown_as_they_are() -> None:
    image = Image.new("RGB", (4, 4))
    page = Sheet("<b>", ["<i>"], [("<script>", [image])], ["a < b"]).to_html()
    assert "<script>" not in page
    assert "&lt;script&gt;" in page
    assert "a &lt; b" in page


def test_what_cannot_be_shown(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"\.png or \.html"):
        draw_preview(folder, tmp_path / "p.gif")

    class Images:
        def __len__(self) -> int:
            return 2

        def __getitem__(self, at: int) -> dict[str, Any]:
            return {"image": np.zeros((1, 4, 4), np.uint8) + at}

    images = {"num_workers": 0, "fields": {"image": {"kind": "image"}}}
    DataPreprocessor.from_dataset(Images(), tmp_path / "images", **images).run()
    with pytest.raises(ConfigError, match=r"augmentation\.images names no transform"):
        draw_preview(tmp_path / "images", tmp_path / "p.png")
    draw_preview(tmp_path / "images", tmp_path / "p.png", transform=scaled)
    assert (tmp_path / "p.png").read_bytes().startswith(b"\x89PNG")


def test_bytes_are_shown_as_a_training_sees_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Images:
        def __len__(self) -> int:
            return 1

        def __getitem__(self, at: int) -> dict[str, Any]:
            return {"image": np.arange(64, dtype=np.uint8).reshape(1, 8, 8)}

    images = {"num_workers": 0, "fields": {"image": {"kind": "image", "normalise": "none"}}}
    DataPreprocessor.from_dataset(Images(), tmp_path / "images", **images).run()
    shown: list[Any] = []
    original = previews.panel
    monkeypatch.setattr(previews, "panel", lambda array, scale: shown.append(array) or original(array, scale))
    config = {"images": {"noise": {"p": 1.0, "std": 0.5}}}
    draw_preview(tmp_path / "images", tmp_path / "p.png", config=config, num_views=1)
    assert shown[0].dtype == np.uint8
    assert np.array_equal(shown[1], shown[1].round())  # noise on bytes is bytes
    assert not np.array_equal(shown[0], shown[1])


def test_an_assumed_rate_is_told(tmp_path: Path) -> None:
    given: dict[str, Any] = {"num_samples": 1, "num_views": 1}
    for name, rate, config in (("a", None, None), ("b", 100, None), ("c", 100, {"sample_rate": 50})):
        fields = {"signal": {"kind": "signal", "rate": rate, "source_rate": rate}}
        DataPreprocessor.from_dataset(Signals(2), tmp_path / name, num_workers=0, fields=fields).run()
        draw_preview(tmp_path / name, tmp_path / f"{name}.html", config=config, **given)
    a, b, c = ((tmp_path / f"{name}.html").read_text() for name in "abc")
    assert "at 5000 Hz, assumed" in a
    assert "0.48 s at 100 Hz)" in b
    assert "0.96 s at 50 Hz)" in c
