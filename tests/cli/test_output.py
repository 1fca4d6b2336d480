"""What goes where: documents to standard output, words to standard error."""

from __future__ import annotations

import json
import logging

import pytest

from flatout.cli.output import Saying, emit_json, emit_text, say, say_error, warnings_said


def test_json_has_no_nan(capsys: pytest.CaptureFixture[str]) -> None:
    emit_json({"a": [float("nan"), 1.5, (float("inf"),)], "b": "\u00e9"})

    assert (
        capsys.readouterr().out
        == '{\n  "a": [\n    null,\n    1.5,\n    [\n      null\n    ]\n  ],\n  "b": "\u00e9"\n}\n'
    )


def test_words_go_to_standard_error_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    say("kept [16] of /a/b" + "x" * 200)
    say_error("[red]no markup[/red]")

    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == f"note: kept [16] of /a/b{'x' * 200}\nerror: [red]no markup[/red]\n"


def test_warnings_of_ours_are_notes(capsys: pytest.CaptureFixture[str]) -> None:
    log = logging.getLogger("flatout.loader.anything")
    with warnings_said():
        log.warning("kept %s of %s", 3, "[4]")
        log.info("no news")
    assert capsys.readouterr().err == "note: kept 3 of [4]\n"
    assert not [h for h in logging.getLogger("flatout").handlers if isinstance(h, Saying)]


def test_text_ends_with_one_newline(capsys: pytest.CaptureFixture[str]) -> None:
    emit_text("a")
    emit_text("b\n")
    emit_json(None)

    out = capsys.readouterr().out
    assert out == "a\nb\nnull\n"
    assert json.loads(out.splitlines()[-1]) is None
