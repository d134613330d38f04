"""Pages in a real browser: nothing overflows on a phone or a desk, no error, no request, light,
dark and printed.

They need playwright and a Chromium: one in the path, of ``FEDLSG_BROWSER``, or playwright's own.
"""

import os
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fedlsg.simulations.report.drawing.chart import Chart, Series
from fedlsg.simulations.report.pages.figure import interactive
from fedlsg.simulations.report.pages.page import Page, sections
from fedlsg.simulations.report.pages.template import render
from fedlsg.simulations.storage.results import read_run
from tests.simulations.attacks.test_membership import made
from tests.simulations.support.every_page import every_page
from tests.simulations.support.runs import pages, stopped_after

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")

pytestmark = pytest.mark.browser

WIDTHS = (400, 900, 1400)
SCHEMES = ("light", "dark")
MOST_BYTES = 1_000_000
KINDS = (
    "run",
    "unfinished",
    "compare",
    "compare-bytes",
    "search",
    "membership",
    "attack",
    "partition",
    "audit",
    "inspect",
)
ARGUMENTS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


def browser_path(own: str) -> str | None:
    """A Chromium of this machine; ``own`` is where playwright would have one."""
    named = [os.environ.get("FEDLSG_BROWSER", "")]
    named += [
        shutil.which(name) or "" for name in ("chromium", "chromium-browser", "google-chrome")
    ]
    return next((path for path in (*named, own) if path and Path(path).exists()), None)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as running:
        path = browser_path(running.chromium.executable_path)
        if path is None:
            pytest.skip("no Chromium in the path, and none of playwright's own")
        started = running.chromium.launch(executable_path=path, args=list(ARGUMENTS))
        yield started
        started.close()


@pytest.fixture(scope="module")
def made_pages(browser, small, tmp_path_factory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    with pages(written=False):
        stopped = stopped_after(1, folder / "stopped")
    return every_page(folder, small, read_run(stopped.path), made(shift=2.0, examples=200))


class Visit:
    """One page in the browser: what it says on the console, what it asks the network for, and how
    wide it is.
    """

    def __init__(self, browser: Any, path: Path) -> None:
        self.tab = browser.new_page()
        self.said: list[str] = []
        self.asked: list[str] = []
        self.tab.on("console", lambda message: self.said.append(f"{message.type}: {message.text}"))
        self.tab.on("pageerror", lambda error: self.said.append(str(error)))
        self.tab.on("request", lambda request: self.asked.append(request.url))
        self.tab.goto(path.as_uri())
        self.tab.evaluate("document.querySelectorAll('details').forEach(one => one.open = true)")

    def overflow(self) -> dict[str, int]:
        """Pixels by which the page is wider than the window, by width and scheme; empty where it
        fits.
        """
        found = {}
        for width in WIDTHS:
            self.tab.set_viewport_size({"width": width, "height": 800})
            for scheme in SCHEMES:
                self.tab.emulate_media(color_scheme=scheme)
                more = self.tab.evaluate(
                    "document.documentElement.scrollWidth - document.documentElement.clientWidth"
                )
                if more > 0:
                    found[f"{width} {scheme}"] = more
        return found

    @property
    def requests(self) -> list[str]:
        """What is neither the page itself nor in it."""
        return [url for url in self.asked[1:] if not url.startswith("data:")]


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_page_fits_and_is_silent(kind, browser, made_pages):
    visit = Visit(browser, made_pages[kind])
    assert visit.overflow() == {}
    assert visit.said == []
    assert visit.requests == []
    assert made_pages[kind].stat().st_size < MOST_BYTES
    assert visit.tab.locator("main, header, footer, h1").count() == 4
    assert visit.tab.locator("svg[role=img]:not([aria-label])").count() == 0
    assert visit.tab.evaluate(
        "new Set([...document.querySelectorAll('[id]')].map(e => e.id)).size"
    ) == (visit.tab.locator("[id]").count()), "an id is used twice"
    visit.tab.close()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("planted", "found"),
    [
        ("<div style='width: 1500px'>wide</div>", "overflow"),
        ("<script>console.error('planted')</script>", "said"),
        ("<script>nothing()</script>", "said"),
        ("<img src='http://127.0.0.1:9/planted.png'>", "requests"),
    ],
)
def test_a_planted_fault_is_found(planted, found, browser, made_pages, tmp_path):
    """Negative control."""
    path = tmp_path / "planted.html"
    path.write_text(made_pages["run"].read_text().replace("</main>", planted + "</main>"))
    visit = Visit(browser, path)
    assert {"overflow": visit.overflow(), "said": visit.said, "requests": visit.requests}[found]
    visit.tab.close()


@pytest.mark.slow
def test_the_dark_is_dark_and_paper_is_light_with_all_settings(browser, made_pages):
    visit = Visit(browser, made_pages["run"])
    ground = "getComputedStyle(document.body).backgroundColor"
    visit.tab.evaluate("document.querySelectorAll('details').forEach(one => one.open = false)")
    settings = visit.tab.locator("details dl").first
    wanted = {"light": "rgb(255, 255, 255)", "dark": "rgb(21, 24, 28)"}
    for scheme, medium, colour in (
        ("light", "screen", "light"),
        ("dark", "screen", "dark"),
        ("dark", "print", "light"),
    ):
        visit.tab.emulate_media(color_scheme=scheme, media=medium)
        # a busy browser takes its time
        visit.tab.wait_for_function(f"{ground} === '{wanted[colour]}'")
        settings.wait_for(state="visible" if medium == "print" else "hidden")
    visit.tab.close()


TOOLTIP = "Chart.getChart(document.querySelectorAll('.canvas canvas')[{}]).tooltip"
SHOWN = f"{TOOLTIP}.opacity && {TOOLTIP}.body.flatMap(part => part.lines)"
EMPTY = (
    "Chart.getChart(document.querySelectorAll('.canvas canvas')[{}]).data.datasets.every(one => "
    "!one.data.length)"
)
SPAN = (
    "(one => one.scales.x.max - "
    "one.scales.x.min)(Chart.getChart(document.querySelectorAll('.canvas canvas')[{}]))"
)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_figures_answer_to_pointer_buttons_and_keys(kind, browser, made_pages):
    """Hover, zoom by dragging and by buttons, the series of a legend, scales: all charts of a
    page.
    """
    visit = Visit(browser, made_pages[kind])
    tab, charts = visit.tab, visit.tab.locator(".canvas canvas")
    assert charts.count() == tab.locator(".panel").count() > 0
    assert tab.locator("svg.still:visible").count() == 0
    for at in range(min(charts.count(), 4)):
        chart, controls = charts.nth(at), tab.locator(".panel").nth(at).locator(".controls button")
        chart.scroll_into_view_if_needed()
        box = chart.bounding_box()
        tab.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
        chart.press("ArrowRight")
        empty = tab.evaluate(EMPTY.format(at))
        assert empty or tab.evaluate(SHOWN.format(at, at)), "values are shown"
        assert empty or chart.locator("xpath=../../p[@aria-live]").text_content(), "and said aloud"
        whole = tab.evaluate(SPAN.format(at))
        controls.get_by_text("+", exact=True).click()
        assert tab.evaluate(SPAN.format(at)) < whole
        controls.get_by_text("reset").click()
        assert tab.evaluate(SPAN.format(at)) == pytest.approx(whole)
        tab.mouse.move(box["x"] + 0.4 * box["width"], box["y"] + 0.3 * box["height"])
        tab.mouse.down()
        tab.mouse.move(box["x"] + 0.7 * box["width"], box["y"] + 0.6 * box["height"], steps=4)
        tab.mouse.up()
        assert tab.evaluate(SPAN.format(at)) < whole, "a dragged frame is zoomed to"
        controls.get_by_text("reset").click()
        for button in controls.get_by_text("log").all():
            before = button.get_attribute("aria-pressed")
            button.click()
            assert button.get_attribute("aria-pressed") != before
            button.click()
    for key in tab.locator(".keys button").all()[:3]:
        visible = (
            "Object.values(Chart.instances).reduce((sum, one) => sum + "
            "one.getVisibleDatasetCount(), 0)"
        )
        before = tab.evaluate(visible)
        key.click()
        assert key.get_attribute("aria-pressed") == "false"
        assert tab.evaluate(visible) < before
        key.click()
        assert tab.evaluate(visible) == before
    assert visit.said == []
    assert visit.requests == []
    tab.close()


def test_a_page_without_scripts_shows_everything(browser, made_pages):
    context = browser.new_context(java_script_enabled=False)
    tab = context.new_page()
    for kind in ("run", "compare"):
        tab.goto(made_pages[kind].as_uri())
        assert tab.locator("svg.still:visible").count() == tab.locator(".panel").count() > 0
        assert tab.locator("canvas, button, input").count() == 0
    context.close()


def test_the_keyboard_reaches_links_tables_and_settings(browser, made_pages):
    visit = Visit(browser, made_pages["compare"])
    visit.tab.set_viewport_size({"width": 400, "height": 800})
    reached = set()
    for _ in range(60):
        visit.tab.keyboard.press("Tab")
        reached.add(
            visit.tab.evaluate("document.activeElement.className || document.activeElement.tagName")
        )
    assert {"A", "BUTTON", "INPUT", "CANVAS", "scroll"} <= reached
    visit.tab.close()


@pytest.mark.slow
def test_a_later_mark_covers_an_earlier_one(browser, tmp_path):
    marks = tuple(
        Series(name="a", x=(1,), y=(1,), marker="o", filled=filled) for filled in (False, True)
    )
    page = Page(
        title="t",
        lead="l",
        sections=sections(("s", [interactive([Chart(title="t", series=marks)], "c")])),
    )
    (tmp_path / "page.html").write_text(render(page))
    visit = Visit(browser, tmp_path / "page.html")
    first_on_top = (
        "() => "
        "Chart.getChart(document.querySelector('canvas')).getSortedVisibleDatasetMetas().map(m => "
        "m.index)"
    )
    visit.tab.wait_for_selector("canvas")
    assert visit.tab.evaluate(first_on_top) == [1, 0]


@pytest.mark.slow
def test_the_band_of_a_dashed_curve_has_no_line_of_its_own(browser, tmp_path):
    """Its line would cover the dashes: a dashed curve looked like any other."""
    curve = Series(name="a", x=(1, 2), y=(1, 2), dashes="--")
    band = replace(curve, low=(0.5, 1.5), high=(1.5, 2.5), kind="band", dashes="-")
    page = Page(
        title="t",
        lead="l",
        sections=sections(("s", [interactive([Chart(title="t", series=(curve, band))], "c")])),
    )
    (tmp_path / "page.html").write_text(render(page))
    visit = Visit(browser, tmp_path / "page.html")
    lines = (
        "() => Chart.getChart(document.querySelector('canvas')).data.datasets.map(one => "
        "[one.showLine, one.borderDash])"
    )
    visit.tab.wait_for_selector("canvas")
    assert visit.tab.evaluate(lines) == [[True, [6, 3]], [False, []]]
