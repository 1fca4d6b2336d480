"""The shell of the command line: help, exit codes, errors, option names, lazy commands."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import pytest
import typer

import flatout
from flatout.cli.commands import COMMANDS, Command
from flatout.cli.interruption import Interrupted
from flatout.cli.main import app, exit_code, main, option_name
from flatout.cli.output import emit_json
from flatout.errors import (
    ConfigError,
    ManifestMissingError,
    RecordMissingError,
    StoreCorruptError,
    StoreMissingError,
)


def probe(
    path: Annotated[str, typer.Argument()] = "none",
    num_workers: Annotated[int, typer.Option()] = 0,
    base_path: Annotated[str | None, typer.Option()] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run")] = False,
    as_json: Annotated[bool, typer.Option("--json")] = False,
) -> Any:
    """Fail or print, as its argument says."""
    failures: dict[str, BaseException] = {
        "config": ConfigError("batch_size [4] is wrong"),
        "missing": StoreMissingError("no store at x"),
        "corrupt": StoreCorruptError("bad shard"),
        "worker": StoreCorruptError(
            "Caught StoreCorruptError in DataLoader worker process 0.\n"
            "Original Traceback (most recent call last):\n  File 'a.py', line 3\nKeyError: 'b'\n\n"
            "flatout.errors.StoreCorruptError: bad shard\nin two lines"
        ),
        "interrupt": KeyboardInterrupt(),
        "exit": typer.Exit(1),
        "bug": RuntimeError("a bug"),
        "rights": PermissionError(13, "Permission denied", "/data/x"),
    }
    if path in failures:
        raise failures[path]
    if path == "stopped":
        raise Interrupted("what is done is kept")
    print(path, num_workers, base_path, dry_run)
    if path == "document":
        emit_json({"a": 1})
    return {"true": True, "three": 3}.get(path)


@pytest.fixture
def probed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make `flatout probe-it` run the function above, in an app that knows it."""
    monkeypatch.setitem(COMMANDS, "probe-it", Command(f"{__name__}:probe", "Probe."))
    monkeypatch.setitem(sys.modules, __name__, sys.modules[probe.__module__])
    monkeypatch.setattr(app, "registered_commands", [*app.registered_commands])
    app.command("probe-it")(lambda: None)


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = main(arguments)
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "--version") == (0, f"flatout {flatout.__version__}\n", "")


def test_help_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "--help")

    assert code == 0
    assert all(name in out and command.help.split()[0] in out for name, command in COMMANDS.items())


def test_no_arguments_is_wrong_usage_and_shows_help(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys)

    assert code == 2
    assert "Usage: flatout" in out


@pytest.mark.usefixtures("probed")
@pytest.mark.parametrize(
    ("argument", "code", "message"),
    [
        ("config", 2, "error: batch_size [4] is wrong\n"),
        ("missing", 1, "error: no store at x\n"),
        ("corrupt", 1, "error: bad shard\n"),
        ("worker", 1, "error: bad shard\nin two lines\n"),
        (
            "rights",
            1,
            "error: /data/x: Permission denied; change its permissions, or run as a user who has them\n",
        ),
        ("interrupt", 130, "error: interrupted\n"),
        ("stopped", 130, "error: interrupted: what is done is kept\n"),
        ("exit", 1, ""),
        ("three", 3, ""),
        ("true", 0, ""),
        ("none", 0, ""),
    ],
)
def test_every_outcome_has_its_exit_code(
    capsys: pytest.CaptureFixture[str], argument: str, code: int, message: str | None
) -> None:
    found, _, err = run(capsys, "probe-it", argument)

    assert found == code
    assert message is None or err == message


@pytest.mark.usefixtures("probed")
def test_with_json_what_others_print_goes_to_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "probe-it", "document", "--json")

    assert (code, json.loads(out)) == (0, {"a": 1})
    assert err == "document 0 None False\n"


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_flags_do_not_look_as_if_they_took_a_value(capsys: pytest.CaptureFixture[str], name: str) -> None:
    code, out, _ = run(capsys, name, "--help")

    assert code == 0
    assert "--help" in out
    assert "<bool>" not in out


@pytest.mark.usefixtures("probed")
def test_a_bug_keeps_its_traceback() -> None:
    with pytest.raises(RuntimeError, match="a bug"):
        main(["probe-it", "bug"])


@pytest.mark.usefixtures("probed")
@pytest.mark.parametrize(
    ("arguments", "code", "kind"),
    [
        (["probe-it", "config", "--json"], 2, "ConfigError"),
        (["probe-it", "corrupt", "--json"], 1, "StoreCorruptError"),
        (["probe-it", "rights", "--json"], 1, "PermissionError"),
        (["probe-it", "interrupt", "--json"], 130, "Interrupted"),
        (["probe-it", "stopped", "--json"], 130, "Interrupted"),
        (["probe-it", "--json", "--num-workers", "many"], 2, "BadParameter"),
        (["probe-it", "--json", "--nope"], 2, "NoSuchOption"),
    ],
)
def test_with_json_an_error_is_one_document(
    capsys: pytest.CaptureFixture[str], arguments: list[str], code: int, kind: str
) -> None:
    found, out, err = run(capsys, *arguments)

    assert found == code
    assert json.loads(out)["error"]["type"] == kind
    assert json.loads(out)["error"]["message"]
    assert err == ""


@pytest.mark.usefixtures("probed")
@pytest.mark.parametrize(
    "arguments",
    [
        ["probe-it", "a_b", "--num-workers", "8", "--base-path", "my_data", "--dry-run"],
        ["probe-it", "a_b", "--num_workers", "8", "--base_path", "my_data", "--dry_run"],
        ["probe_it", "a_b", "--num_workers=8", "--base_path=my_data", "--dry_run"],
    ],
)
def test_hyphens_and_underscores_are_alike_in_names_only(
    capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    assert run(capsys, *arguments) == (0, "a_b 8 my_data True\n", "")


def test_wrong_usage_names_the_way_out(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "config", "--confg", "x")

    assert (code, out) == (2, "")
    assert "No such option: --confg" in err
    assert "'flatout config --help'" in err


def test_a_misspelt_command_is_suggested(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capsys, "presetz")

    assert code == 2
    assert "'presets'" in err


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_every_command_of_the_table_exists(name: str) -> None:
    module, _, attribute = COMMANDS[name].target.partition(":")

    assert callable(getattr(import_module(module), attribute))
    assert name == option_name(name)
    assert COMMANDS[name].help.endswith(".")


def test_exit_codes() -> None:
    assert exit_code(ConfigError("x")) == 2
    assert exit_code(ManifestMissingError("x")) == 2
    assert exit_code(RecordMissingError("x")) == 2
    assert exit_code(StoreMissingError("x")) == 1


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys; from flatout.cli.main import main; main(['--help']); print(*sys.modules, file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    heavy = {"torch", "lightning", "h5py", "pyarrow", "numpy", "scipy", "pydantic", "yaml", "flatout.config"}

    assert "Usage: flatout" in done.stdout
    assert not heavy & set(done.stderr.split())


def test_what_is_wrong_with_a_training_is_said_before_torch_is_imported(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text("manifest: m.csv\nepoch: 3\n")
    code = (
        "import sys; from flatout.cli.main import main\n"
        f"assert main(['train', '--config', {str(tmp_path / 'c.yaml')!r}]) == 2\n"
        "print({'torch', 'lightning', 'monai', 'h5py'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "line 2: unknown key 'epoch'; did you mean 'epochs'?" in done.stderr
    assert done.stdout.splitlines()[-1] == "set()"


def test_the_console_script_runs() -> None:
    script = Path(sys.executable).with_name("flatout")
    if not script.exists():
        pytest.skip("flatout is not installed as a script here")

    done = subprocess.run([script, "presets", "nope", "--json"], capture_output=True, text=True, check=False)

    assert done.returncode == 2
    assert json.loads(done.stdout)["error"]["type"] == "ConfigError"


def test_the_module_is_the_command() -> None:
    command = [sys.executable, "-m", "flatout"]
    told = subprocess.run([*command, "--version"], capture_output=True, text=True, check=True)
    assert flatout.__version__ in told.stdout
    wrong = subprocess.run([*command, "no-such-command"], capture_output=True, text=True, check=False)
    assert wrong.returncode == 2
    assert "no-such-command" in wrong.stderr
