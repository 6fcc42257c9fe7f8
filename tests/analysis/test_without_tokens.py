"""inspect, report, browse and compare of files without tokens: what they show, and what is absent.

The same rollouts are a file with masks, one with lengths alone, and one with neither.
"""

from __future__ import annotations

import re
from pathlib import Path

import format_writers_text as writers
import numpy as np
import polars as pl
import pytest
from runs import loads, run
from typer.testing import CliRunner

import rlpost
from rlpost.cli.app import app_of
from rlpost.errors import DataError, UsageError

SAMPLE = pl.read_parquet(Path(__file__).parents[2] / "sample_data" / "arithmetic.parquet")
KEPT = ["step", "prompt_id", "domain", "reward", "finish_reason", "prompt", "response"]
MASKED = SAMPLE.select(*KEPT, "response_mask")
LENGTHS = SAMPLE.select(*KEPT, response_length=pl.col("response_mask").list.sum().cast(pl.Int32))
NEITHER = SAMPLE.select(KEPT)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Each table as a file, without and with advantages."""
    folder, paths = tmp_path_factory.mktemp("files"), {}
    for name, frame in {"masked": MASKED, "lengths": LENGTHS, "neither": NEITHER}.items():
        paths[name], paths[f"{name}-out"] = folder / f"{name}.parquet", folder / f"{name}-o.parquet"
        frame.write_parquet(paths[name])
        rlpost.advantages(paths[name], paths[f"{name}-out"])
    return paths


def test_inspect_shows_everything_that_needs_no_tokens(files):
    masked, lengths, neither = (rlpost.inspect(files[f"{name}-out"]) for name in
                                ("masked", "lengths", "neither"))  # fmt: skip
    for other in (lengths, neither):
        assert other.prompt_groups == masked.prompt_groups
        assert other.histograms["reward"] == masked.histograms["reward"]
        for name in ("reward", "passed", "truncated", "equal_rewards", "counted"):
            assert other.facts[name] == masked.facts[name]
        assert other.advantages["column"] == "response_advantage"
    assert lengths.histograms["policy_tokens"] == masked.histograms["policy_tokens"]
    policy = int(LENGTHS["response_length"].sum())
    assert lengths.tokens == {"all": None, "policy": policy}
    assert lengths.facts["policy_tokens"] == masked.facts["policy_tokens"]
    assert neither.tokens is None
    assert "policy_tokens" not in neither.histograms
    assert "policy_tokens" not in neither.facts
    summary = rlpost.enrich(NEITHER.to_arrow())[1]
    assert "policy_tokens" not in summary["facts"]
    assert not any(name.startswith("length") for name in summary["facts"])
    column = pl.read_parquet(files["neither-out"])["response_advantage"].cast(pl.Float64)
    whole = neither.whole("advantage")
    assert (whole["count"], whole["min"], whole["max"]) == (512, column.min(), column.max())
    assert whole["std"] == pytest.approx(column.std(), rel=1e-9)


@pytest.mark.parametrize("words", [[], ["--row", "3"], ["--top", "reward"], ["--worst"]])
@pytest.mark.parametrize("how", ["table", "markdown"])
def test_no_screen_counts_0_tokens(files, words, how, monkeypatch):
    monkeypatch.chdir(files["neither"].parent)  # a long path wraps the title
    ran = CliRunner().invoke(app_of("inspect"), [files["neither"].name, *words, "--format", how])
    assert ran.exit_code == 0, ran.output
    assert not re.search(r"\b0 (policy )?tokens|nan|None", ran.stdout)
    assert " ·\n" not in ran.stdout
    if not words:
        reason = "no column has tokens, so lengths are unknown"
        assert ran.stdout.count(reason) == 1
        assert "policy tokens" not in ran.stdout
    else:
        assert NEITHER["response"][3][:20] in ran.stdout or words != ["--row", "3"]


def test_options_that_need_tokens_are_errors(files):
    for words, text in (
        (["--top", "length"], "no column for the length"),
        (["--row", "0", "--colour", "advantage"], "no column with tokens"),
    ):
        ran = CliRunner().invoke(app_of("inspect"), [str(files["neither-out"]), *words])
        assert isinstance(ran.exception, DataError)
        assert text in str(ran.exception)
    with pytest.raises(UsageError, match="--map response_length=reward: has no effect"):
        rlpost.inspect(MASKED, columns_map={"response_length": "reward"})
    with pytest.raises(DataError, match="no column for log_probs"):
        rlpost.loss(NEITHER)


def test_the_report_shows_texts_and_no_tokens(files, tmp_path):
    page = tmp_path / "page.html"
    rlpost.report(files["neither-out"], page)
    text = page.read_text()
    (said,) = re.findall(r'<script[^>]*type="application/json"[^>]*>(.*?)</script>', text,
                         re.DOTALL)  # fmt: skip
    data = loads(said)
    (overview,) = re.findall('<section id="overview">(.*?)</section></section>', text, re.DOTALL)
    assert "truncated" in overview
    assert "no column has tokens" in overview
    assert "policy tokens" not in overview
    shown = [one for group in data["groups"] for one in group["responses"]]
    assert {one["text"] for one in shown} <= {*NEITHER["response"]}
    assert all(not one["pieces"] for one in shown)
    assert all(" · reward " in one["line"] and " · A " in one["line"] for one in shown)


def test_a_side_with_tokens_is_compared_by_its_responses(files):
    rloo = rlpost.enrich(MASKED, rlpost.Recipe(estimator="rloo", drop_truncated=True))[0]
    found = rlpost.compare([files["neither-out"], rloo])
    left = pl.read_parquet(files["neither-out"])["response_advantage"].to_numpy().astype(float)
    lists, keeps = rloo["advantages"].to_list(), rloo["sample_mask"].to_list()
    right = np.array([np.mean(a) if keep and a else np.nan for a, keep in
                      zip(lists, keeps, strict=True)])  # fmt: skip
    both = ~np.isnan(right)
    pair, (first, second) = found.pairs[0], found.sides
    assert pair["pearson"]["tokens"] is None
    assert found.facts[f"advantage:{first}"]["of"] == "kept responses"
    difference = found.facts[f"response_difference:{first}:{second}"]["all"]
    assert difference["count"] == both.sum() < 512
    expected = np.corrcoef(left[both], right[both])[0, 1]
    assert pair["pearson"]["responses"] == pytest.approx(expected, rel=1e-9)
    sides = [found.facts[f"advantage:{side}"]["all"] for side in found.sides]
    assert sides[0]["std"] == pytest.approx(left.std(ddof=1), rel=1e-9)
    assert sides[1]["mean"] == pytest.approx(np.nanmean(right), abs=1e-12)
    assert "Tokens are not compared" in found._repr_html_().replace("&nbsp;", " ")


def test_commands_read_dumps_and_name_them(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    made = writers.rollouts(steps=2)
    Path("logs").mkdir()
    for step in (1, 2):
        own = [one for one in made if one.step == step]
        writers.verl(Path("logs") / f"{step}.jsonl", own, acc=[one.reward for one in own])
    whole = run("inspect", "logs", "--format", "json")
    files = loads(whole.out)["input"]["files"]
    assert [file["path"] for file in files] == ["logs/1.jsonl", "logs/2.jsonl"]
    said = "logs/1.jsonl to logs/2.jsonl: 2 dumps, read as verl, 24 responses, without columns of"
    assert said in whole.err
    assert len(whole.err.splitlines()) == 1
    assert "\nlogs/1.jsonl:0 " in run("inspect", "logs/1.jsonl", "--row", "0").out
    assert run("report", "logs", "page.html", "-q").code == 0
    page = Path("page.html").read_text()
    assert "logs/1.jsonl" in page
    assert "rlpost-dump" not in page
    Path("again.jsonl").write_bytes(Path("logs/1.jsonl").read_bytes())
    both = run("compare", "logs/1.jsonl", "again.jsonl", "--column", "acc", "--format", "json")
    found = loads(both.out)
    assert found["sides"] == ["1.jsonl", "again.jsonl"]
    assert found["facts"]["response_equal:1.jsonl:again.jsonl"]["all"]["total"] == 12
