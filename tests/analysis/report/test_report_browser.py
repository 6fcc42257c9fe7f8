"""The page of `rlpost report` in Chromium: it says what inspect says, and calls nobody."""

from __future__ import annotations

import os
import re
import shutil
from contextlib import contextmanager

import pyarrow.parquet as pq
import pytest
from report_pages import HOSTILE, hostile

import rlpost
from rlpost.display.controls import printable

pytestmark = pytest.mark.nightly
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
WIDTHS = (390, 1280)


@pytest.fixture(scope="module")
def browser():
    """Headless Chromium."""
    if CHROMIUM is None:
        if os.environ.get("CI") == "true":
            pytest.fail("the report is tested in a browser: install chromium")
        pytest.skip("needs chromium: apt-get install chromium")
    from playwright.sync_api import sync_playwright  # noqa: PLC0415 - of the extra nightly

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM)
        yield browser
        browser.close()


@contextmanager
def opened(browser, path, *, theme="light", width=1280):
    """The page; it may say nothing on the console, and ask for nothing but itself."""
    context = browser.new_context(
        viewport={"width": width, "height": 900}, color_scheme=theme, reduced_motion="reduce"
    )
    wrong = []
    seen = context.new_page()
    seen.on("console", lambda message: wrong.append(f"{message.type}: {message.text}"))
    seen.on("pageerror", lambda error: wrong.append(f"error: {error}"))
    seen.on("dialog", lambda dialog: wrong.append(f"dialog: {dialog.message}"))
    url = path.as_uri()
    seen.on(
        "request",
        lambda request: (
            None
            if request.url.split("#")[0] == url or request.url.startswith("data:")
            else wrong.append(f"request: {request.url}")
        ),
    )
    try:
        seen.goto(url)
        yield seen
        assert wrong == []
    finally:
        context.close()


OPEN = """() => document.querySelectorAll('details:not([open])').forEach((one) => {
  one.open = true;
  one.fill?.();
})"""


def open_everything(seen):
    """Every `details` of the page, and those that open with them."""
    while seen.locator("details:not([open])").count():
        seen.evaluate(OPEN)


# ---- in the browser ----


def test_groups_open_to_responses_and_responses_to_tokens(browser, made, data):
    with opened(browser, made[1]) as seen:
        groups = seen.locator("details.group")
        assert groups.count() == len(data["groups"])
        groups.first.locator("> summary").click()
        response = groups.first.locator("details.response").first
        response.locator("> summary").click()
        own = data["groups"][0]["responses"][0]
        tokens = response.locator(".token")
        tokens.first.wait_for()
        assert tokens.count() == len(own["pieces"])
        assert tokens.all_inner_texts() == own["pieces"]

        colours = {}
        for measure in ("logprob", "kl", "advantage"):
            button = response.locator(f'button[data-measure="{measure}"]')
            button.click()
            assert button.get_attribute("aria-pressed") == "true"
            found = tokens.evaluate_all("all => all.map(one => one.style.backgroundColor)")
            colours[measure] = found
            for value, colour in zip(own["numbers"][measure], found, strict=True):
                assert (colour == "") == (step_of(data["scales"][measure], value) == "")
        assert colours["logprob"] != colours["advantage"]

        response.locator(".strip").focus()
        for _ in range(3):
            seen.keyboard.press("ArrowRight")
        said = response.locator(".readout").inner_text()
        assert said.startswith("token 2 ")
        assert f"log-prob {own['numbers']['logprob'][2]}" in said


def step_of(scale, value):
    at = abs(value) if scale["size"] else value
    return [s["colour"] for s in scale["steps"] if s["above"] is None or at >= s["above"]][-1]


def test_a_finding_links_to_its_row(browser, made):
    with opened(browser, made[1]) as seen:
        link = seen.locator(".finding a").first
        row = link.get_attribute("href").removeprefix("#row-")
        link.click()
        response = seen.locator(f'details.response[data-row="{row}"]')
        assert response.get_attribute("open") is not None
        response.locator(".token").first.wait_for()
        assert seen.evaluate("document.activeElement.parentElement.dataset.row") == row


@pytest.mark.parametrize("width", WIDTHS)
def test_nothing_scrolls_sideways(browser, made, width):
    with opened(browser, made[1], width=width) as seen:
        open_everything(seen)
        assert seen.evaluate("document.documentElement.scrollWidth") == width
        if width == WIDTHS[0]:
            lefts = seen.locator(".rlpost-charts figure").evaluate_all(
                "x => x.map(one => one.offsetLeft)"
            )
            assert len(set(lefts)) == 1, "a phone shows one column"


@pytest.mark.parametrize("width", WIDTHS)
def test_text_of_the_data_is_never_html(browser, tmp_path, width):
    path = tmp_path / "hostile.parquet"
    pq.write_table(hostile(), path)
    rlpost.report([str(path)], tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert text.count("</script>") == 2
    assert "<img" not in text
    with opened(browser, tmp_path / "page.html", width=width) as seen:
        open_everything(seen)
        assert seen.evaluate("window.hit") is None
        foreign = "img, main b:not(figcaption > b, p > b), iframe, object, svg script, svg a"
        assert seen.locator(foreign).count() == 0
        first = seen.locator(".group .text").first.evaluate("one => one.textContent")
        assert first == printable(HOSTILE)
        assert not re.search(r"[\x00\x1b\x80-\x9f\u202a-\u202e\u2066-\u2069]", first)
        texts = seen.locator("pre.text").evaluate_all("x => x.map(one => one.textContent)")
        assert texts.count(printable(HOSTILE)) == len(texts)
        assert seen.evaluate("document.documentElement.scrollWidth") == width
        assert seen.locator("svg").count() > 5
        labels = seen.locator("li, summary, td, th").evaluate_all("x => x.map(o => o.textContent)")
        assert any("onerror" in label for label in labels)
        assert not [label for label in labels if re.search(r"[\x00\x1b\u202e]", label)]
