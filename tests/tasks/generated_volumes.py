"""Volumes that a test makes: bright balls on noise, with a table that says how large each is."""

from __future__ import annotations

from pathlib import Path

import nibabel
import numpy as np

SIZE = (18, 16, 14)


def ball(number: int, size: tuple[int, ...] = SIZE) -> tuple[np.ndarray, float]:
    """A volume and the radius of the ball in it, the same for the same number."""
    random = np.random.default_rng(number)
    radius = random.uniform(2.0, 6.0)
    centre = [axis / 2 + random.uniform(-1, 1) for axis in size]
    places = np.meshgrid(*map(np.arange, size), indexing="ij")
    distance = np.sqrt(sum((place - at) ** 2 for place, at in zip(places, centre, strict=True)))
    return (random.normal(0, 0.3, size) + (distance < radius)).astype(np.float32), radius


def write_balls(folder: Path, num: int = 24, *, sizes_differ: bool = False) -> Path:
    """NIfTI files and `rows.csv` with image_path, radius and kind (large or small); its path."""
    folder.mkdir(parents=True)
    lines = ["image_path,radius,kind"]
    for number in range(num):
        size = (SIZE[0] + number % 3, *SIZE[1:]) if sizes_differ else SIZE
        volume, radius = ball(number, size)
        nibabel.save(nibabel.Nifti1Image(volume, np.eye(4)), folder / f"ball_{number:03d}.nii.gz")
        lines.append(f"ball_{number:03d}.nii.gz,{radius:.3f},{'large' if radius > 4 else 'small'}")
    (folder / "rows.csv").write_text("\n".join(lines) + "\n")
    return folder / "rows.csv"
