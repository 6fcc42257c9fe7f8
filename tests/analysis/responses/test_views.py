"""Single responses: the right ones, with the right numbers, on screens and in pipes."""

from __future__ import annotations

import io
import json
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from rich.console import Console

import rlpost
from rlpost.analysis.responses import views
from rlpost.analysis.responses.index import build_index
from rlpost.analysis.responses.reader import ResponseReader
from rlpost.analysis.responses.token_colors import (
    COLOURS,
    coloured_tokens,
)
from rlpost.errors import DataError, UsageError

SAMPLE = Path(__file__).parents[3] / "sample_data"
ARITHMETIC, CALCULATOR = SAMPLE / "arithmetic.parquet", SAMPLE / "calculator.parquet"


@pytest.fixture(scope="module")
def enriched(tmp_path_factory):
    path = tmp_path_factory.mktemp("views") / "gae.parquet"
    rlpost.advantages(CALCULATOR, path, rlpost.Recipe(estimator="gae", unit="row"))
    return path


def visible_text(capsys, path, **choice):
    views.show([str(path)], columns_map={}, **choice)
    return capsys.readouterr().out


def as_json(capsys, path, **choice):
    return json.loads(visible_text(capsys, path, format="json", **choice))


def policy_means(frame, expression):
    """The mean over policy tokens of something, a row each, by polars."""
    lists = ["old_log_probs", "ref_log_probs", "response_mask"]
    lists += ["advantages"] if "advantages" in frame.columns else []
    tokens = frame.with_row_index().explode(lists).filter(pl.col("response_mask") == 1)
    return tokens.group_by("index").agg(expression.mean().alias("mean")).sort("index")["mean"]


KL = pl.col("old_log_probs").cast(pl.Float64) - pl.col("ref_log_probs").cast(pl.Float64)


# Which rows


def test_a_prompt_gives_its_group_step_by_step_best_first(capsys):
    frame = pl.read_parquet(ARITHMETIC).with_row_index()
    group = frame.filter(pl.col("prompt_id") == "arithmetic-00")
    wanted = group.sort("step", -pl.col("reward"), "index")["index"].to_list()
    found = as_json(capsys, ARITHMETIC, prompt="arithmetic-00")
    assert [one["row"] for one in found["responses"]] == wanted
    assert f"{len(group)} responses" in found["title"]


@pytest.mark.parametrize(
    ("measure", "worst"), [("reward", False), ("length", True), ("kl", True), ("advantage", False)]
)
def test_top_and_worst_are_those_of_polars(capsys, enriched, measure, worst):
    frame = pl.read_parquet(enriched)
    values = {
        "reward": frame["reward"],
        "length": frame["response_mask"].list.sum(),
        "kl": policy_means(frame, KL),
        "advantage": policy_means(frame, pl.col("advantages").cast(pl.Float64)),
    }[measure].to_numpy()
    order = np.argsort(values if worst else -values.astype(float), kind="stable")[:7]
    found = as_json(capsys, enriched, top=measure, worst=worst, count=7)["responses"]
    key = {"length": "policy_tokens"}.get(measure, measure)
    assert [one[key] for one in found] == pytest.approx(values[order].tolist(), abs=1e-12)
    if measure in ("reward", "length"):  # elsewhere rounding may part what polars calls equal
        assert [one["row"] for one in found] == order.tolist()


def test_a_row_is_all_that_the_file_says_of_it(capsys, enriched):
    row = pl.read_parquet(enriched).row(400, named=True)
    (one,) = as_json(capsys, enriched, row=400)["responses"]
    assert (one["prompt"], one["response"]) == (row["prompt"], row["response"])
    assert one["tokens"]["mask"] == row["response_mask"]
    assert one["tokens"]["logprob"] == row["old_log_probs"]
    assert one["tokens"]["advantage"] == row["advantages"]
    assert "".join(one["tokens"]["text"]) == row["response"]
    assert one["fields"]["traj_id"] == row["traj_id"]
    own = [a for a, m in zip(row["advantages"], row["response_mask"], strict=True) if m]
    assert one["advantage"] == pytest.approx(sum(own) / len(own))


@pytest.fixture
def files(tmp_path):
    """The sample in three files, of which two have one name."""
    table = pq.read_table(ARITHMETIC)
    for name, first, count in (("x/a", 0, 100), ("x/b", 100, 100), ("y/b", 200, 312)):
        path = tmp_path / f"{name}.parquet"
        path.parent.mkdir(exist_ok=True)
        pq.write_table(table.slice(first, count), path)
    return tmp_path


@pytest.mark.parametrize("name", ["a", "x/b"])
def test_a_row_of_several_files_is_named_as_findings_name_it(capsys, files, name):
    first = {"a": 0, "x/b": 100}[name]
    (one,) = as_json(capsys, files, row=f"{name}.parquet:50")["responses"]
    assert one["file"].endswith(f"{name}.parquet")
    assert (one["file_row"], one["row"]) == (50, first + 50)
    assert one["response"] == pq.read_table(ARITHMETIC)["response"][first + 50].as_py()
    text = visible_text(capsys, files, row=f"{one['file']}:50")
    assert f"{one['file']}:50" in text.splitlines()[0]


@pytest.mark.parametrize(
    ("row", "error", "names"),
    [
        ("11", UsageError, "x/a.parquet:11"),
        ("b.parquet:11", UsageError, "y/b.parquet:11"),
        ("c.parquet:11", DataError, "c.parquet"),
        ("x/b.parquet:100", DataError, "100 rows"),
        ("x/b.parquet:", UsageError, "INT"),
    ],
)
def test_a_row_that_is_not_one_row_names_the_files(files, row, error, names):
    with pytest.raises(error, match=f"--row {row}.*{names}"):
        views.show([str(files)], columns_map={}, row=row)


def test_equal_responses_are_printed_once_with_their_rows(capsys, files):
    text = visible_text(capsys, ARITHMETIC, prompt="arithmetic-00")
    heads = [line for line in text.splitlines() if line.startswith("row")]
    folded = [line for line in heads if line.startswith("rows ")]
    assert folded
    frame = pl.read_parquet(ARITHMETIC).filter(pl.col("prompt_id") == "arithmetic-00")
    assert len(heads) == len(frame.select("step", "response", "reward").unique())
    assert sum(int(line.split("(")[1].split()[0]) for line in folded) == len(frame) - (
        len(heads) - len(folded)
    )
    coloured = visible_text(capsys, ARITHMETIC, prompt="arithmetic-00", colour="kl")
    assert len([line for line in coloured.splitlines() if line.startswith("row ")]) == len(frame)
    several = visible_text(capsys, files, prompt="arithmetic-03")
    assert f"{files}/x/a.parquet:24 · " in several


# What is wrong


@pytest.mark.parametrize(
    ("choice", "error", "says"),
    [
        ({}, UsageError, "one of --prompt, --row"),
        ({"row": 1, "worst": True}, UsageError, "exactly one"),
        ({"row": 512}, DataError, "512 rows"),
        ({"row": -1}, UsageError, "--row -1"),
        ({"prompt": "arithmetic-99"}, DataError, "did you mean arithmetic-"),
        ({"top": "advantage"}, DataError, "write one with `rlpost advantages`"),
        ({"row": 1, "colour": "advantage"}, DataError, "write one with `rlpost advantages`"),
    ],
)
def test_wrong_choices_say_what_is_wrong(choice, error, says):
    with pytest.raises(error, match=says):
        views.show([str(ARITHMETIC)], columns_map={}, **choice)


# How it looks


def test_piped_it_is_plain_text_with_numbers(capsys):
    text = visible_text(capsys, CALCULATOR, row=0, colour="logprob")
    row = pl.read_parquet(CALCULATOR).row(0, named=True)
    assert "\x1b" not in text
    assert f"<({row['old_log_probs'][0]:.3g})" in text
    assert "[(obs)" in text
    assert row["response"] in visible_text(capsys, CALCULATOR, row=0)


def console(width, **options):
    given = {"force_terminal": True, "color_system": "truecolor", **options}
    return Console(file=io.StringIO(), width=width, **given)


def drawn(monkeypatch, width, path=CALCULATOR, colour=None, rows=(57, 61, 69, 81), **options):
    index = build_index([str(path)], {})
    responses = ResponseReader(index, COLOURS).read(rows)
    out = console(width, **options)
    monkeypatch.setattr(views, "console", lambda _: out)
    views.show_responses("title", responses, colour, "table")
    return out.file.getvalue()


def test_long_responses_are_cut_among_others_and_whole_alone(monkeypatch, tmp_path):
    table = pa.table(
        {
            "prompt_id": ["a", "a"],
            "reward": [0.0, 1.0],
            "response_tokens": [list(range(1000)), [7]],
            "response_mask": [[1] * 1000, [1]],
            "old_log_probs": [[-0.5] * 1000, [-1.0]],
        }
    )
    pq.write_table(table, tmp_path / "a.parquet")
    both = drawn(monkeypatch, 100, tmp_path / "a.parquet", rows=(0, 1), color_system=None)
    assert "600 more tokens" in " ".join(both.split())
    assert " 999 " not in both
    alone = drawn(monkeypatch, 100, tmp_path / "a.parquet", rows=(0,), color_system=None)
    assert " 999 " in alone
    assert "\n0 1 2 3 " in alone


def test_a_strip_shows_what_cannot_be_seen_and_where_it_begins(tmp_path):
    table = pa.table(
        {
            "response_tokens": [["a", "\n", "", "\t", "b"]],
            "response_mask": [[1, 1, 1, 0, 1]],
            "reward": [1.0],
        }
    )
    pq.write_table(table, tmp_path / "a.parquet")
    (one,) = ResponseReader(build_index([str(tmp_path / "a.parquet")], {})).read([0])
    assert coloured_tokens(one, None).plain == "a⏎\n∅⇥b"
    assert coloured_tokens(one, None, first=2, limit=2).plain == "2 tokens … ∅⇥ … 1 more token"
    spans = {str(span.style) for span in coloured_tokens(one, None, cursor=4).spans}
    assert spans == {"dim italic", "reverse bold"}


def test_nulls_are_shown_as_null_and_nan_as_nan(capsys, tmp_path):
    table = pl.read_parquet(ARITHMETIC).head(8)
    old = table["old_log_probs"].to_list()
    old[2][0], old[2][1] = None, float("nan")
    rewards = [1.0, 1.0, None, *[0.0] * 5]
    odd = table.with_columns(old_log_probs=pl.Series(old), reward=pl.Series(rewards))
    odd.write_parquet(tmp_path / "a.parquet")
    shown = visible_text(capsys, tmp_path / "a.parquet", row=2, colour="logprob")
    assert "3(null) 2(nan) 13(-0.00104)" in shown
    assert "reward=null" in shown
    assert "3(null) 2(nan)" in visible_text(capsys, tmp_path / "a.parquet", row=2, colour="kl")
