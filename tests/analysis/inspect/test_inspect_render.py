"""What `rlpost inspect` prints: JSON, Markdown, on a terminal and in a pipe."""

from __future__ import annotations

import io
import json
import math
import re
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from runs import run
from typer.testing import CliRunner

import rlpost
from rlpost.cli.commands.inspect import app

SAMPLES = Path(__file__).parents[3] / "sample_data"
ARITHMETIC = SAMPLES / "arithmetic.parquet"
RUN = CliRunner()


def test_json_equals_the_facts(sample, facts):
    done = RUN.invoke(app, [str(sample), "--format", "json"])
    shown, own = json.loads(done.stdout), facts.as_json()
    del shown["seconds"], own["seconds"]
    assert shown == json.loads(json.dumps(own))
    assert next(iter(shown)) == "schema_version"


def test_json_has_null_for_nonfinite_numbers(tmp_path):
    columns = {"prompt_id": ["a"], "reward": [math.inf], "old_log_probs": [[math.nan]]}
    pq.write_table(pa.table(columns), tmp_path / "a.parquet")
    shown = RUN.invoke(app, [str(tmp_path / "a.parquet"), "--format", "json"]).stdout
    json.loads(shown, parse_constant=lambda word: pytest.fail(f"{word} is no JSON"))


def test_a_pipe_gets_plain_text_that_is_not_cut(sample):
    shown = RUN.invoke(app, [str(sample)]).stdout
    assert "\x1b" not in shown
    assert "│" not in shown
    assert "…" not in re.sub("… [0-9]+ more", "", shown)
    assert "pass@k" in shown


def test_markdown_has_headings_and_tables(sample):
    shown = RUN.invoke(app, [str(sample), "--format", "markdown"]).stdout
    assert shown.startswith("# rlpost inspect")
    tables = re.findall(r"(?:^\|.*\|\n)+", shown, flags=re.MULTILINE)
    assert len(tables) > 4
    for table in tables:
        assert len({row.count(" | ") for row in table.splitlines()}) == 1


class Terminal(io.StringIO):
    """A stream that claims to be a terminal."""

    def isatty(self):
        return True


@pytest.mark.parametrize(("width", "colour"), [(40, True), (80, False), (120, True), (200, False)])
def test_a_terminal_gets_lines_of_its_width(width, colour, sample, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    if not colour:
        monkeypatch.setenv("NO_COLOR", "1")
    shown = run("inspect", sample, out=Terminal()).out
    assert ("\x1b[34m" in shown) is colour
    lines = [re.sub(r"\x1b\[[0-9;]*m", "", line) for line in shown.splitlines()]
    assert {len(line) for line in lines if line} == {width}
    assert not [line for line in lines if "…" in re.sub("… [0-9]+ more", "", line)]


def test_options_of_single_responses_and_of_the_whole_input_exclude_each_other(sample):
    for line in (
        ["--row", "0", "--no-tokens"],
        ["--top", "reward", "--footer"],
        ["--colour", "kl"],
    ):
        done = RUN.invoke(app, [str(sample), *line])
        assert done.exception is not None
        assert done.exception.exit_code == 2


def test_a_dump_is_converted_before_it_is_inspected(tmp_path):
    dump = tmp_path / "5.jsonl"
    record = {"input": "q", "output": "a", "gts": "x", "score": 1.0, "step": 5}
    dump.write_text("".join(json.dumps(record) + "\n" for _ in range(4)))
    done = CliRunner().invoke(app, [str(dump), "--format", "json"])
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert (found["inputs"], found["responses"]) == ([str(dump)], 4)
    assert [path.name for path in tmp_path.iterdir()] == ["5.jsonl"]


def test_markdown_opens_no_tag_and_has_no_double_blank_lines(tmp_path):
    table = pa.table({"prompt_id": ["<b>x", "<b>x"], "reward": [1.0, 1.0], "step": [0, 0]})
    pq.write_table(table, tmp_path / "a.parquet")
    shown = RUN.invoke(app, [str(tmp_path / "a.parquet"), "--format", "markdown"]).stdout
    assert "&lt;b>x" in shown
    assert "<" not in shown
    assert "\n\n\n" not in shown


def test_nouns_after_1_are_singular(tmp_path):
    pq.write_table(pq.read_table(ARITHMETIC).slice(0, 1), tmp_path / "a.parquet")
    shown = RUN.invoke(app, [str(tmp_path / "a.parquet")]).stdout
    assert "1 row in 1 row group of 1" in shown
    assert "1 response, " in shown
    assert "1 group of 1 response, by" in shown
    assert not re.search(r"\b1 (rows|responses|groups|prompts|tokens|findings|row groups)\b", shown)


def test_without_a_mask_the_output_states_that_all_tokens_count(tmp_path):
    table = pq.read_table(ARITHMETIC)
    pq.write_table(table.drop_columns(["response_mask"]), tmp_path / "a.parquet")
    text = "there is no mask, so every token counts"
    assert text in " ".join(RUN.invoke(app, [str(tmp_path / "a.parquet")]).stdout.split())
    assert text not in " ".join(RUN.invoke(app, [str(ARITHMETIC)]).stdout.split())


def test_a_threshold_that_no_reward_reaches_is_reported():
    text = "set the threshold with --pass-threshold"
    shown = RUN.invoke(app, [str(ARITHMETIC), "--pass-threshold", "2"]).stdout
    assert "no reward reaches 2, the highest is 1" in shown
    assert text in shown
    assert text not in RUN.invoke(app, [str(ARITHMETIC)]).stdout


def test_the_line_above_the_findings_explains_their_marks(tmp_path):
    table = pq.read_table(ARITHMETIC).drop_columns(["reward"])
    pq.write_table(table, tmp_path / "a.parquet")
    shown = RUN.invoke(app, [str(tmp_path / "a.parquet")]).stdout
    legend = r"1 finding by \d+ of \d+ checks \(✗ error: training would use wrong numbers\)"
    assert re.search(legend, shown)


def test_inspect_accepts_a_single_path():
    sample = Path(__file__).parents[3] / "sample_data" / "arithmetic.parquet"
    assert rlpost.inspect(str(sample)).responses == rlpost.inspect([sample]).responses == 512
