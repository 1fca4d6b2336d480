"""Pages in a real browser: something is drawn, nothing is cut off, scripts of others do not run."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from dataclasses import replace
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from tests.report.records import doctor_record, write_run
from tests.report.test_pages import hostile_doctor, hostile_run

from flatout.doctor.record import Remedy, Trial
from flatout.report import Dashboard, compare, write_comparison, write_report

BROWSER = next(
    (found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), None
)
pytestmark = pytest.mark.skipif(BROWSER is None, reason="there is no chromium on this machine")

PHONE, DESK = 390, 1200
NAMES = ("run", "doctor", "both", "hostile_run", "hostile_doctor")
PROBE = """<!doctype html><body>%FRAMES%<script>
const found = {};
function measure(frame) {
  const page = frame.contentDocument;
  const all = [...page.querySelectorAll("*")];
  const isOutside = (e) => !e.closest("svg") && e.getBoundingClientRect().right > frame.clientWidth + 0.5;
  // A short name on more than one line is broken inside of a word.
  const lines = (e) => {
    const text = page.createRange();
    text.selectNodeContents(e);
    return new Set([...text.getClientRects()].map((r) => r.top)).size;
  };
  const isBroken = (e) => /^[a-z_]{1,13}$/.test(e.textContent.trim()) && lines(e) > 1;
  const size = (e) => parseFloat(getComputedStyle(e).fontSize) * e.getScreenCTM().a;
  found[frame.id] = {
    scroll: page.documentElement.scrollWidth,
    outside: all.filter(isOutside).map((e) => e.tagName + "." + e.className),
    smallest: Math.min(...[...page.querySelectorAll("svg text")].map(size)),
    strangers: all.map((e) => e.tagName).filter((name) => /^(script|img|iframe)$/i.test(name)),
    broken: [...page.querySelectorAll("td:first-child:not(:has(i))")]
      .filter(isBroken).map((e) => e.textContent),
    elements: all.length,
  };
  document.body.dataset.found = JSON.stringify(found);
}
for (const frame of document.querySelectorAll("iframe")) {
  frame.onload = () => measure(frame);
  // One that was loaded before this line says so no more.
  const page = frame.contentDocument;
  if (page && page.readyState === "complete" && page.URL !== "about:blank") measure(frame);
}
</script>"""


def browse(home: Path, *arguments: str, budget_ms: int = 5000) -> str:
    """Run the browser once, for so long by its own clock; its standard output."""
    assert BROWSER is not None
    options = ["--headless", "--disable-gpu", "--no-sandbox", "--hide-scrollbars", "--disable-dev-shm-usage"]
    options += ["--no-first-run", f"--user-data-dir={home / 'profile'}", f"--virtual-time-budget={budget_ms}"]
    options += ["--allow-file-access-from-files"]
    environment = {**os.environ, "HOME": str(home)}
    command = [BROWSER, *options, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, env=environment, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    found = {name: folder / f"{name}.html" for name in NAMES}
    run = write_run(folder / "run-0007")
    write_report(run, found["run"])
    write_report(doctor_record(), found["doctor"])
    write_comparison(compare(run, run), found["both"])
    write_report(hostile_run(), found["hostile_run"])
    write_report(hostile_doctor(), found["hostile_doctor"])
    return found


@pytest.fixture(scope="module")
def on_a_phone(pages: dict[str, Path]) -> dict[str, Any]:
    return measured(pages, PHONE)


def measured(pages: dict[str, Path], width: int) -> dict[str, Any]:
    """Each page in a frame (a window is never narrower than 500), measured from outside."""
    frame = '<iframe id="{}" width={} height=3000 frameborder=0 src="{}"></iframe>'
    frames = [frame.format(name, width, page.name) for name, page in pages.items()]
    probe = next(iter(pages.values())).with_name(f"probe-{width}.html")
    probe.write_text(PROBE.replace("%FRAMES%", "\n".join(frames)))
    text = browse(probe.parent, "--dump-dom", probe.as_uri())
    found: dict[str, Any] = json.loads(unescape(re.findall(r'data-found="([^"]*)"', text)[0]))
    return found


@pytest.mark.parametrize("name", NAMES)
def test_a_phone_shows_it_without_scrolling_sideways(on_a_phone: dict[str, Any], name: str) -> None:
    found = on_a_phone[name]
    assert found["scroll"] == PHONE
    assert found["outside"] == []
    assert found["smallest"] > 9.5, "numbers on the axes can be read"


def test_short_names_of_facts_stay_whole_beside_long_values(tmp_path: Path) -> None:
    page = tmp_path / "run.html"
    machine = {"processor": "AMD EPYC", "system": "Linux-6.18.44-fc-v490-x86_64-with-glibc2.36"}
    write_report(write_run(tmp_path / "run-0007", machine=machine), page)
    assert measured({"run": page}, PHONE)["run"]["broken"] == []


@pytest.mark.parametrize("width", [PHONE, DESK])
def test_names_of_remedies_stay_whole(tmp_path: Path, width: int) -> None:
    page = tmp_path / "tried.html"
    trial = Trial(1.31, 1.11, 1.53, is_kept=False, note="same numbers")
    names = ("persistent", "evaluate_less", "forward_once")
    tried = tuple(Remedy(name, "because", 1.4, "none", "do it", trial=trial) for name in names)
    write_report(replace(doctor_record(), remedies=tried), page)
    assert measured({"tried": page}, width)["tried"]["broken"] == []


@pytest.mark.parametrize("name", ["hostile_run", "hostile_doctor"])
def test_no_element_of_others_is_there(on_a_phone: dict[str, Any], name: str) -> None:
    assert on_a_phone[name]["strangers"] == []
    assert on_a_phone[name]["elements"] > 300


def shot(page: Path, name: str, *arguments: str) -> Image.Image:
    """A screenshot of the page's top."""
    picture = page.with_suffix(f".{name}.png")
    browse(page.parent, f"--screenshot={picture}", f"--window-size={DESK},1600", *arguments, page.as_uri())
    with Image.open(picture) as found:
        return found.convert("RGB")


def corner(picture: Image.Image) -> tuple[int, ...]:
    found = picture.getpixel((2, 2))
    assert isinstance(found, tuple)
    return found


@pytest.mark.parametrize("name", ["run", "doctor"])
def test_a_screenshot_is_not_blank(pages: dict[str, Path], name: str) -> None:
    picture = shot(pages[name], "light")
    colours: list[tuple[int, Any]] = picture.getcolors(1 << 24) or []
    largest = max(count for count, _ in colours) / (picture.width * picture.height)
    assert picture.width == DESK
    assert len(colours) > 50, "text and lines are drawn"
    assert largest < 0.97
    blues = sum(count for count, (red, green, blue) in colours if blue > red + 60 and blue > green + 20)
    assert blues > 500, "the stylesheet was taken and charts have their colours"
    assert min(corner(picture)) > 230


def test_dark_where_the_reader_likes_it_dark(pages: dict[str, Path]) -> None:
    dark = shot(pages["run"], "dark", "--blink-settings=preferredColorScheme=0")
    assert max(corner(dark)) < 60
    assert len(dark.getcolors(1 << 24) or []) > 50


def test_it_prints_on_paper(pages: dict[str, Path]) -> None:
    paper = pages["doctor"].with_suffix(".pdf")
    browse(paper.parent, f"--print-to-pdf={paper}", "--no-pdf-header-footer", pages["doctor"].as_uri())
    data = paper.read_bytes()
    assert data.startswith(b"%PDF")
    assert 1 <= len(re.findall(rb"/Type\s*/Page\b", data)) <= 8


def test_a_live_page_follows_its_record(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run-0007", status="running")
    with Dashboard(run) as served:
        follower = served._server.follower
        first = follower.newest()
        write_run(run, status="finished", task="other")
        follower._next_look = 0.0
        answers = iter([first])
        newest = follower.newest
        follower.newest = lambda: next(answers, None) or newest()  # type: ignore[method-assign]
        text = browse(tmp_path, "--dump-dom", served.address, budget_ms=15_000)
    assert '<span class="state good">finished</span>' in text
    assert "<title>Run run-0007 · finished</title>" in text
    assert re.search(r'id="lost"[^>]* hidden', text)
