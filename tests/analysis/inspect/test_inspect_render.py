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
from runs import loads, run
from typer.testing import CliRunner

from rlpost.analysis.inspect import tokens
from rlpost.analysis.inspect.about import TOPICS
from rlpost.analysis.inspect.findings import FINDINGS
from rlpost.cli import completion
from rlpost.cli.app import app_of

SAMPLES = Path(__file__).parents[3] / "sample_data"
ARITHMETIC = SAMPLES / "arithmetic.parquet"
RUN = CliRunner()


def test_json_equals_the_facts(sample, facts):
    done = RUN.invoke(app_of("inspect"), [str(sample), "--unit", "row", "--format", "json"])
    shown, own = loads(done.stdout), facts.as_json()
    del shown["seconds"], own["seconds"]
    assert shown == json.loads(json.dumps(own))
    assert next(iter(shown)) == "schema_version"


def test_json_has_null_for_nonfinite_numbers(tmp_path):
    columns = {"prompt_id": ["a"], "reward": [math.inf], "old_log_probs": [[math.nan]]}
    pq.write_table(pa.table(columns), tmp_path / "a.parquet")
    shown = RUN.invoke(app_of("inspect"), [str(tmp_path / "a.parquet"), "--format", "json"]).stdout
    json.loads(shown, parse_constant=lambda word: pytest.fail(f"{word} is no JSON"))


def test_markdown_has_headings_and_tables(sample):
    shown = RUN.invoke(app_of("inspect"), [str(sample), "--verbose", "--format", "markdown"]).stdout
    assert shown.startswith("# rlpost inspect")
    tables = re.findall(r"(?:^\|.*\|\n)+", shown, flags=re.MULTILINE)
    assert len(tables) > 8
    for table in tables:
        assert len({row.count(" | ") for row in table.splitlines()}) == 1


class Terminal(io.StringIO):
    """A stream that claims to be a terminal."""

    def isatty(self):
        return True


def test_the_overview_fits_a_small_terminal_and_ends_with_the_verdict(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "xterm-256color")
    shown = run("inspect", ARITHMETIC, out=Terminal()).out
    lines = [re.sub(r"\x1b\[[0-9;]*m", "", line) for line in shown.splitlines()]
    assert len(lines) <= 23
    assert [line[:2] for line in lines if line[:2] in ("✓ ", "! ", "✗ ")] == ["✓ "]
    assert "43 of 64 groups have signal" in shown


def damaged(path):
    """The sample with one error, one warning, and all rewards equal."""
    table = pq.read_table(ARITHMETIC)
    old = table["old_log_probs"].to_pylist()
    old[11] = old[11][:-2]
    place = table.column_names.index("old_log_probs")
    table = table.set_column(place, "old_log_probs", pa.array(old, pa.list_(pa.float32())))
    masks = table["response_mask"].to_pylist()
    masks[13] = [0] * len(masks[13])
    place = table.column_names.index("response_mask")
    masks = pa.array(masks, pa.list_(pa.uint8()))
    pq.write_table(table.set_column(place, "response_mask", masks), path)
    return path


@pytest.mark.parametrize("how", ["table", "markdown"])
def test_the_most_severe_finding_is_the_last_and_has_its_row(how, tmp_path):
    path = damaged(tmp_path / "bad.parquet")
    shown = RUN.invoke(app_of("inspect"), [str(path), "--format", how]).stdout
    marks = re.findall(r"^(?:- )?([✓!✗]) (?:\*\*)?(\w+)", shown, flags=re.MULTILINE)
    assert marks == [("!", "empty_masks"), ("✗", "unequal_lengths"), ("✗", "Found")]
    assert "1 error and 1 warning" in shown
    assert f"{path}:13" in shown
    assert f"{path}:11" in shown


def test_every_topic_is_a_page_of_its_own_and_part_of_verbose(sample, facts):
    whole = RUN.invoke(app_of("inspect"), [str(sample), "--unit", "row", "--verbose"]).stdout
    for topic in TOPICS.values():
        page = topic.run(facts)
        assert page.parts or page.lines
        assert [part.title for part in page.parts if part.title not in whole] == []
    shown = RUN.invoke(app_of("inspect"), [str(sample), "--about", "groups"]).stdout
    assert shown.startswith("rlpost inspect · ")
    assert " · groups\n" in shown


def test_the_shell_offers_topics_and_checks():
    assert [name for name, _ in completion.topics()] == [*TOPICS, *FINDINGS]


OPTIONS = {
    "--about grups": "--about grups",
    "--about groups --verbose": "--about",
    "--about groups --quiet": "--about",
    "--about groups --format json": "--about groups",
    "--about groups --row 0": "--about",
    "--verbose --format json": "--verbose",
    "--colour kl": "--colour",
    "--ignore no_rows --row 0": "--ignore",
    "--ignore truncated_many": "--ignore truncated_many: ",
    "--rollout-reward last --unit row": "--map rollout=COLUMN",
    "--unit rollout --row 0": "--unit",
}


@pytest.mark.parametrize("words", OPTIONS)
def test_options_that_exclude_each_other_or_have_no_effect_are_named(words):
    ran = run("inspect", ARITHMETIC, *words.split())
    assert (ran.code, ran.out) == (2, "")
    assert OPTIONS[words] in ran.err


def test_pass_at_k_ends_where_groups_are_too_small():
    """17 of 32 groups have 32 responses: pass@32 of those alone was below pass@16 of all."""
    line = [str(SAMPLES / "calculator.parquet"), "--unit", "row", "--about", "groups"]
    shown = RUN.invoke(app_of("inspect"), line).stdout
    (line,) = re.findall(r"^pass@k(.*)$", shown, flags=re.MULTILINE)
    values = [float(value) for value in line.split()]
    assert values == sorted(values)
    assert len(values) == 5
    assert "17 of 32 groups" in shown


def test_nouns_after_1_are_singular(tmp_path):
    pq.write_table(pq.read_table(ARITHMETIC).slice(0, 1), tmp_path / "a.parquet")
    shown = RUN.invoke(app_of("inspect"), [str(tmp_path / "a.parquet"), "--verbose"]).stdout
    assert "1 response" in shown
    assert not re.search(r"\b1 (rows|responses|groups|prompts|tokens|findings|row groups)\b", shown)


def test_critic_and_entropy_are_computed_where_they_are_shown(monkeypatch):
    computed = []
    for name in ("critic_tokens", "entropy_tokens"):
        of = getattr(tokens, name)
        computing = lambda *x, name=name, of=of: computed.append(name) or of(*x)  # noqa: E731
        monkeypatch.setattr(tokens, name, computing)
    path = SAMPLES / "calculator.parquet"
    screen = run("inspect", path)
    assert screen.code == 0
    assert computed == []
    run("inspect", path, "--verbose")
    assert {*computed} == {"critic_tokens", "entropy_tokens"}
