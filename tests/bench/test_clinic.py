"""The clinic: its scripts run ill and cured, its score counts what it should."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest

from flatout.bench.clinic import is_foretold, score
from flatout.bench.clinic_patients import CLINIC, PATIENTS, choose_patients
from flatout.bench.clinic_runs import measure_cure, run_script
from flatout.doctor.verdict import DISEASES
from flatout.errors import ConfigError, FlatoutError


def row(disease: str, **changes: Any) -> dict[str, Any]:
    given = {"disease": disease, "is_named": True, "is_foretold": True, "overhead": 0.01, "remedies": []}
    return {**given, **changes}


def test_the_score_counts() -> None:
    rows = [
        row("slow_decode"),
        row("logging", is_named=False, overhead=None),
        row("padding", is_foretold=False, overhead=0.03),
        row("healthy"),
        row("healthy", remedies=[{"name": "workers"}]),
    ]
    assert score(rows) == {
        "scripts": 3,
        "named_first": 2,
        "gain_within_25pct": 2,
        "healthy": 2,
        "healthy_clean": 1,
        "overhead": 0.01,
    }


@pytest.mark.parametrize(
    ("predicted", "measured", "expected"),
    [
        (2.0, 2.0, True),
        (2.5, 2.0, True),
        (2.51, 2.0, False),
        (1.49, 2.0, False),
        (None, 2.0, False),
        (2.0, None, False),
    ],
)
def test_a_prediction_is_right_to_a_quarter(
    predicted: float | None, measured: float | None, expected: bool
) -> None:
    assert is_foretold(predicted, measured) is expected


def test_every_script_is_there_with_a_disease_that_the_verdict_knows() -> None:
    chosen = choose_patients(())
    assert list(chosen) == list(PATIENTS)
    assert all(path.is_file() for path in chosen.values())
    assert set(PATIENTS.values()) <= set(DISEASES)
    shared = {"ward"}
    assert {path.stem for path in CLINIC.glob("*.py")} == set(PATIENTS) | shared


def test_scripts_are_ordinary_ones() -> None:
    for path in CLINIC.glob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        imported = {
            alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names
        }
        imported |= {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
        assert not any(name.startswith("flatout") for name in imported), path.name


def test_unknown_scripts_and_a_missing_folder_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no script 'slow_decoder'"):
        choose_patients(["slow_decoder"])
    with pytest.raises(FlatoutError, match="checkout"):
        choose_patients([], tmp_path / "nowhere")


def test_a_script_says_what_a_step_takes() -> None:
    assert run_script(CLINIC / "log_each_step.py", seed=5, num_steps=10) > 0


def test_a_script_that_fails_is_reported_with_its_error(tmp_path: Path) -> None:
    script = tmp_path / "broken.py"
    script.write_text("raise RuntimeError('no such luck')\n")
    with pytest.raises(FlatoutError, match="no such luck"):
        run_script(script, seed=1)


def test_ill_and_cured_take_turns(tmp_path: Path) -> None:
    script = tmp_path / "made.py"
    log = tmp_path / "log"
    script.write_text(
        "import sys\n"
        f"open({str(log)!r}, 'a').write('c' if '--cured' in sys.argv else 'i')\n"
        "print('mean step', 0.01 if '--cured' in sys.argv else 0.03, 's')\n"
    )
    cured = measure_cure(script, seed=1, rounds=3)
    assert cured.gain == pytest.approx(3.0)
    assert log.read_text() == "icciic"


@pytest.mark.slow
@pytest.mark.parametrize("name", PATIENTS)
def test_every_script_runs(name: str) -> None:
    assert run_script(CLINIC / f"{name}.py", seed=3, num_steps=12) > 0
