"""The page of `rlpost report`, opened in a browser: it says what inspect says, and calls nobody."""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import subprocess
import sys
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from playwright.sync_api import sync_playwright
from report_pages import HOSTILE, data_in
from runs import run as run_command
from typer.testing import CliRunner

from rlpost import optional as extras
from rlpost.analysis.inspect.facts import inspect
from rlpost.analysis.report import page
from rlpost.analysis.report.examples import (
    BEST,
    DIFFERENT,
    FOUND,
    RANDOM,
    WORST,
    Groups,
    Limits,
    chosen,
)
from rlpost.analysis.report.run import report
from rlpost.analysis.responses.index import build_index
from rlpost.cli.commands import report as command
from rlpost.display.controls import printable
from rlpost.display.text import number, percent
from rlpost.errors import DataError, ReadWriteError, UsageError
from rlpost.io.staged import StagedFile

SAMPLE = Path(__file__).parents[3] / "sample_data"
RUN = CliRunner()
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
WIDTHS = (390, 1280)
MOST_BYTES = 5_000_000


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


def hostile():
    """Hostile text wherever the data has text: cells, names of columns, metadata."""
    table = pa.table(
        {
            "prompt_id": [HOSTILE, HOSTILE, HOSTILE + "b", HOSTILE + "b"],
            "step": [HOSTILE, HOSTILE, "2", "2"],
            "domain": [HOSTILE, "x", "y", HOSTILE],
            "reward": [1.0, 0.0, 0.5, math.nan],
            "prompt": [HOSTILE] * 4,
            "response": [HOSTILE] * 4,
            "response_tokens": [[HOSTILE, "b"]] * 4,
            "response_mask": [[1, 1], [0, 1], [1, 0], [0, 0]],
            "old_log_probs": [[-1.0, -2.0]] * 4,
            "ref_log_probs": [[-1.5, -2.0]] * 4,
            "advantages": [[1.0, math.inf], [0.5, -1.0], [0.0, 0.0], [1.0, 2.0]],
            HOSTILE.replace("\x00", ""): [HOSTILE] * 4,
        }
    )
    steps = [{"step": HOSTILE, "advantage_clip": {"fraction": 0.5}}, {"step": 1}]
    summary = {"advantage_clip": {"fraction": 0.5, "count": 1e300, "bound": HOSTILE}}
    summary |= {"masked": {HOSTILE: {"rate": 0.5, "responses": 1}, "all": 3}, "steps": steps}
    setting = {
        "options": {"loss": HOSTILE},
        "clip": {"any": {"fraction": 1}},
        "swept": {HOSTILE: 1},
    }
    loss = {"settings": [setting, None, 3, {"clip": HOSTILE}]}
    metadata = {"rlpost.summary": json.dumps(summary), "rlpost.loss_summary": json.dumps(loss)}
    return table.replace_schema_metadata(metadata)


# ---- what the page holds ----


def test_the_policy_allows_only_this_script_and_style(made):
    text = made[1].read_text(encoding="utf-8")
    (found,) = re.findall(r'http-equiv="Content-Security-Policy" content="([^"]*)"', text)
    assert found.startswith("default-src 'none'; ")
    assert "unsafe" not in found
    style = re.findall(r"<style>(.*?)</style>", text, re.DOTALL)[0]
    script = re.findall(r"<script>(.*?)</script>", text, re.DOTALL)[0]
    assert found == page.policy(style, script)
    assert not re.search(r"innerHTML|insertAdjacentHTML|document\.write|eval\(|localStorage", text)


def test_the_page_has_the_advantages_of_inspect(tmp_path):
    path = tmp_path / "grpo.parquet"
    run_command("advantages", SAMPLE / "arithmetic.parquet", path, "-q")
    report([str(path)], tmp_path / "page.html")
    facts = inspect([str(path)]).advantages
    sections = {one["name"]: one for one in data_in(tmp_path / "page.html")["sections"]}
    tiles = {
        tile["label"]: tile["value"]
        for name in ("signal", "distributions")
        for tile in sections[name]["tiles"]
    }
    whole = facts.whole
    assert tiles["Mean advantage"] == number(whole.mean)
    assert [tiles[f"A {sign} 0"] for sign in ">="] == [
        percent(whole.positive_share), percent(whole.zero_share),
    ]  # fmt: skip
    assert tiles["A < 0"] == percent(1 - whole.positive_share - whole.zero_share)
    (chart,) = [x for x in sections["distributions"]["charts"] if x["title"] == "Advantages"]
    (low, high, zeros), *bins = chart["numbers"]["rows"]
    assert [low, high, zeros] == ["0", "0", f"{round(whole.zero_share * whole.count):,}"]
    assert f"0: {percent(whole.zero_share)}" in chart["svg"]
    counts = [int(row[2].replace(",", "")) for row in bins]
    assert sum(counts) + int(zeros.replace(",", "")) == sum(facts.histogram.counts)
    assert sum(own != every for own, every in zip(counts, facts.histogram.counts, strict=True)) == 1


def test_equal_rewards_are_no_zeros_of_a_critic(tmp_path):
    """Groups of equal rewards have advantages other than 0 if values are their baseline."""
    run_command(
        "advantages",
        SAMPLE / "arithmetic.parquet",
        tmp_path / "gae.parquet",
        "--estimator",
        "gae",
        "-q",
    )
    report([str(tmp_path / "gae.parquet")], tmp_path / "page.html")
    data = data_in(tmp_path / "page.html")
    tiles = {tile["label"]: tile for tile in data["sections"][0]["tiles"]}
    assert tiles["A = 0"]["value"] == "0 %"
    assert tiles["Groups with equal rewards"]["value"] == "21"
    assert "group baseline" in tiles["Groups with equal rewards"]["note"]
    assert "--estimator gae" in data["recipe"]
    assert data["verdict"]["severity"] == "ok"


def test_a_column_named_advantage_is_shown(tmp_path):
    columns = {"prompt_id": ["a", "a"], "reward": [1.0, 0.0], "advantage": [[0.5, 0.25], [-1.0]]}
    pq.write_table(pa.table(columns), tmp_path / "a.parquet")
    assert report([str(tmp_path / "a.parquet")], tmp_path / "page.html").advantages.whole.count == 3


def test_tables_leave_out_columns_without_numbers(tmp_path):
    columns = {"prompt_id": ["a", "b"], "step": [0, 1], "reward": [1.0, 0.0]}
    pq.write_table(pa.table(columns), tmp_path / "a.parquet")
    report([str(tmp_path / "a.parquet")], tmp_path / "page.html")
    sections = {one["name"]: one for one in data_in(tmp_path / "page.html")["sections"]}
    (table,) = sections["steps"]["tables"]
    assert table["headings"] == ["step", "responses", "reward", "pass rate"]
    assert table["rows"] == [["0", "1", "1.000", "100 %"], ["1", "1", "0", "0 %"]]


def test_a_sampled_group_shows_the_number_of_its_responses(data):
    counts = {"shown": 0, "whole": 0}
    for group in data["groups"]:
        shown = len(group["responses"])
        if shown < 8:
            assert group["text"].startswith(f"{shown} of 8 responses shown")
        counts["shown" if shown < 8 else "whole"] += 1
    assert counts["shown"]


def test_chosen_rows_fit_their_reasons(made):
    index = build_index([str(made[0])], {})
    groups = Groups(index)
    choice = chosen(index, groups, made[2], 5, 0)
    by_reason = {
        reason: [row for row, reasons in choice.reasons.items() if reason in reasons]
        for reason in (BEST, WORST, FOUND)
    }
    ranked = np.sort(index.reward)
    assert sorted(index.reward[by_reason[BEST]]) == ranked[-5:].tolist()
    assert sorted(index.reward[by_reason[WORST]]) == ranked[:5].tolist()
    deviations = [index.reward[groups.rows(code)].std() for code in range(groups.count)]
    assert [deviations[code] for code in choice.different] == sorted(deviations)[::-1][:2]
    evidence = {one.row for finding in made[2].findings for one in finding.evidence}
    assert by_reason[FOUND]
    assert set(by_reason[FOUND]) <= evidence
    assert chosen(index, groups, made[2], 5, 0).reasons == choice.reasons
    assert chosen(index, groups, made[2], 5, 1).reasons != choice.reasons


def test_the_same_input_gives_the_same_page(made, tmp_path):
    report([str(made[0])], tmp_path / "again.html")
    assert (tmp_path / "again.html").read_bytes() == made[1].read_bytes()


def test_evidence_of_the_second_file_links_to_its_row(tmp_path):
    for name, mask in (("a", [[1, 1], [1, 1]]), ("b", [[1, 1], [0, 0]])):
        columns = {"prompt_id": ["p", "p"], "reward": [1.0, 0.0], "response_mask": mask}
        pq.write_table(pa.table(columns), tmp_path / f"{name}.parquet")
    report([str(tmp_path)], tmp_path / "page.html")
    found = data_in(tmp_path / "page.html")
    (finding,) = [one for one in found["findings"] if one["name"] == "empty_masks"]
    assert [one["row"] for one in finding["evidence"]] == [3]
    shown = [r for group in found["groups"] for r in group["responses"] if FOUND in r["reasons"]]
    assert [one["row"] for one in shown] == [3]


# ---- inputs and outputs ----

ODD = {
    "only text": {"input": ["a", "a"], "output": ["x", "y"], "score": [0.0, 1.0], "step": [1, 1]},
    "nothing known": {"x": [1, 2]},
    "one row": {"prompt_id": ["a"], "reward": [1.0]},
    "nulls": {
        "prompt_id": ["a", "a", None, "b"],
        "reward": [1.0, None, 0.0, math.nan],
        "response_mask": [[1, 1], None, [], [1]],
        "old_log_probs": [[-1.0, None], [], [], [math.inf]],
    },
    "scalar advantages": {"prompt_id": ["a", "a"], "reward": [1.0, 0.0], "advantages": [0.5, -0.5]},
    "advantages of text": {"prompt_id": ["a"], "reward": [1.0], "advantages": ["high"]},
    "zero advantages": {"prompt_id": ["a"], "reward": [1.0], "advantages": [[0.0, 0.0]]},
    "unequal lists": {
        "prompt_id": ["a", "a"],
        "reward": [1.0, 0.0],
        "response_mask": [[1, 1], [1]],
        "old_log_probs": [[-1.0], [-1.0]],
        "advantages": [[1.0], [0.5, 0.2]],
    },
}


@pytest.mark.parametrize("case", ODD)
def test_unusual_files_have_a_page_too(browser, case, tmp_path):
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table(ODD[case]), path)
    facts = report([str(path)], tmp_path / "page.html")
    with opened(browser, tmp_path / "page.html") as seen:
        open_everything(seen)
        assert seen.locator('[data-key="responses"] .value').inner_text() == str(facts.responses)
        assert seen.locator(".finding").count() == len(facts.findings)
        ran = sum(one.not_run is None for one in facts.checks)
        assert f"{ran} of {len(facts.checks)} checks" in seen.locator("#verdict").inner_text()
        for one in facts.checks:
            if one.not_run is not None:
                lines = "\n".join(seen.locator("#checks p").all_inner_texts())
                assert f"{one.not_run}: " in lines
        results = seen.locator("#checks tbody tr").all_inner_texts()
        assert len(results) == len(facts.checks)
        for one, text in zip(facts.checks, results, strict=True):
            assert one.name in text
            result = "problem found" if one.found else one.not_run or "no problem"
            assert result in text


def test_statistics_of_groups_count_a_rollout_once(tmp_path):
    calculator = SAMPLE / "calculator.parquet"
    chosen = {"rollout_reward": "last"}
    facts = report([str(calculator)], tmp_path / "page.html", **chosen)
    assert facts.groups == inspect([calculator], **chosen).groups
    assert "of 8 rollouts, by step, prompt_id" in (tmp_path / "page.html").read_text()


def test_a_page_of_many_responses_steps_and_domains_is_small(tmp_path):
    rows = 40_000
    place = np.arange(rows)
    lengths = np.full(rows, 4)
    offsets = pa.array(np.concatenate([[0], lengths.cumsum()]).astype(np.int32))
    numbers = np.random.default_rng(0).normal(-1, 0.3, 4 * rows).astype(np.float32)
    values = pa.ListArray.from_arrays(offsets, pa.array(numbers))
    columns = {
        "prompt_id": pa.array([f"prompt-{x}" for x in place // 8]),
        "step": place // 4,
        "domain": pa.array([f"domain-{x}" for x in place % 3000]),
        "reward": numbers[:rows].astype(np.float64),
        "old_log_probs": values,
        "advantages": values,
    }
    pq.write_table(pa.table(columns), tmp_path / "a.parquet")
    report([str(tmp_path / "a.parquet")], tmp_path / "page.html")
    assert (tmp_path / "page.html").stat().st_size < MOST_BYTES / 2


def test_a_page_of_long_responses_is_small(tmp_path):
    rows, tokens = 64, 5_000
    numbers = np.random.default_rng(0).normal(-1, 0.3, tokens).astype(np.float32)
    text = "\x01<&語" * 50_000
    columns = {
        "prompt_id": [text + str(x // 4) for x in range(rows)],
        "reward": np.linspace(0, 1, rows),
        "prompt": [text] * rows,
        "response": [text] * rows,
        "response_mask": pa.array([[1] * tokens] * rows, pa.list_(pa.uint8())),
        "response_tokens": [["\x01<&語" * 20] * tokens] * rows,
        "old_log_probs": pa.array([numbers] * rows),
        "ref_log_probs": pa.array([numbers] * rows),
        "advantages": pa.array([numbers] * rows),
    } | {f"field{x}": [text[:1000]] * rows for x in range(60)}
    pq.write_table(pa.table(columns), tmp_path / "a.parquet")
    report([str(tmp_path / "a.parquet")], tmp_path / "page.html", examples=20)
    assert (tmp_path / "page.html").stat().st_size < MOST_BYTES
    found = data_in(tmp_path / "page.html")
    one = found["groups"][0]["responses"][0]
    assert 0 < len(one["pieces"]) <= Limits.tokens
    assert len(one["pieces"]) + one["left_out"] == tokens


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


@pytest.mark.parametrize("option", ["-o", None])
def test_the_command_ends_with_what_it_wrote(option, made, tmp_path):
    target = tmp_path / "page.html"
    done = run_command("report", made[0], *([option] if option else []), target)
    assert (done.code, done.out) == (0, "")
    last = done.err.splitlines()[-1]
    assert last.startswith(f"✓ {target} ")
    assert "512 responses" in last


def test_a_report_without_a_file_is_an_error(made):
    done = run_command("report", made[0])
    assert done.code == 2
    assert f"rlpost report {made[0]} report.html" in done.err


def test_an_existing_page_is_kept_without_overwrite(made, tmp_path):
    target = tmp_path / "page.html"
    target.write_text("mine")
    with pytest.raises(UsageError, match="exists already; --overwrite"):
        report([str(made[0])], target)
    assert target.read_text() == "mine"
    report([str(made[0])], target, overwrite=True)
    assert data_in(target)["groups"]


def test_wrong_outputs_and_empty_inputs_are_errors_before_the_work(made, tmp_path):
    with pytest.raises(UsageError, match="is a directory"):
        report([str(made[0])], tmp_path)
    with pytest.raises(ReadWriteError, match="no directory"):
        report([str(made[0])], tmp_path / "missing" / "page.html")
    with pytest.raises(UsageError, match="same file"):
        report([str(made[0])], made[0], overwrite=True)
    pq.write_table(pq.read_table(made[0]).slice(0, 0), tmp_path / "empty.parquet")
    with pytest.raises(DataError, match="the input has no rows"):
        report([str(tmp_path / "empty.parquet")], tmp_path / "page.html")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty.parquet"]


def test_a_failed_write_leaves_nothing_behind(made, tmp_path, monkeypatch):
    def broken(staged):
        raise ReadWriteError(f"{staged.target}: cannot be written: disk full")

    monkeypatch.setattr(StagedFile, "complete", broken)
    with pytest.raises(ReadWriteError, match="disk full"):
        report([str(made[0])], tmp_path / "page.html")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("missing", ["altair", "vl_convert"])
def test_without_the_extra_the_error_has_the_install_command(missing, made, tmp_path, monkeypatch):
    found = extras.find_spec
    monkeypatch.setattr(extras, "find_spec", lambda name: None if name == missing else found(name))
    done = RUN.invoke(command.app, [str(made[0]), "-o", str(tmp_path / "page.html")])
    assert done.exception.exit_code == 5
    assert "pip install 'rlpost[report]'" in str(done.exception)


def test_reporting_without_a_recipe_does_not_import_torch(made, tmp_path):
    path = tmp_path / "recorded.parquet"
    pq.write_table(pq.read_table(made[0]).replace_schema_metadata(), path)
    code = (
        "import sys; from rlpost.analysis.report.run import report;"
        f"report([{str(path)!r}], {str(tmp_path / 'page.html')!r});"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
