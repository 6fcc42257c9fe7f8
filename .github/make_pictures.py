"""Make README's pictures from real runs: `python .github/make_pictures.py`, in the repository."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from contextlib import chdir
from pathlib import Path

from playwright.sync_api import sync_playwright

import rlpost
from rlpost.analysis.browse.app import Browser
from rlpost.analysis.responses.index import build_index

ROOT = Path(__file__).parents[1]


def main() -> None:
    """Make every picture."""
    asyncio.run(browser())
    report_page()


def report_page() -> None:
    """Report on the sample data, whose advantages GRPO gave, and photograph the page's top."""
    recipe = rlpost.Recipe(estimator="grpo")
    with tempfile.TemporaryDirectory() as folder, chdir(folder):
        out = Path("arithmetic-grpo.parquet")
        rlpost.advantages(ROOT / "sample_data" / "arithmetic.parquet", out, recipe)
        rlpost.report([str(out)], "report.html")
        with sync_playwright() as playwright:
            chromium = playwright.chromium.launch(executable_path=shutil.which("chromium"))
            page = chromium.new_page(viewport={"width": 1280, "height": 1160})
            page.goto(Path("report.html").resolve().as_uri())
            page.screenshot(path=ROOT / ".github" / "report.png")
            chromium.close()


async def browser() -> None:
    """Browse a group of responses, whose advantages GAE gave."""
    recipe = rlpost.Recipe(estimator="gae")
    with tempfile.TemporaryDirectory() as folder, chdir(folder):
        out = Path("arithmetic-gae.parquet")
        rlpost.advantages(ROOT / "sample_data" / "arithmetic.parquet", out, recipe)
        index = build_index([str(out)], {})
        for measure in ("kl", "advantage"):
            index.number(measure)
        app = Browser(index)
        async with app.run_test(size=(128, 24)) as pilot:
            for key in ("j", "enter", *"jjjjjj", "enter", *"jjjj"):
                await pilot.press(key)
            await pilot.pause(0.2)
            await app.workers.wait_for_complete()
            await pilot.pause()
            picture = app.export_screenshot(title=f"rlpost browse {out.name}")
    (ROOT / ".github" / "browse.svg").write_text(picture, encoding="utf-8")


if __name__ == "__main__":
    main()
