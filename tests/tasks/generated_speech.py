"""Recordings that a test makes: each character is a tone of its own, one after another, on noise."""

from __future__ import annotations

import json
import wave
from pathlib import Path

import numpy as np

RATE = 8000
TONE_S = 0.08
LETTERS = "abcdé "


def spoken(text: str, number: int) -> np.ndarray:
    """A recording of a text in float32; `number` decides noise, pitch and loudness."""
    random = np.random.default_rng(number)
    pitch = random.uniform(0.9, 1.1)
    time_s = np.arange(int(TONE_S * RATE * random.uniform(0.8, 1.2))) / RATE
    tones = [np.sin(2 * np.pi * pitch * (400.0 + 500.0 * LETTERS.index(one)) * time_s) for one in text]
    silence = np.zeros(400)
    sound = np.concatenate([silence, *tones, silence])
    noisy = sound * random.uniform(0.3, 0.8) + random.normal(0, 0.02, len(sound))
    return noisy.astype(np.float32)


def text_of(number: int) -> str:
    """One to five characters."""
    random = np.random.default_rng(number + 1000)
    letters = "".join(random.choice(list(LETTERS[:5]), random.integers(1, 6)))
    return f"{letters[:2]} {letters[2:]}" if len(letters) > 3 else letters


def write_speech(folder: Path, num: int = 24, first: int = 0) -> Path:
    """WAV files and `rows.jsonl` with audio_filepath, text, duration, label (how many words); its path."""
    folder.mkdir(parents=True)
    lines = []
    for number in range(first, first + num):
        text = text_of(number)
        sound = spoken(text, number)
        write_wav(folder / f"{number:03d}.wav", sound)
        words = "one" if len(text.split()) == 1 else "two"
        row = {
            "audio_filepath": f"{number:03d}.wav",
            "text": text,
            "duration": len(sound) / RATE,
            "label": words,
        }
        lines.append(json.dumps(row))
    (folder / "rows.jsonl").write_text("\n".join(lines) + "\n")
    return folder / "rows.jsonl"


def write_wav(path: Path, sound: np.ndarray) -> None:
    with wave.open(str(path), "wb") as file:
        file.setparams((1, 2, RATE, 0, "NONE", ""))
        file.writeframes((np.clip(sound, -1, 1) * 32767).astype("<i2").tobytes())
