"""The page of `rlpost report`: it says what inspect says, and stays small."""

from __future__ import annotations

import math
import re
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from report_pages import data_in, hostile
from runs import run as run_command
from typer.testing import CliRunner

from rlpost import optional as extras
from rlpost.analysis.inspect.facts import inspect
from rlpost.analysis.report import page
from rlpost.analysis.report.examples import (
    BEST,
    FOUND,
    WORST,
    Groups,
    Limits,
    chosen,
)
from rlpost.analysis.report.run import report
from rlpost.analysis.responses.index import build_index
from rlpost.cli.commands import report as command
from rlpost.display.text import number, percent
from rlpost.errors import DataError, ReadWriteError, UsageError

SAMPLE = Path(__file__).parents[3] / "sample_data"
RUN = CliRunner()
MOST_BYTES = 5_000_000


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


def test_tables_leave_out_columns_without_numbers(tmp_path):
    columns = {"prompt_id": ["a", "b"], "step": [0, 1], "reward": [1.0, 0.0]}
    pq.write_table(pa.table(columns), tmp_path / "a.parquet")
    report([str(tmp_path / "a.parquet")], tmp_path / "page.html")
    sections = {one["name"]: one for one in data_in(tmp_path / "page.html")["sections"]}
    (table,) = sections["steps"]["tables"]
    assert table["headings"] == ["step", "responses", "reward", "pass rate"]
    assert table["rows"] == [["0", "1", "1.000", "100 %"], ["1", "1", "0", "0 %"]]


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
def test_unusual_files_have_a_page_too(case, tmp_path):
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table(ODD[case]), path)
    facts = report([str(path)], tmp_path / "page.html")
    page = data_in(tmp_path / "page.html")
    assert [item["name"] for item in page["findings"]] == [item.name for item in facts.findings]


def test_text_of_the_data_is_never_html(tmp_path):
    pq.write_table(hostile(), tmp_path / "hostile.parquet")
    report([str(tmp_path / "hostile.parquet")], tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert text.count("</script>") == 2
    assert "<img" not in text
    assert data_in(tmp_path / "page.html")["groups"]


def test_statistics_of_groups_count_a_rollout_once(tmp_path):
    path = tmp_path / "a.parquet"
    pq.write_table(pq.read_table(SAMPLE / "calculator.parquet").slice(0, 120), path)
    facts = report([str(path)], tmp_path / "page.html", rollout_reward="last")
    assert facts.groups == inspect([path], rollout_reward="last").groups
    assert "rollouts, by step, prompt_id" in (tmp_path / "page.html").read_text()


@pytest.mark.nightly
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


def test_the_command_writes_the_same_page_and_keeps_an_existing_one(made, tmp_path):
    target = tmp_path / "page.html"
    target.write_text("mine")
    ran = run_command("report", made[0], target)
    assert (ran.code, target.read_text()) == (2, "mine")
    assert "--overwrite" in ran.err
    ran = run_command("report", made[0], target, "--overwrite")
    assert (ran.code, ran.out) == (0, "")
    last = ran.err.splitlines()[-1]
    assert last.startswith(f"✓ {target} ")
    assert "512 responses" in last
    assert target.read_bytes() == made[1].read_bytes()


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


@pytest.mark.parametrize("missing", ["altair", "vl_convert"])
def test_without_the_extra_the_error_has_the_install_command(missing, made, tmp_path, monkeypatch):
    found = extras.find_spec
    monkeypatch.setattr(extras, "find_spec", lambda name: None if name == missing else found(name))
    done = RUN.invoke(command.app, [str(made[0]), "-o", str(tmp_path / "page.html")])
    assert done.exception.exit_code == 5
    assert "pip install 'rlpost[report]'" in str(done.exception)
