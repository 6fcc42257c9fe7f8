"""The browser, driven key by key; its lists say what polars says of the same file."""

from __future__ import annotations

import asyncio
import io
from contextlib import asynccontextmanager

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from response_index import ARITHMETIC, CALCULATOR, index_of
from rich.console import Console
from runs import run
from textual.widgets import Input, Static

from rlpost.analysis.browse import app as app_module
from rlpost.analysis.browse.app import Browser
from rlpost.analysis.browse.listing import RowList


@asynccontextmanager
async def browsing(index, size=(120, 40)):
    app = Browser(index)
    async with app.run_test(size=size) as pilot:
        await settle(app, pilot)
        yield app, pilot


PAUSE = 0.002


@pytest.fixture(autouse=True)
def short_waits(monkeypatch):
    """No waits of 20 ms until the process is idle; `settle` waits for messages."""

    async def soon(*_):
        await asyncio.sleep(0)

    monkeypatch.setattr("textual.app.wait_for_idle", soon)
    monkeypatch.setattr("textual.pilot.wait_for_idle", soon)
    monkeypatch.setattr(app_module, "_PAUSE", PAUSE)


async def handle(pilot):
    """Wait until all messages are handled, and the messages that these send."""
    for _ in range(4):
        await pilot.pause(0)


async def settle(app, pilot):
    """Wait until nothing is on its way to the screen."""
    for _ in range(2):
        await pilot.pause(2 * PAUSE)
        await handle(pilot)
        await app.workers.wait_for_complete()
    await handle(pilot)


async def press(app, pilot, *keys):
    for key in keys:
        await pilot.press(key)
        await handle(pilot)
    await settle(app, pilot)


def where(app):
    return str(app.query_one("#where", Static).content)


def preview(app):
    out = Console(file=io.StringIO(), width=80)
    out.print(app.query_one("#preview", Static).content)
    return out.file.getvalue()


def cells(app):
    """What the list shows: rows of texts by heading."""
    listing = app.query_one(RowList).listing
    names = [column.name for column in listing.columns]
    return [
        dict(zip(names, map(str, listing.cells(place)), strict=True))
        for place in range(len(listing))
    ]


# The screen


def test_down_to_the_tokens_and_up_again():
    async def drive():
        async with browsing(index_of(CALCULATOR)) as (app, pilot):
            assert [row["step"] for row in cells(app)] == ["0", "1", "2", "3"]
            assert "step 0: 64 rollouts (228 rows)" in preview(app)
            await press(app, pilot, "j", "enter")
            assert "› step 1  groups 1 of 8" in where(app)
            await press(app, pilot, "down", "l")
            assert "› step 1 › calculator-09  responses" in where(app)
            row = cells(app)[0]
            frame = pl.read_parquet(CALCULATOR)
            assert frame["response"][int(row["row"])] in preview(app)
            await press(app, pilot, "right")
            assert f"› row {row['row']}  tokens 1 of" in where(app)
            assert (
                "".join(token["text"] for token in cells(app))
                == (frame["response"][int(row["row"])])
            )
            assert "log-prob" in cells(app)[0]
            assert "old_log_probs" not in cells(app)[0], "which has the same numbers"
            await press(app, pilot, "j")
            assert "token 1 of" in preview(app)
            await press(app, pilot, "h", "left", "escape")
            assert "steps 2 of 4" in where(app)

    asyncio.run(drive())


def test_a_step_has_the_same_prompt_and_the_same_place():
    frame = pl.read_parquet(ARITHMETIC).with_row_index("row")
    steps = frame.group_by("prompt_id").agg(pl.col("step").unique().sort()).sort("prompt_id")
    name, (first, second, *_) = steps.filter(pl.col("step").list.len() > 1).row(0)
    rows = frame.filter(pl.col("prompt_id") == name, pl.col("step") == second)["row"].to_list()

    async def drive():
        async with browsing(index_of(ARITHMETIC)) as (app, pilot):
            await press(app, pilot, *["j"] * first, "enter")
            place = [row["prompt"] for row in cells(app)].index(name)
            await press(app, pilot, *["j"] * place, "enter", "j", "enter", "right_square_bracket")
            assert f"step {second} › {name} › row {rows[1]}  tokens" in where(app)
            await press(app, pilot, "left_square_bracket", "h", "h")
            assert f"step {first}  groups {place + 1} of" in where(app)

    asyncio.run(drive())


def test_searching_lists_the_hits_and_clearing_lists_all():
    frame = pl.read_parquet(CALCULATOR)
    hits = frame["response"].str.contains("234", literal=True)
    hits |= frame["prompt"].str.contains("234", literal=True)

    async def drive():
        async with browsing(index_of(CALCULATOR)) as (app, pilot):
            await press(app, pilot, "slash", "2", "3", "4", "enter")
            assert f"{hits.sum()} of 919 responses" in where(app)
            assert [int(row["row"]) for row in cells(app)] == hits.arg_true().to_list()
            await press(app, pilot, "enter", "n")
            assert f"row {hits.arg_true()[1]}  tokens" in where(app)
            await press(app, pilot, "slash")
            app.query_one("#ask", Input).value = "not to be found"
            await press(app, pilot, "enter")
            assert "search: 234" in where(app)
            await press(app, pilot, "x", "h", "h")
            assert "search" not in where(app)
            assert "steps 1 of 4" in where(app)

    asyncio.run(drive())


@pytest.mark.nightly
@pytest.mark.parametrize("width", [80, 109, 110, 200])
def test_no_line_is_wider_than_the_screen(width):
    async def drive():
        async with browsing(index_of(CALCULATOR), size=(width, 30)) as (app, pilot):
            for key in ("enter", "enter", "enter"):
                await press(app, pilot, key)
                lines = app.screen._compositor.render_strips()
                assert {strip.cell_length for strip in lines} == {width}
            view, side = app.query_one(RowList), app.query_one("#side")
            assert (view.region.y == side.region.y) == (width >= 110)

    asyncio.run(drive())


HOSTILE = "a\x1b[31mred\x1b]0;title\x07\x9b2J\r\u202eback\u2066\x00 [bold]x[/bold]"
UNSAFE = [
    *map(chr, [*range(32), *range(0x7F, 0xA0), *range(0x202A, 0x202F), *range(0x2066, 0x206A)])
]


def test_control_characters_of_the_data_are_shown_and_never_sent(tmp_path):
    """Every level, the preview, the line on top, and what a failed search says."""
    path = tmp_path / "a.parquet"
    columns = {
        "prompt_id": [f"{HOSTILE}{row // 2}" for row in range(8)],
        "step": [row // 4 for row in range(8)],
        "domain": [HOSTILE] * 8,
        "prompt": [HOSTILE] * 8,
        "response": [HOSTILE] * 8,
        "finish_reason": [HOSTILE] * 8,
        "reward": [0.0, 1.0] * 4,
        "response_tokens": [[HOSTILE, "\x07"]] * 8,
        "response_mask": [[1, 1]] * 8,
        "old_log_probs": [[-1.0, -1.0]] * 8,
    }
    pq.write_table(pa.table(columns), path)

    async def drive():
        async with browsing(index_of(path), size=(140, 40)) as (app, pilot):
            seen = ""
            for key in ("enter", "enter", "enter", "slash"):
                await press(app, pilot, key)
                strips = app.screen._compositor.render_strips()
                seen += "".join(segment.text for strip in strips for segment in strip)
                seen += preview(app).replace("\n", "")
            app.query_one("#ask", Input).value = f"{HOSTILE} nowhere"
            await press(app, pilot, "enter")
            strips = app.screen._compositor.render_strips()
            seen += "".join(segment.text for strip in strips for segment in strip)
            assert not [repr(one) for one in UNSAFE if one in seen]
            assert "␛[31mred␛]0;title␇" in seen

    asyncio.run(drive())


def test_a_file_without_steps_or_groups_is_a_list_of_responses(tmp_path):
    pq.write_table(pa.table({"reward": [0.5, 1.0], "text": ["a", "b"]}), tmp_path / "a.parquet")

    async def drive():
        async with browsing(index_of(tmp_path / "a.parquet")) as (app, pilot):
            assert "responses 1 of 2" in where(app)
            await press(app, pilot, "h", "right_square_bracket", "slash", "a", "enter")
            assert "responses 1 of 2" in where(app)

    asyncio.run(drive())


# The command


def test_a_pipe_is_no_terminal():
    ran = run("browse", ARITHMETIC)
    assert (ran.code, ran.out) == (2, "")
    assert "needs a terminal" in ran.err
