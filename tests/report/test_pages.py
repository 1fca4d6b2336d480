"""Pages: HTML and Markdown of runs and of the doctor, whatever stands in the records."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from datetime import UTC, datetime
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from tests.report.records import doctor_record, run_document, write_doctor, write_run

from flatout.doctor.record import Ceiling, Exit, Trial, record_of
from flatout.errors import ReportError
from flatout.report import compare, write_comparison, write_report
from flatout.report.html import render_html
from flatout.report.markdown import escaped, render_markdown
from flatout.report.run import RunRecord, run_record_of
from flatout.report.run_page import run_page, run_verdict
from flatout.report.source import Record
from flatout.report.write import page_of

HOSTILE = (
    "\"'><script>alert(1)</script><img src=x onerror=alert(2)></title></style></svg>--><!--"
    "<iframe srcdoc='x'>{{ 7 * 7 }}{% raw %}javascript:alert(3)\x1b[31m\u202e\ud800|`~~~\n```\n# head"
)
SAFE_TAGS = {
    *("html", "head", "meta", "title", "style", "body", "main", "header", "p", "span", "h1", "h2", "h3", "dl"),
    *(
        "dt",
        "dd",
        "div",
        "section",
        "figure",
        "figcaption",
        "table",
        "thead",
        "tbody",
        "tr",
        "th",
        "td",
        "code",
    ),
    *("i", "svg", "desc", "text", "line", "polyline", "polygon", "circle", "rect", "ul", "li", "pre", "footer"),
}


def run_of(**changes: Any) -> RunRecord:
    return run_record_of(json.loads(json.dumps(run_document(**changes))), "run.json")


class Seen(HTMLParser):
    """Tags and attributes as a browser would find them."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[tuple[str, str]] = set()
        self.texts: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {(name, value or "") for name, value in attrs}

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def poisoned(value: Any, names: bool = False) -> Any:
    """The same JSON with hostile text after every text, and for loose objects in every name."""
    if isinstance(value, str):
        return value + HOSTILE
    if isinstance(value, list):
        return [poisoned(inner, names) for inner in value]
    if isinstance(value, dict):
        return {(name + HOSTILE if names else name): poisoned(inner, names) for name, inner in value.items()}
    return value


def hostile_run() -> RunRecord:
    document = run_document(status="failed", error="E", notes=["n"], reports={"Monitor": {"a": "b"}})
    loose = ("config", "machine", "versions", "metrics", "reports")
    made = {name: poisoned(value, name in loose) for name, value in document.items()}
    for row in made["epochs"]:
        row["metrics"] = poisoned(row["metrics"], names=True)
    return run_record_of(made, "run.json")


def hostile_doctor() -> Record:
    document = doctor_record(exit=Exit(1, False, "Traceback\n  boom")).to_json()
    made = {name: poisoned(value, name in ("facts", "machine")) for name, value in document.items()}
    for step in made["steps"]:
        step["seconds"] = poisoned(step["seconds"], names=True)
    made["loaders"][0]["seconds"] = poisoned(made["loaders"][0]["seconds"], names=True)
    made["kind"] = document["kind"]
    return record_of(made, "doctor.json")


@pytest.mark.parametrize("make", [hostile_run, hostile_doctor])
@pytest.mark.parametrize("is_live", [False, True])
def test_hostile_text_never_becomes_markup(make: Any, is_live: bool) -> None:
    text = render_html(page_of(make()), is_live=is_live)
    seen = Seen(text)
    assert seen.tags <= SAFE_TAGS | ({"script", "noscript"} if is_live else set())
    assert text.count("<script>") == is_live
    assert not [
        name for name, _ in seen.attributes if name.startswith("on") or name in ("style", "src", "href")
    ]
    assert any("<script>alert(1)" in data for data in seen.texts), "it is there, as text"
    assert "{{ 7 * 7 }}" in text
    assert not re.search("[\x00-\x08\x1b\u202e\ud800]", text)
    text.encode("utf-8")


@pytest.mark.parametrize("make", [hostile_run, hostile_doctor])
def test_hostile_text_is_no_markdown(make: Any) -> None:
    text = render_markdown(page_of(make()))
    outside = re.sub(r"^(`{3,})text\n.*?^\1$", "", text, flags=re.MULTILINE | re.DOTALL)
    assert "alert(1)" in outside
    assert not re.search(r"<(?!br>)", re.sub(r"`[^`\n]*`", "", outside))
    rows = [line for line in outside.splitlines() if line.startswith("|")]
    assert all(line.endswith("|") for line in rows)
    assert not re.search(r"^# head", outside, re.MULTILINE)
    text.encode("utf-8")


def test_a_comparison_escapes_too(tmp_path: Path) -> None:
    write_comparison(compare(hostile_run(), run_of()), tmp_path / "a.html")
    seen = Seen((tmp_path / "a.html").read_text())
    assert seen.tags <= SAFE_TAGS


@pytest.mark.parametrize("text", ["a|b", "*b*", "_b_", "[a](b)", "<b>", "`c`", "~~s~~", "a\nb", "&lt;"])
def test_markdown_that_is_text(text: str) -> None:
    assert escaped(text) != text
    assert escaped("num_workers: 2 (now 4) - fine") == "num_workers: 2 (now 4) - fine"


@pytest.mark.parametrize("kind", ["run", "doctor"])
def test_a_page_needs_nothing_else(kind: str, tmp_path: Path) -> None:
    source = write_run(tmp_path) if kind == "run" else write_doctor(tmp_path / "doctor.json")
    write_report(source, tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert not re.search(r"https?://|url\(|@import|<link|<script|src=", text)
    assert "default-src 'none'" in unescape(text)
    assert len(text) < 200_000
    for svg in re.findall("<svg.*?</svg>", text, re.DOTALL):
        assert 'role="img"' in svg
        assert re.search(r"<title>[^<]+</title><desc>[^<]+</desc>", svg)


def test_what_stands_on_the_page_of_a_run() -> None:
    text = render_html(page_of(run_of()))
    told = " ".join(Seen(text).texts)
    for wanted in (
        "waited for data 40 % of the time; without that it would be 1.67 times as fast",
        "'flatout prepare' makes a store",
        "Waiting for data",
        "Throughput against its ceiling",
        "Utilisation",
        "Memory",
        "val_dice",
        "num_workers",
        "Some CPU",
        "640 samples/s",
        "2 GiB",
        "as of 2026-01-02 03:04:05 UTC",
    ):
        assert wanted in told, wanted


def test_what_stands_on_the_page_of_the_doctor() -> None:
    told = " ".join(Seen(render_html(page_of(doctor_record()))).texts)
    for wanted in (
        "Rotate.__call__ is slow",
        "augmentation",
        "flatout.cached(dataset, 'cache')",
        "2.3x, kept",
        "changes results",
        "Before and after",
        "A step and a batch",
        "Steps in their parts",
        "train.py:33",
        "2.5x",
        "checkpoints/ would be overwritten",
        "__main__.Scans",
    ):
        assert wanted in told, wanted


def test_warnings_stand_below_the_verdict() -> None:
    assert page_of(doctor_record()).sections[0].title == "Warnings"


def test_the_wait_on_the_page_is_the_one_of_the_verdict() -> None:
    """A step of 100 ms waits for 60; starts of workers that none of them shows add another 100."""
    shown = {fact.name: fact.value for fact in page_of(doctor_record(facts={"unseen_start_s": 0.1})).facts}
    assert shown["waiting for data"] == "80 %"


def test_a_ceiling_that_nobody_knows_closely_has_no_middle(tmp_path: Path) -> None:
    record = doctor_record(ceiling=Ceiling(0.1, 0.01, 0.11, 2.0, 40.0))
    page = page_of(record)
    (most,) = [fact for fact in page.facts if fact.name == "most to win"]
    assert (most.value, most.note) == ("2x to 40x", "varied too much to say it closer")
    assert "10x" not in render_markdown(page)
    assert "Dashed: what no data path" in render_html(page_of(doctor_record()))
    assert "Dashed: what no data path" not in render_html(page)
    for name in ("a.json", "b.json"):
        (tmp_path / name).write_text(json.dumps(record.to_json()))
    speed = compare(str(tmp_path / "a.json"), str(tmp_path / "b.json")).speed
    assert "most to win" not in [measure.name for measure in speed]


def test_what_was_not_tried_is_no_proof() -> None:
    tried = doctor_record()
    foretold = replace(tried, remedies=tuple(replace(each, trial=None) for each in tried.remedies))
    assert "## Proof" in render_markdown(page_of(tried))
    assert "## Proof" not in render_markdown(page_of(foretold))
    assert "## What is to be won" in render_markdown(page_of(foretold))


def test_marks_are_explained_where_they_are_seen() -> None:
    page = page_of(doctor_record())
    assert "Rings are predicted" in render_html(page)
    assert "Rings are predicted" not in render_markdown(page)


def test_what_trials_have_kept_stands_beside_what_was() -> None:
    text = render_markdown(page_of(doctor_record()))
    assert "| setting | in the script | kept |\n| --- | --- | --- |\n| `cache` | - | `True` |\n" in text
    assert "| `num_workers` | `2` | `0` |\n" in text


def test_settings_that_contradict_each_other_are_not_both_kept() -> None:
    cache, workers, other = doctor_record().remedies
    more = replace(
        workers,
        settings={"num_workers": 4, "persistent_workers": True},
        trial=Trial(1.5, 1.4, 1.6, is_kept=True),
    )
    text = render_markdown(page_of(doctor_record(remedies=(more, cache, other))))
    assert "| `num_workers` | `2` | `0` |\n" in text
    assert "| `num_workers` | `2` | `4` |" not in text
    assert "`persistent_workers`" not in text


def test_settings_are_those_that_differ_from_the_defaults() -> None:
    page = run_page(run_of())
    (section,) = [s for s in page.sections if s.title.startswith("Settings")]
    names = {row[0].text for row in section.parts[0].rows}  # type: ignore[union-attr]
    assert {"task", "batch_size", "num_workers"} <= names
    assert "learning_rate" not in names


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"data_wait_share": 0.003}, "Training was not held up by data: it waited 0.3 % of the time."),
        ({"data_wait_share": None}, "No step was measured."),
        ({"data_wait_share": 1.0}, "many times as fast"),
        ({"data_wait_share": 0.5}, "2 times as fast."),
    ],
)
def test_the_verdict_on_a_run(changes: dict[str, Any], told: str) -> None:
    assert told in run_verdict(run_of(speed={**run_document()["speed"], **changes}))


def test_on_a_gpu_the_gain_is_a_bound() -> None:
    assert "at most, because the device works on" in run_verdict(run_of(device="cuda:0", is_fast=True))


EMPTY_SPEED = dict.fromkeys(run_document()["speed"]) | dict.fromkeys(
    ("num_steps", "train_s", "first_step_s", "data_wait_s", "peak_rss_bytes"), 0
)


def test_a_run_without_steps() -> None:
    run = run_of(epochs=[], looks=[], speed=EMPTY_SPEED, metrics={}, status="failed", error="OSError: gone")
    page = page_of(run)
    assert (page.state, page.tone, page.alarm) == ("failed", "bad", "OSError: gone")
    assert "No step was measured." in render_html(page)
    assert "OSError: gone" in render_markdown(page)


def test_a_script_without_steps() -> None:
    record = doctor_record(
        num_steps=0,
        loaders=(),
        ceiling=None,
        looks=(),
        remedies=(),
        verdict=None,
        sync_points=(),
        overhead=None,
        exit=Exit(1, False, "Traceback (most recent call last):\nZeroDivisionError: division by zero"),
    )
    text = render_html(page_of(record))
    assert "No step was measured" in text
    assert "The script ended with its own error (exit code 1): ZeroDivisionError" in text
    assert "Traceback (most recent call last):" in text


def test_one_step_is_shown() -> None:
    assert "A step and a batch" in render_html(page_of(doctor_record(num_steps=1)))
    one = run_of(num_looks=1, num_epochs=1)
    assert render_html(page_of(one)).count("<circle") >= 4


def test_a_hundred_thousand_steps_fit(tmp_path: Path) -> None:
    write_run(tmp_path, num_looks=100_000, num_epochs=1000)
    write_report(tmp_path, tmp_path / "run.html")
    assert (tmp_path / "run.html").stat().st_size < 400_000
    page = page_of(doctor_record(num_steps=100_000))
    assert len(render_html(page)) < 400_000
    assert len(render_markdown(page)) < 40_000


def test_long_texts_do_not_swell_the_page() -> None:
    run = run_of(error="x" * 5_000_000, status="failed", notes=["n" * 100_000] * 1000, task="t" * 100_000)
    assert len(render_html(page_of(run))) < 400_000
    config = {f"key{at}": "v" * 10_000 for at in range(1000)}
    text = render_html(page_of(run_of(config=config)))
    assert "and 800 more" in text
    assert len(text) < 400_000


def test_every_list_of_a_report_is_shown() -> None:
    lists = {f"rate{at}_per_unit": [0.5, at] for at in range(6)} | {"huge_per_s": [1, 10**400]}
    text = render_markdown(page_of(run_of(reports={"Monitor": lists})))
    for at in range(6):
        assert f"rate{at} by unit" in text or f"rate{at} per unit" in text
    assert "huge per" in text


def test_nested_without_end_is_told() -> None:
    deep: Any = 1
    for _ in range(5000):
        deep = {"a": deep}
    assert "nested too deep" in render_html(page_of(replace(run_of(), config={"deep": deep})))


def test_a_run_too_short_for_a_look_says_so_where_the_charts_would_be() -> None:
    run = replace(run_of(), looks=(), global_step=12)
    told = "Processor and memory are looked at every 100 steps (monitor.update_frequency)"
    assert f"{told}, and drawn from then on; this run had 12." in render_html(page_of(run))
    assert f"{told}, and drawn from then on." in render_html(page_of(replace(run, global_step=None)))
    assert told not in render_html(page_of(run_of()))
    off = replace(run, config={**run.config, "disable_metrics_monitoring": True})
    assert "were not looked at: disable_metrics_monitoring is true" in render_html(page_of(off))


def test_a_run_that_no_longer_writes() -> None:
    run = run_of(status="running")
    soon = datetime(2026, 1, 2, 3, 4, 30, tzinfo=UTC)
    assert run_page(run, soon).alarm == ""
    later = datetime(2026, 1, 2, 4, 4, 5, tzinfo=UTC)
    assert "The run may have been killed: nothing was written for 1 h" in run_page(run, later).alarm
    assert run_page(run_of(status="finished"), later).alarm == ""
    assert run_page(run_of(status="running", written_at="nonsense"), later).alarm == ""


MARKDOWN = """\
# Run run-0007

segmentation · runs/run-0007 · as of 2026-01-02 03:04:05 UTC

**finished**: Training waited for data 40 % of the time; without that it would be 1.67 times as fast. \
Its batches came from raw files: 'flatout prepare' makes a store that is read at memory speed.

|  |  |  |
| --- | --- | --- |
| speed | 640 samples/s | from raw files |
| waiting for data | 40 % | 38.2 s |
"""


def test_the_markdown_of_a_run(tmp_path: Path) -> None:
    write_report(write_run(tmp_path), tmp_path / "run.md", markdown=True)
    text = (tmp_path / "run.md").read_text(encoding="utf-8")
    assert text.startswith(MARKDOWN)
    assert "\n## Where the time goes\n\n### A step\n\n|  | time | share |\n| --- | ---: | ---: |\n" in text
    assert "| waiting for data | 9.55 ms | 40 % |\n| computing | 14.3 ms | 60 % |\n" in text
    assert "| % | least | median | most | last |  |\n| --- | ---: | ---: | ---: | ---: | --- |\n" in text
    assert re.search(r"\| waiting for data \| 30 \| .* \| [▁▂▃▄▅▆▇█]{24} \|\n", text)
    assert "| `batch_size` | `16` |" in text
    assert text.endswith("\n")
    assert "\n\n\n" not in text


def test_the_markdown_of_the_doctor(tmp_path: Path) -> None:
    write_report(doctor_record(), tmp_path / "d.md", markdown=True)
    text = (tmp_path / "d.md").read_text(encoding="utf-8")
    assert "**augmentation**: Training waits for data 60 % of a step" in text
    assert "| cache | Rotate.\\_\\_call\\_\\_ takes" in text
    assert "| cache | 2.4x | 2.3x | 2.1x to 2.5x | kept |" in text


def test_a_file_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    with pytest.raises(ReportError, match="is a folder"):
        write_report(run, tmp_path)
    with pytest.raises(ReportError, match="is the record itself"):
        write_report(run / "run.json", run / "run.json")
    with pytest.raises(ReportError, match="is the record itself"):
        write_report(str(run), run / "run.json")
    (tmp_path / "file").write_text("")
    with pytest.raises(ReportError, match="cannot be written"):
        write_report(run, tmp_path / "file" / "a.html")
    write_report(run, tmp_path / "new" / "a.html")
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["a.html"]


FACTS = {
    "device": "cpu",
    "is_compiled": False,
    "cudnn_benchmark": True,
    "num_processes": 2,
    "stack_here_s": 5.14e-05,
    "slowdown": 0.2345678,
    "one_thread_gain": 2.5,
    "evaluations": 0.02,
    "read_bytes_per_batch": 3355443.2,
    "trim_share": 0.612345,
    "resident_seconds": {"forward": 0.0123456, "wait": 5e-08},
    "ceiling": "replayed",
    "repeated_forward": {
        "module": "Encoder",
        "calls_per_step": 2.0,
        "seconds_per_step": 0.01,
        "file": "",
        "line": 1,
    },
    "other_lines": [
        {"file": "/home/a/train.py", "line": 7, "call": "score", "is_log": False, "seconds_per_step": 1.23e-4}
    ],
    "overwritten": ["last.ckpt"],
    "new_thing_s": 0.00025,
    "new_words": {"a_share": 0.5},
}


@pytest.mark.parametrize("render", [render_html, render_markdown])
def test_facts_are_words_with_units(render: Any) -> None:
    text = unescape(render(page_of(replace(doctor_record(), facts=FACTS))))
    for told in (
        "51.4 µs",
        "23.5 % longer",
        "2.5 times as fast",
        "one every 50 steps",
        "3.2 MiB",
        "61.2 %",
        "12.3 ms",
        "Encoder",
    ):
        assert told in text
    for told in ("by replayed batches", "ranks on this machine", "123 µs", "train.py:7", "250 µs", "50 %"):
        assert told in text
    assert not re.search(r"\de-\d|0\.2345|0\.612|seconds.per.step|is.log|cuDNN", text)
    assert not re.search(r"[{}\[]\"", text)  # nothing is left of JSON


@pytest.mark.parametrize("facts", [dict.fromkeys(FACTS, HOSTILE), {name: [{}] for name in FACTS}])
def test_facts_of_another_kind_are_shown_nevertheless(facts: dict[str, Any]) -> None:
    assert "<script>" not in render_html(page_of(replace(doctor_record(), facts=facts)))


def test_settings_stand_as_in_a_script() -> None:
    text = render_markdown(page_of(doctor_record()))
    assert "`True`" in text
    assert "true" not in text
    assert "null" not in text


@pytest.mark.parametrize(
    ("script", "told"),
    [("-m pkg.train", "-m pkg.train --epochs 3"), ("my train.py", "'my train.py' --epochs 3")],
)
def test_the_command_stands_as_it_was_given(script: str, told: str) -> None:
    assert page_of(replace(doctor_record(), script=script)).subtitle == told
