"""The page of `rlpost report` in Chromium: it says what inspect says, and calls nobody."""

from __future__ import annotations

import json
import os
import re
import shutil
from contextlib import contextmanager
from itertools import pairwise

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from playwright.sync_api import sync_playwright
from report_pages import HOSTILE, hostile
from runs import run as run_command

from rlpost.analysis.inspect.facts import inspect
from rlpost.analysis.report.examples import BEST, DIFFERENT, FOUND, RANDOM, WORST, Limits
from rlpost.analysis.report.run import report
from rlpost.display.controls import printable
from rlpost.display.text import number, percent

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


def test_numbers_equal_those_of_inspect(browser, made):
    source, path, _ = made
    facts = json.loads(run_command("inspect", source, "--format", "json").out)
    with opened(browser, path) as seen:
        tiles = seen.locator("[data-key]")
        pairs = [
            (tiles.nth(i).get_attribute("data-key"), tiles.nth(i).locator(".value").inner_text())
            for i in range(tiles.count())
        ]
    assert len(pairs) > 15
    for key, text in pairs:
        value = facts
        for part in key.split("."):
            value = value[int(part)] if isinstance(value, list) else value[part]
        ways = {f"{value:,}"} if isinstance(value, int) else {number(value), percent(value)}
        assert text in ways, key


def test_tables_of_charts_equal_those_of_inspect(browser, made):
    source, path, _ = made
    facts = inspect([source])
    with opened(browser, path) as seen:

        def rows(title):
            chart = seen.locator(f'figure:has(h3:text-is("{title}"))')
            chart.locator("summary").click()
            cells = chart.locator("tbody tr")
            cells.first.wait_for()
            return [cells.nth(i).inner_text().split("\t") for i in range(cells.count())]

        assert rows("Mean reward") == [
            [str(one.label), number(one.reward.mean)] for one in facts.steps
        ]
        assert rows("Rewards") == [[x, f"{n:,}"] for x, n in facts.rewards.values.items()]
        assert [int(n) for *_, n in rows("Lengths")] == facts.lengths.histogram.counts
        assert rows("Pass@k") == [[str(x.k), percent(x.value)] for x in facts.groups.pass_at_k]
        assert [int(n) for _, n in rows("Pass rates of groups")] == [
            one.groups for one in facts.groups.pass_rates
        ]
        listed = seen.locator(".finding").evaluate_all("all => all.map(one => one.dataset.name)")
    assert listed == [finding.name for finding in facts.findings]
    assert "engine_mismatch" in listed


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


def test_the_keyboard_alone_opens_groups(browser, made):
    with opened(browser, made[1]) as seen:
        summary = seen.locator("details.group > summary").first
        summary.focus()
        seen.keyboard.press("Enter")
        seen.locator("details.group[open] .response").first.wait_for()
        seen.keyboard.press("Tab")
        assert seen.evaluate("document.activeElement.closest('details.group[open]') !== null")


def test_examples_are_chosen_by_kind(browser, made, data):
    with opened(browser, made[1]) as seen:
        for reason in (BEST, WORST, DIFFERENT, RANDOM, FOUND):
            button = seen.locator("#examples > .buttons button", has_text=re.compile(f"^{reason}$"))
            button.click()
            wanted = sum(
                any(reason in r["reasons"] for r in group["responses"]) for group in data["groups"]
            )
            assert 0 < wanted < len(data["groups"])
            assert seen.locator("details.group:visible").count() == wanted


def test_a_finding_links_to_its_row(browser, made):
    with opened(browser, made[1]) as seen:
        link = seen.locator(".finding a").first
        row = link.get_attribute("href").removeprefix("#row-")
        link.click()
        response = seen.locator(f'details.response[data-row="{row}"]')
        assert response.get_attribute("open") is not None
        response.locator(".token").first.wait_for()
        assert seen.evaluate("document.activeElement.parentElement.dataset.row") == row


def test_the_theme_follows_the_system_until_the_button_is_used(browser, made):
    back = "getComputedStyle(document.body).backgroundColor"
    mark = "getComputedStyle(document.querySelector('svg [aria-roledescription=bar]')).fill"
    with opened(browser, made[1], theme="dark") as seen:
        dark = seen.evaluate(back), seen.evaluate(mark)
        seen.emulate_media(color_scheme="light")
        seen.locator('html[data-theme="light"]').wait_for()
        light = seen.evaluate(back), seen.evaluate(mark)
        assert dark[0] != light[0]
        assert dark[1] != light[1]
        button = seen.locator("#theme")
        assert button.get_attribute("aria-label") == "Switch to dark colours"
        button.click()
        assert (seen.evaluate(back), seen.evaluate(mark)) == dark
        seen.emulate_media(color_scheme="dark")
        seen.emulate_media(color_scheme="light")
        assert seen.evaluate(back) == dark[0]
        seen.reload()
        assert seen.evaluate(back) == light[0]


def test_marks_show_their_numbers(browser, made):
    facts = made[2]
    with opened(browser, made[1]) as seen:
        dot = seen.locator("figure").first.locator('[aria-roledescription="point"]').first
        dot.hover()
        step = facts.steps[0]
        assert seen.locator("#tip").inner_text() == f"step {step.label}: {number(step.reward.mean)}"


@pytest.mark.parametrize("width", WIDTHS)
def test_nothing_scrolls_sideways(browser, made, width):
    with opened(browser, made[1], width=width) as seen:
        open_everything(seen)
        assert seen.evaluate("document.documentElement.scrollWidth") == width
        if width == WIDTHS[0]:
            lefts = seen.locator(".chart").evaluate_all("x => x.map(one => one.offsetLeft)")
            assert len(set(lefts)) == 1, "a phone shows one column"


CONTRAST = """() => {
  const parts = (text) => text.match(/[\\d.]+/g).map(Number);
  const light = ([r, g, b]) => [r, g, b].map((x) => x / 255)
    .map((x) => (x <= 0.04045 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4))
    .reduce((sum, x, i) => sum + x * [0.2126, 0.7152, 0.0722][i], 0);
  const backOf = (element) => {
    for (let one = element; one; one = one.parentElement) {
      const colour = parts(getComputedStyle(one).backgroundColor);
      if (colour.length === 3 || colour[3] === 1) return colour;
    }
    return [255, 255, 255];
  };
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  const low = [];
  while (walker.nextNode()) {
    const element = walker.currentNode.parentElement;
    const plain = !['SCRIPT', 'STYLE', 'NOSCRIPT'].includes(element.tagName);
    if (!walker.currentNode.textContent.trim() || !plain || element.closest('#tip')) continue;
    const style = getComputedStyle(element);
    const colour = element.closest('svg') ? style.fill : style.color;
    const [a, b] = [light(parts(colour)), light(backOf(element))].sort((x, y) => y - x);
    const ratio = (a + 0.05) / (b + 0.05);
    if (ratio < 4.5) low.push(`${walker.currentNode.textContent.slice(0, 40)}: ${ratio}`);
  }
  return low;
}"""


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_text_has_contrast_in_both_themes(browser, made, theme):
    with opened(browser, made[1], theme=theme) as seen:
        open_everything(seen)
        assert seen.evaluate(CONTRAST) == []


def test_the_page_has_landmarks_and_labels_for_screen_readers(browser, made):
    with opened(browser, made[1]) as seen:
        levels = seen.locator("h1, h2, h3, h4").evaluate_all("x => x.map(one => +one.tagName[1])")
        assert levels[0] == 1
        assert levels.count(1) == 1
        assert all(after - before <= 1 for before, after in pairwise(levels))
        unnamed = """x => x.filter(one =>
          !(one.getAttribute('aria-label') || one.textContent.trim())).length"""
        named = "button, a, summary, svg[role=img], [role=img], nav, section, table, [tabindex]"
        assert seen.locator(named).evaluate_all(unnamed) == 0
        assert seen.locator("html").get_attribute("lang") == "en"
        ids = seen.locator("[id]").evaluate_all("x => x.map(one => one.id)")
        assert len(ids) == len(set(ids))
        links = seen.locator("nav a").evaluate_all("x => x.map(one => one.hash.slice(1))")
        assert set(links) <= set(ids)


@pytest.mark.parametrize("width", WIDTHS)
def test_text_of_the_data_is_never_html(browser, tmp_path, width):
    path = tmp_path / "hostile.parquet"
    pq.write_table(hostile(), path)
    report([str(path)], tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert text.count("</script>") == 2
    assert "<img" not in text
    with opened(browser, tmp_path / "page.html", width=width) as seen:
        open_everything(seen)
        assert seen.evaluate("window.hit") is None
        assert seen.locator("img, main b, iframe, object, svg script, svg a").count() == 0
        first = seen.locator(".group .text").first.evaluate("one => one.textContent")
        assert first == printable(HOSTILE)
        assert not re.search(r"[\x00\x1b\x80-\x9f\u202a-\u202e\u2066-\u2069]", first)
        texts = seen.locator("pre.text").evaluate_all("x => x.map(one => one.textContent)")
        assert texts.count(printable(HOSTILE)) == len(texts)
        assert seen.evaluate("document.documentElement.scrollWidth") == width
        assert seen.get_by_text("could not be drawn").count() == 0
        assert seen.locator("svg").count() > 5
        labels = seen.locator("li, summary, td, th").evaluate_all("x => x.map(o => o.textContent)")
        assert any("onerror" in label for label in labels)
        assert not [label for label in labels if re.search(r"[\x00\x1b\u202e]", label)]


def test_the_page_shows_how_many_tokens_are_left_out(browser, tmp_path):
    tokens = 3 * Limits.tokens
    columns = {
        "prompt_id": ["a"],
        "reward": [1.0],
        "response_ids": [list(range(tokens))],
        "old_log_probs": [[-1.0] * tokens],
    }
    pq.write_table(pa.table(columns), tmp_path / "a.parquet")
    report([str(tmp_path / "a.parquet")], tmp_path / "page.html")
    with opened(browser, tmp_path / "page.html") as seen:
        open_everything(seen)
        assert f"{tokens - Limits.tokens} tokens left out" in seen.locator(".strip").inner_text()
        seen.locator(".strip").focus()
        seen.keyboard.press("End")
        assert f"token {tokens - 1} “{tokens - 1}”" in seen.locator(".readout").inner_text()
