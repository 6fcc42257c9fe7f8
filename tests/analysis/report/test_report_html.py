"""The page of `rlpost report`: it says what inspect says, and stays small."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from odd_files import ODD
from report_pages import data_in, hostile
from runs import run as run_command
from typer.testing import CliRunner

import rlpost
from rlpost.analysis.inspect.about import TOPICS
from rlpost.analysis.inspect.render import page as overview
from rlpost.analysis.report import page
from rlpost.analysis.report.examples import (
    BEST,
    FOUND,
    LIMITS,
    WORST,
    chosen,
)
from rlpost.analysis.responses.index import build_index
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


def test_the_sections_are_the_pages_of_inspect(made):
    """Every topic with its tables, in the order of the page; each chart is one of the topic's."""
    text, facts = made[1].read_text(encoding="utf-8"), made[2]
    pages = {name: topic.run(facts) for name, topic in TOPICS.items()}
    sections = dict(re.findall(r'<section id="([^"]*)">(.*?)</section></section>', text, re.DOTALL))
    assert {name for name, about in pages.items() if about.parts} == {*sections} - {"overview"}
    for name, about in pages.items():
        assert all(part.html() in sections[name] for part in about.parts if name in sections)
    for name in ("steps", "numbers", "groups"):
        assert "<svg " in sections[name]
    assert all(part.html() in sections["overview"] for part in overview(facts).parts)
    assert next(iter(sections)) == "overview"


def test_chosen_rows_fit_their_reasons(made):
    index = build_index([str(made[0])], {})
    choice = chosen(index, made[2], 5, 0)
    by_reason = {
        reason: [row for row, reasons in choice.reasons.items() if reason in reasons]
        for reason in (BEST, WORST, FOUND)
    }
    ranked = np.sort(index.reward)
    assert sorted(index.reward[by_reason[BEST]]) == ranked[-5:].tolist()
    assert sorted(index.reward[by_reason[WORST]]) == ranked[:5].tolist()
    deviations = [index.reward[index.group == code].std() for code in np.unique(index.group)]
    assert [deviations[code] for code in choice.different] == sorted(deviations)[::-1][:2]
    evidence = {place.row for finding in made[2].findings for place in finding.rows}
    assert by_reason[FOUND]
    assert set(by_reason[FOUND]) <= evidence
    assert chosen(index, made[2], 5, 0).reasons == choice.reasons
    assert chosen(index, made[2], 5, 1).reasons != choice.reasons


def test_evidence_of_the_second_file_links_to_its_row(tmp_path):
    for name, mask in (("a", [[1, 1], [1, 1]]), ("b", [[1, 1], [0, 0]])):
        columns = {"prompt_id": [name] * 2, "reward": [1.0, 0.0], "response_mask": mask}
        pq.write_table(pa.table(columns), tmp_path / f"{name}.parquet")
    rlpost.report([str(tmp_path)], tmp_path / "page.html")
    found = data_in(tmp_path / "page.html")
    (finding,) = [one for one in found["findings"] if one["check"] == "empty_masks"]
    assert finding["rows"] == [{"row": 3, "text": "b.parquet:1"}]
    shown = [r for group in found["groups"] for r in group["responses"] if FOUND in r["reasons"]]
    assert [one["row"] for one in shown] == [3]


# ---- inputs and outputs ----


@pytest.mark.parametrize("case", ODD)
def test_unusual_files_have_a_page_too(case, tmp_path):
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table(ODD[case]), path)
    facts = rlpost.report([str(path)], tmp_path / "page.html")
    page = data_in(tmp_path / "page.html")
    assert [item["check"] for item in page["findings"]] == [item.check for item in facts.findings]


def test_text_of_the_data_is_never_html(tmp_path):
    pq.write_table(hostile(), tmp_path / "hostile.parquet")
    rlpost.report([str(tmp_path / "hostile.parquet")], tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert text.count("</script>") == 2
    assert "<img" not in text
    assert data_in(tmp_path / "page.html")["groups"]


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
    rlpost.report([str(tmp_path / "a.parquet")], tmp_path / "page.html", examples=20)
    assert (tmp_path / "page.html").stat().st_size < MOST_BYTES
    found = data_in(tmp_path / "page.html")
    one = found["groups"][0]["responses"][0]
    assert 0 < len(one["pieces"]) <= LIMITS["tokens"]
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
        rlpost.report([str(made[0])], tmp_path)
    with pytest.raises(ReadWriteError, match="no directory"):
        rlpost.report([str(made[0])], tmp_path / "missing" / "page.html")
    with pytest.raises(UsageError, match="same file"):
        rlpost.report([str(made[0])], made[0], overwrite=True)
    pq.write_table(pq.read_table(made[0]).slice(0, 0), tmp_path / "empty.parquet")
    with pytest.raises(DataError, match="the input has no rows"):
        rlpost.report([str(tmp_path / "empty.parquet")], tmp_path / "page.html")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty.parquet"]
