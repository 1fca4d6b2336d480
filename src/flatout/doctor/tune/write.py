"""The tuned config as a file, with its proof beside it: the user's own keys, and those that were changed."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from flatout.config import Config, load_config, to_yaml
from flatout.config.dialect import translate
from flatout.config.findings import Findings
from flatout.config.layer import Layer, leaves, lookup, put
from flatout.config.load import Source
from flatout.config.overrides import sets_layer
from flatout.config.paths import absolute_paths, resolve_paths
from flatout.config.text import read_file
from flatout.config.written import said_values
from flatout.doctor.tune.run import Tuned
from flatout.errors import ConfigError

PROOF_SUFFIX = ".proof.json"


def write_tuned(tuned: Tuned, source: Source, path: Path, sets: Sequence[str] = ()) -> tuple[Path, Path]:
    """Write the config and the proof; their paths out.

    Where nothing is better the config has the settings as they were: an earlier one would look like this one's.

    Args:
        source, sets: what the tuned config came from.
        path: of the config, `.yaml` or `.yml`.

    Raises:
        ConfigError: it cannot be written there.
    """
    check_output(path, source)
    proof = path.with_name(path.stem + PROOF_SUFFIX)
    values = tuned_values(tuned, source, sets)
    date = datetime.now(UTC).date().isoformat()
    found = "Tuned by 'flatout tune'" if tuned.keys else "'flatout tune' found nothing better"
    _write(proof, json.dumps(_plain(tuned.to_json()), indent=2, ensure_ascii=False, allow_nan=False) + "\n")
    _write(path, f"# {found} on {date}; {proof.name} has every trial.\n{to_yaml(values)}")
    return path, proof


def check_output(path: Path, source: Source) -> None:
    """Refuse a place that cannot hold the config, before anything is measured.

    Raises:
        ConfigError: it is no YAML file, lies in no folder, or is the config itself.
    """
    if path.suffix not in (".yaml", ".yml"):
        raise ConfigError(f"{path}: the tuned config is YAML; wanted a name that ends in .yaml")
    if not path.absolute().parent.is_dir():
        raise ConfigError(f"{path}: there is no folder {path.absolute().parent}")
    if isinstance(source, str | Path) and path.exists() and path.samefile(source):
        raise ConfigError(f"{path} is the config that is tuned; write the tuned one beside it (-o tuned.yaml)")


def tuned_values(tuned: Tuned, source: Source, sets: Sequence[str] = ()) -> dict[str, Any]:
    """The user's own settings, by canonical names and with whole paths, and what was changed."""
    findings = Findings()
    folder = Path(source).absolute().parent if isinstance(source, str | Path) else None
    layer = resolve_paths(translate(_layer(source), findings), folder, os.environ, findings)
    findings.raise_problems()
    values = dict(layer.values)
    for path, value in leaves(translate(sets_layer(sets), findings).values):
        put(values, path, value)
    values = absolute_paths(values)
    for name, value in tuned.keys.items():
        put(values, tuple(name.split(".")), value)
    _check(values, tuned)
    return values


def _layer(source: Source) -> Layer:
    if isinstance(source, Config):
        return Layer("config", said_values(source))
    return Layer("config", dict(source)) if isinstance(source, Mapping) else read_file(Path(source))


def _check(values: dict[str, Any], tuned: Tuned) -> None:
    """What is written must come to what was measured."""
    read = load_config(values).model_dump(mode="json")
    for name, value in tuned.keys.items():
        found = lookup(read, tuple(name.split(".")))
        assert found == value, f"{name}: {value} was found, {found} would be read"


def _write(path: Path, text: str) -> None:
    temporary = path.with_name(path.name + ".part")
    try:
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(path)
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror or error}") from error


def _plain(value: Any) -> Any:
    """Infinities, which JSON does not have, as null."""
    if isinstance(value, float):
        return value if abs(value) != float("inf") and value == value else None
    if isinstance(value, Mapping):
        return {str(name): _plain(inner) for name, inner in value.items()}
    return [_plain(inner) for inner in value] if isinstance(value, list | tuple) else value
