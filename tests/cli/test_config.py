"""`flatout config` and `flatout presets`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from flatout.cli.main import main
from flatout.config import config_schema, list_presets, load_config
from flatout.config.text import parse_yaml


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)


def test_the_printed_config_is_canonical_and_loads_again(capsys: pytest.CaptureFixture[str]) -> None:
    Path("c.json").write_text(
        '{"ims_per_gpu": "16-32", "use_fp16": true, // both\n "hardware": {"num_workers": 1}}'
    )

    assert main(["config", "--config", "c.json", "--set", "cache_config.cache_size=7"]) == 0

    captured = capsys.readouterr()
    values, _ = parse_yaml(captured.out, "printed")
    assert (values["batch_size"], values["precision"], values["num_workers"]) == (16, "16-mixed", 1)
    assert "ims_per_gpu" not in values
    assert captured.err == "note: ims_per_gpu: 16-32 is a range; took 16\n"
    Path("again.yaml").write_text(captured.out)
    assert load_config("again.yaml") == load_config("c.json", sets=["cache_config.cache_size=7"])


def test_json_output_is_one_document_and_loads_again(capsys: pytest.CaptureFixture[str]) -> None:
    Path("c.yaml").write_text("fields: {ct: {kind: volume, window: [-.inf, 300]}}")

    assert main(["config", "-c", "c.yaml", "--json"]) == 0

    Path("again.json").write_text(capsys.readouterr().out)
    assert load_config("again.json") == load_config("c.yaml")


def test_task_preset_and_environment_apply(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLATOUT_EPOCHS", "3")

    assert main(["config", "--task", "sequence_vae", "--preset", "debug", "--json"]) == 0

    values = json.loads(capsys.readouterr().out)
    assert (values["batch_size"], values["max_sequence_length"], values["epochs"]) == (1, 100, 3)
    assert values["monitor"]["update_frequency"] == 200


def test_schema(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "--schema"]) == 0

    assert json.loads(capsys.readouterr().out) == config_schema()


def test_a_wrong_config_exits_with_2_and_names_every_mistake(capsys: pytest.CaptureFixture[str]) -> None:
    Path("c.yaml").write_text("batchsize: 4\nepochs: 0\n")

    assert main(["config", "--config", "c.yaml"]) == 2

    err = capsys.readouterr().err
    assert "c.yaml, line 1: unknown key 'batchsize'; did you mean 'batch_size'?" in err
    assert "c.yaml, line 2: 'epochs' is 0" in err


def test_a_missing_file_exits_with_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "--config", "none.yaml"]) == 2
    assert "none.yaml: there is no such file" in capsys.readouterr().err


def test_presets_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["presets"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == list(list_presets())

    assert main(["presets", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == list_presets()


def test_one_preset_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["presets", "windows"]) == 0
    values, _ = parse_yaml(capsys.readouterr().out, "printed")
    assert values["common"]["num_workers"] == 0

    assert main(["presets", "windows", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == values
