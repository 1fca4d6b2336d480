"""What the pages say holds: commands parse and run, snippets work, links lead somewhere, keys exist."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any, get_args

import nibabel
import numpy as np
import pytest
import typer
import yaml

from flatout.cli.commands import COMMANDS
from flatout.cli.lazy import load_command
from flatout.cli.main import app, main
from flatout.config import Config, load_config
from flatout.config.dialect import RENAMED
from flatout.config.fields import AnyField, FieldSection
from flatout.config.keys import list_keys
from flatout.config.text import parse_yaml
from flatout.demo.heart import heart_sound
from flatout.demo.recordings import write_wav
from flatout.store import StoreReader, verify

REPOSITORY = Path(__file__).resolve().parents[1]
DOCS = sorted((REPOSITORY / "docs").rglob("*.md"))
PAGES = [*sorted(REPOSITORY.glob("*.md")), *DOCS]
EXAMPLES = sorted((REPOSITORY / "examples").iterdir())
TOLD = [
    REPOSITORY / "README.md",
    *(REPOSITORY / "docs" / f"{name}.md" for name in ("store", "sources", "flow")),
]
"""Pages whose snippets are run."""

KINDS = {kind.model_fields["kind"].default: kind for kind in get_args(get_args(AnyField)[0])}
COMMON = {key.path[0] for key in list_keys(FieldSection)}
KEYS = {key.path for key in list_keys(Config)} | {tuple(old.split(".")) for old in RENAMED}
KEY_NAMES = {name for path in KEYS for name in path}


def name_of(path: Path) -> str:
    return path.relative_to(REPOSITORY).as_posix()


def fences(text: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def without_fences(text: str) -> str:
    return re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)


def spans(text: str) -> list[str]:
    """Inline code."""
    return re.findall(r"`([^`\n]+)`", without_fences(text))


def command_lines(text: str) -> list[str]:
    """Lines of code blocks that call flatout, without the words beside them."""
    indented = re.findall(r"^    (.*)$", without_fences(text), re.MULTILINE)
    lines = [*indented, *(line for block in fences(text, "bash") for line in block.splitlines())]
    bare = (re.split(r"\s{2,}|\s#|\s[>|&]", line.strip())[0] for line in lines)
    return [line for line in bare if line.startswith("flatout ")]


def commented(text: str) -> str:
    """The comments of an example as a page."""
    return "\n".join(line.removeprefix("# ").removeprefix("#") for line in text.splitlines())


def parse_command(line: str) -> None:
    """Parse a line as the command line would, without running it."""
    words = shlex.split(line)[1:]
    root = typer.main.get_command(app)
    context = root.make_context("flatout", list(words))
    name = words[0]
    assert name in COMMANDS, f"there is no command '{name}'"
    load_command(name).make_context(name, words[1:], parent=context)


@cache
def options() -> set[str]:
    commands = [typer.main.get_command(app), *map(load_command, COMMANDS)]
    commands += [each for c in commands[1:] for each in getattr(c, "commands", {}).values()]
    return {text for c in commands for p in c.params for text in (*p.opts, *p.secondary_opts)} | {"--help"}


def lines_of(page: Path) -> list[str]:
    """Every command line that a page or an example shows."""
    text = page.read_text(encoding="utf-8")
    lines = command_lines(text if page.suffix != ".yaml" else commented(text))
    return lines + ([s for s in spans(text) if re.match(r"flatout \S+ \S", s)] if page.suffix == ".md" else [])


def problem_with(line: str) -> str:
    """What the command line would say of it; "" if it parses."""
    try:
        parse_command(line)
    except typer.TyperException as error:
        return str(error.format_message())
    return ""


@pytest.mark.parametrize("page", [*PAGES, *EXAMPLES], ids=name_of)
def test_every_command_line_parses(page: Path) -> None:
    if not page.is_file():
        pytest.skip("a folder")
    found = {line: problem_with(line) for line in lines_of(page)}
    assert {line: told for line, told in found.items() if told} == {}


def test_command_lines_are_found_and_a_wrong_one_is_noticed() -> None:
    assert "flatout verify store --repair" in lines_of(REPOSITORY / "docs" / "store.md")
    assert len([line for page in PAGES for line in lines_of(page)]) > 30
    assert problem_with("flatout verify store --repair") == ""
    assert "--mend" in problem_with("flatout verify store --mend")


def test_command_lines_are_seen_and_wrong_ones_refused() -> None:
    assert command_lines("```bash\nflatout prepare x  # why\n```\n    flatout stats y   what\n") == [
        "flatout stats y",
        "flatout prepare x",
    ]
    for wrong in ("flatout perpare x", "flatout verify store --mend", "flatout verify"):
        with pytest.raises((typer.TyperException, AssertionError)):
            parse_command(wrong)
    assert len(command_lines((REPOSITORY / "README.md").read_text())) >= 6


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_command_and_option_named_in_the_text_exists(page: Path) -> None:
    found = spans(page.read_text(encoding="utf-8"))
    unknown = [s for s in found if s.startswith("--") and s.split()[0].replace("_", "-") not in options()]
    unknown += [s for s in found if re.fullmatch(r"flatout [a-z-]+", s) and s.split()[1] not in COMMANDS]
    assert unknown == []


def options_of(name: str) -> set[str]:
    return {text for param in load_command(name).params for text in param.opts} | {"--help"}


def test_every_command_that_a_message_advises_exists() -> None:
    """Messages say what to do next: "'flatout verify STORE --repair' rebuilds it"."""
    advised = re.compile(r"\bflatout ([a-z-]+)((?: (?:\{[^{}]+\}|[A-Z][A-Z_]+|--[a-z-]+))+)")
    found = [
        (path.name, name, option)
        for path in (REPOSITORY / "src").rglob("*.py")
        for name, rest in advised.findall(path.read_text(encoding="utf-8"))
        for option in re.findall(r"--[a-z-]+", rest) or [""]
    ]
    assert len(found) > 5
    wrong = [f for f in found if f[1] not in COMMANDS or (f[2] and f[2] not in options_of(f[1]))]
    assert wrong == []


def test_every_command_has_its_line_in_the_index() -> None:
    listed = re.findall(r"^\| `flatout ([a-z-]+)` \|", (REPOSITORY / "docs/index.md").read_text(), re.MULTILINE)
    assert sorted(listed) == sorted(COMMANDS), "docs/index.md lists every command with a line on it"


def test_every_page_and_example_is_linked_from_the_index() -> None:
    text = (REPOSITORY / "docs/index.md").read_text()
    wanted = [page.relative_to(REPOSITORY / "docs").as_posix() for page in DOCS if page.parent.name == "docs"]
    wanted += [f"../examples/{file.name}" for file in EXAMPLES if file.is_file()]
    missing = [name for name in wanted if f"({name})" not in text and name != "index.md"]
    assert missing == [], "docs/index.md links to every page and example"


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_relative_link_exists(page: Path) -> None:
    links = re.findall(r"\]\(([^)#\s]+)[^)]*\)", without_fences(page.read_text(encoding="utf-8")))
    local = [link for link in links if "://" not in link]
    assert [link for link in local if not (page.parent / link).exists()] == []


def yaml_snippets() -> Iterator[tuple[str, str]]:
    for page in TOLD:
        for number, block in enumerate(fences(page.read_text(encoding="utf-8"), "yaml")):
            yield f"{name_of(page)}-{number}", block
    for file in EXAMPLES:
        if file.suffix == ".yaml":
            yield name_of(file), file.read_text(encoding="utf-8")


@pytest.mark.parametrize("text", [pytest.param(text, id=name) for name, text in yaml_snippets()])
def test_every_config_snippet_loads(text: str) -> None:
    config = load_config(parse_yaml(text, "snippet")[0], environ={})
    assert set(yaml.safe_load(text)) <= set(config.model_fields_set)


def sections(text: str) -> dict[str, str]:
    """The text under each heading of the third level."""
    parts = re.split(r"^#{2,3} (.+)$", text, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def documented(text: str) -> set[str]:
    return set(re.findall(r"^\| `([a-z_]+)` \|", text, re.MULTILINE))


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "transform"])
def test_every_parameter_of_a_kind_is_explained(kind: str) -> None:
    text = sections((REPOSITORY / "docs/sources.md").read_text())[kind]
    assert documented(text) == {key.path[0] for key in list_keys(KINDS[kind])} - COMMON - {"kind"}


def test_the_parameters_of_every_kind_are_explained() -> None:
    text = sections((REPOSITORY / "docs/sources.md").read_text())
    assert documented(text["every kind"]) == COMMON
    listed = set(re.findall(r"^\| `splits\.([a-z_]+)`", text["Manifests"], re.MULTILINE))
    assert listed == {path[1] for path in KEYS if path[0] == "splits" and len(path) == 2}


@pytest.mark.parametrize("page", TOLD, ids=name_of)
def test_every_key_and_name_in_the_text_exists(page: Path) -> None:
    found = spans(page.read_text(encoding="utf-8"))
    keys = [re.match(r"([a-z_]+(?:\.[a-z_]+)*): ", s) for s in found]
    assert [k[1] for k in keys if k and not set(k[1].split(".")) <= KEY_NAMES] == []
    source = "\n".join(path.read_text() for path in (REPOSITORY / "src").rglob("*.py"))
    words = set(re.findall(r"\w+", source)) | {"mask_distance"}
    names = [s for s in found if re.fullmatch(r"[a-z]+(_[a-z0-9]+)+", s)]
    assert [name for name in names if name not in words] == []


@pytest.fixture(scope="module")
def made_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the pages talk about: scans.csv, its scans, a folder of recordings, a config."""
    folder = tmp_path_factory.mktemp("docs")
    random = np.random.default_rng(0)
    (folder / "scans").mkdir()
    lines = ["path,diagnosis,patient"]
    for number in range(12):
        voxels = random.integers(-300, 400, (10, 9, 8)).astype(np.int16)
        nibabel.save(nibabel.Nifti1Image(voxels, np.diag([1.5, 1.5, 3, 1])), folder / f"scans/{number}.nii.gz")
        lines.append(f"{number}.nii.gz,{'ill' if number % 3 else 'well'},p{number}")
    (folder / "scans.csv").write_text("\n".join(lines) + "\n")
    make_recordings(folder / "recordings", 6)
    readme = (REPOSITORY / "README.md").read_text()
    (folder / "config.yaml").write_text(fences(readme, "yaml")[0].replace("/data/scans", str(folder / "scans")))
    return folder


def make_recordings(folder: Path, num_files: int) -> None:
    for kind in ("AS", "N"):
        (folder / kind).mkdir(parents=True)
        for number in range(num_files):
            write_wav(folder / kind / f"{number}.wav", heart_sound(kind, number))


@pytest.fixture
def sandbox(made_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shutil.copytree(made_data, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setenv("FLATOUT_NUM_WORKERS", "0")
    return tmp_path


@pytest.mark.parametrize("page", TOLD[:2], ids=name_of)
def test_the_commands_of_a_page_run_one_after_another(page: Path, sandbox: Path) -> None:
    lines = command_lines("".join(f"```bash\n{b}```\n" for b in fences(page.read_text(), "bash")))
    for line in lines:
        words = shlex.split(line.replace("/data/scans", str(sandbox / "scans")))
        assert main(words[1:]) == 0, line
    assert verify(sandbox / "store")


@pytest.mark.parametrize("page", TOLD, ids=name_of)
def test_the_python_of_a_page_runs(page: Path, sandbox: Path) -> None:
    if page.name == "store.md":
        (sandbox / "config.yaml").write_text("manifest: recordings\npreprocessed_data_dir: store\n")
    names: dict[str, Any] = {"__name__": "snippet"}
    for block in fences(page.read_text(encoding="utf-8"), "python"):
        exec(compile(block, name_of(page), "exec"), names)
    if page.name == "README.md":
        assert names["sample"]["signal"].dtype == np.float32
        assert len(names["train"]) > 0
    if page.name == "sources.md":
        np.save("a.npy", np.arange(200.0))
        assert names["make_sample"]({"file": "a.npy"}, width=64)["spectrum"].shape == (64,)


def prepared(example: str, manifest: str) -> StoreReader:
    config = REPOSITORY / "examples" / example
    assert main(["prepare", manifest, "--config", str(config), "--output-dir", "out"]) == 0
    assert verify(Path("out"))
    return StoreReader("out")


def test_example_of_volumes(sandbox: Path) -> None:
    for name in ("images", "labels"):
        (sandbox / "mr" / name).mkdir(parents=True)
    for number in range(4):
        voxels = np.zeros((20, 30, 25), np.uint8)
        voxels[5:12, 8:20, 4:18] = 2
        for name, array in (("images", voxels * 100.0), ("labels", voxels)):
            nibabel.save(nibabel.Nifti1Image(array, np.eye(4)), sandbox / f"mr/{name}/{number}.nii.gz")
    sample = prepared("prepare_volumes.yaml", "mr").read(0)
    assert {name: array.shape for name, array in sample.items()} == dict.fromkeys(
        ("image", "mask", "mask_distance"), (1, 48, 64, 48)
    )
    assert sample["mask_distance"][sample["mask"] == 2].max() <= 0


def test_example_of_heart_sounds(sandbox: Path) -> None:
    files = sorted((sandbox / "recordings").rglob("*.wav"))
    lines = [f"{file.relative_to(sandbox)},{file.parent.name},g{n // 2}" for n, file in enumerate(files)]
    Path("labels.csv").write_text("\n".join(["file,label,near_duplicate_group", *lines]) + "\n")
    store = prepared("prepare_heart_sounds.yaml", "labels.csv")
    assert len(store) > len(files)  # several cycles a recording
    assert store.read(0)["cycle"].shape == (1, 4000)
    rows = sorted(zip(store.numbers["group"].tolist(), store.numbers["split"].tolist(), strict=True))
    assert all(a[1] == b[1] for a, b in pairwise(rows) if a[0] == b[0])


def test_example_of_a_transform(sandbox: Path) -> None:
    store = prepared("prepare_custom_transform.yaml", "recordings")
    assert store.read(0)["spectrogram"].shape == (1, 129, 200)
    assert {int(store.read(at)["label"]) for at in range(len(store))} == {0, 4}
    assert store.keys()[0] == "AS/0.wav"


def test_example_of_a_dataset(sandbox: Path) -> None:
    script = REPOSITORY / "examples" / "prepare_from_dataset.py"
    done = subprocess.run([sys.executable, str(script), "out"], capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    assert "200 samples" in done.stdout
    assert "whole: True" in done.stdout
    assert StoreReader("out").read(5)["wave"].shape == (1000,)


def test_examples_run_on_real_data(data_dir: Path, sandbox: Path) -> None:
    runs = {"prepare_volumes.yaml": "mr_hippocampus", "prepare_heart_sounds.yaml": "heart_yaseen/labels.csv"}
    for example, place in runs.items():
        config = str(REPOSITORY / "examples" / example)
        arguments = ["--config", config, "--output-dir", Path(example).stem, "--limit", "4"]
        assert main(["prepare", str(data_dir / place), *arguments]) == 0
        assert len(StoreReader(Path(example).stem)) >= 4
