"""Paths of a manifest: what is refused, what is taken, and that nothing outside the base is ever returned."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from flatout.errors import SampleError
from flatout.source.paths import is_inside, resolve_path

VECTORS = [
    # leaving by ..
    "../secret.txt", "..", "../", "a/../../secret.txt", "./../secret.txt", "a/b/../../../secret.txt",
    "good/../../secret.txt", "../base/good/x.wav", "good/../good/x.wav", "..//secret.txt", "good/..",
    "../../../../../../../../etc/passwd", "good/./../../secret.txt", ".//..//secret.txt",
    # absolute
    "/etc/passwd", "//etc/passwd", "///etc/passwd", "/", "/.", "/../etc/passwd", "/etc/../etc/passwd",
    "/proc/self/environ", "/proc/self/fd/0", "/proc/self/root/etc/passwd", "/dev/zero", "/dev/stdin",
    "/dev/fd/0", "/dev/tty", "/dev/null",
    # home, variables, other notations
    "~", "~/secret.txt", "~root/.ssh/id_rsa", "$HOME/secret.txt", "${HOME}/x", "%2e%2e/secret.txt",
    "..%2fsecret.txt", "%USERPROFILE%/x", "`id`", "$(id)",
    # addresses and chains of them
    "file:///etc/passwd", "FILE:///etc/passwd", "file://localhost/etc/passwd", "http://example.org/x.wav",
    "https://example.org/x.wav", "s3://bucket/x.wav", "gs://bucket/x", "hf://datasets/x", "ftp://h/x",
    "zip://x.wav::archive.zip", "simplecache::s3://bucket/x", "filecache::file:///etc/passwd",
    "tar://x::file:///etc/passwd", "local:///etc/passwd", "memory://x", "good/x.wav::zip://y", "::", "a::b",
    # Windows
    "C:\\Windows\\win.ini", "C:/Windows/win.ini", "c:secret.txt", "C:", "\\\\server\\share\\x.wav",
    "\\\\?\\C:\\x", "\\\\.\\PhysicalDrive0", "..\\secret.txt", "good\\..\\..\\secret.txt", "good\\x.wav",
    "good/x.wav::$DATA", "good/x.wav:stream",
    # nothing, control characters, length
    "", " ", "\t", "\n", "\0", "good/x.wav\0.png", "\0/etc/passwd", "good/x.wav\n", "x" * 5000, "x" * 300,
    "a/" * 1500 + "x", "good/" + "y" * 256, "\ud800", "good/\udfff.wav",
    # look-alikes
    "\uff0e\uff0e/secret.txt", "..\u2215secret.txt", "\u2025/secret.txt", "\u2024\u2024/secret.txt",
    # links and special files made by the fixture
    "link_out", "link_out_folder/secret.txt", "link_out_folder", "link_out_folder/", "link_relative_out",
    "good/deep_link", "chain_1", "loop", "broken", "link_etc/passwd", "link_dev_zero", "fifo", "socket",
    "link_fifo", "good/x.wav/", "good/x.wav/y", "missing.wav", "good/missing.wav",
]  # fmt: skip


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    top = tmp_path_factory.mktemp("top")
    base = top / "base"
    (base / "good" / "deep").mkdir(parents=True)
    (top / "secret.txt").write_text("secret")
    (top / "base-2").mkdir()
    (top / "base-2" / "x.wav").write_text("not below base")
    for name in (
        "good/x.wav",
        "good/deep/y.wav",
        "a name with spaces.wav",
        "12.30.wav",
        "..hidden..wav",
        "ümlaut.wav",
    ):
        (base / name).write_text("fine")
    links = {
        "link_out": top / "secret.txt",
        "link_out_folder": top,
        "link_relative_out": "../secret.txt",
        "good/deep_link": "../../secret.txt",
        "chain_1": "chain_2",
        "chain_2": "link_out",
        "loop": "loop",
        "broken": "nowhere",
        "link_etc": "/etc",
        "link_dev_zero": "/dev/zero",
        "link_fifo": "fifo",
        "link_in": "good/x.wav",
        "link_in_folder": "good",
    }
    for name, target in links.items():
        (base / name).symlink_to(target)
    os.mkfifo(base / "fifo")
    here = Path.cwd()
    with socket.socket(socket.AF_UNIX) as listener:
        os.chdir(base)  # a socket's path may have 107 characters only
        try:
            listener.bind("socket")
        finally:
            os.chdir(here)
    return base


def test_there_are_enough_vectors() -> None:
    assert len(set(VECTORS)) >= 60


@pytest.mark.parametrize("value", VECTORS, ids=lambda v: ascii(v)[:60])
def test_a_path_that_leaves_the_base_is_refused(base: Path, value: str) -> None:
    with pytest.raises(SampleError) as caught:
        resolve_path(value, base, allow_outside=False)
    assert caught.value.stage == "find"
    assert caught.value.reason.isprintable()
    assert len(caught.value.reason) < 1000


def test_a_sibling_that_starts_with_the_same_name_is_outside(base: Path) -> None:
    with pytest.raises(SampleError, match="leaves"):
        resolve_path(str(base) + "-2/x.wav", base, allow_outside=False)


@pytest.mark.parametrize("value", [None, 3, 2.5, b"good/x.wav", ["good/x.wav"]])
def test_what_is_no_text_is_refused(base: Path, value: object) -> None:
    with pytest.raises(SampleError, match="a path is wanted"):
        resolve_path(value, base, allow_outside=False)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "value",
    [
        "good/x.wav",
        "./good/x.wav",
        "good//x.wav",
        "good/deep/y.wav",
        "good",
        "good/",
        ".",
        "link_in",
        "link_in_folder/x.wav",
        "a name with spaces.wav",
        "12.30.wav",
        "..hidden..wav",
        "ümlaut.wav",
    ],
)
def test_a_path_inside_is_taken(base: Path, value: str) -> None:
    found = resolve_path(value, base, allow_outside=False)
    assert found.exists()
    assert found == base / value


def test_an_absolute_path_inside_is_taken(base: Path) -> None:
    assert resolve_path(str(base / "good/x.wav"), base, False) == base / "good/x.wav"


def test_a_base_that_is_itself_a_link_is_fine(base: Path, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(base)
    assert resolve_path("good/x.wav", link, False) == link / "good/x.wav"
    assert resolve_path(str(base / "good/x.wav"), link, False) == base / "good/x.wav"
    assert resolve_path(str(link / "good/x.wav"), base, False) == link / "good/x.wav"
    with pytest.raises(SampleError, match="leaves"):
        resolve_path("link_out", link, False)


@pytest.mark.parametrize(
    "value", ["../secret.txt", "link_out", "link_out_folder/secret.txt", "good/../../secret.txt"]
)
def test_leaving_can_be_allowed(base: Path, value: str) -> None:
    assert resolve_path(value, base, allow_outside=True).read_text() == "secret"


def test_an_absolute_path_can_be_allowed(base: Path) -> None:
    secret = base.parent / "secret.txt"
    assert resolve_path(str(secret), base, allow_outside=True) == secret


@pytest.mark.parametrize(
    "value",
    [
        "/dev/zero",
        "fifo",
        "socket",
        "link_dev_zero",
        "~/x",
        "file:///etc/passwd",
        "s3://b/x",
        "",
        "a\0b",
        "C:\\x",
        "x" * 5000,
        "loop",
        "missing.wav",
        "a\\b",
    ],
)
def test_what_is_no_file_stays_refused_when_leaving_is_allowed(base: Path, value: str) -> None:
    with pytest.raises(SampleError):
        resolve_path(value, base, allow_outside=True)


def test_the_message_shows_control_characters_harmlessly(base: Path) -> None:
    with pytest.raises(SampleError) as caught:
        resolve_path("evil\n\x1b[31m../../x", base, False)
    assert "\n" not in str(caught.value)
    assert "\x1b" not in str(caught.value)


@given(
    parts=st.lists(
        st.sampled_from(
            [
                "..",
                ".",
                "good",
                "x.wav",
                "link_out_folder",
                "link_in_folder",
                "secret.txt",
                "",
                "/",
                "base",
                "deep",
                "link_out",
                "base-2",
            ]
        ),
        max_size=7,
    )
)
@example(parts=["link_in_folder", "x.wav"])
def test_whatever_is_returned_is_really_inside(base: Path, parts: list[str]) -> None:
    try:
        found = resolve_path("/".join(parts), base, allow_outside=False)
    except SampleError:
        return
    assert is_inside(os.path.realpath(found), os.path.realpath(base))


@given(value=st.text(max_size=40))
def test_any_text_ends_in_a_file_inside_or_a_sample_error(base: Path, value: str) -> None:
    try:
        found = resolve_path(value, base, allow_outside=False)
    except SampleError:
        return
    assert is_inside(os.path.realpath(found), os.path.realpath(base))
