"""Facts that are expected of an input, and findings that keep a run from publishing."""

from dataclasses import replace

import pyarrow as pa
import pytest
from distributed_runs import LOCAL, RAY, in_tasks, steps_table, write_files
from runs import rollout, run, save, strict_json

import rlpost
from rlpost.errors import FindingsError, UsageError
from rlpost.pipeline.expectations import FACTS, Expectation, expectations_of

RECIPE = rlpost.Recipe()


@pytest.mark.parametrize(
    ("text", "inside", "outside"),
    [
        ("8", [8], [7, 9, 8.5]),
        ("4..8", [4, 8, 5.5], [3, 9]),
        ("0.5..", [0.5, 1e9], [0.4]),
        ("..-1", [-1, -9], [0]),
    ],
)
def test_a_value_is_a_number_or_a_range_with_its_ends(text, inside, outside):
    expectation = Expectation.of("rewards", text)
    assert [value in expectation for value in inside] == [True] * len(inside)
    assert [value in expectation for value in outside] == [False] * len(outside)
    assert Expectation.of("group_size", 8) == Expectation("group_size", 8, 8, "group_size=8")


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("groupsize", "8", "did you mean group_size"),
        ("zzz", "8", ", ".join(FACTS)),
        ("groups", "eight", "NUMBER"),
        ("groups", "8..4", "LOW..HIGH"),
        ("groups", "..", "LOW..HIGH"),
        ("groups", "nan", "LOW..HIGH"),
        ("groups", "4..8..9", "LOW..HIGH"),
    ],
)
def test_wrong_expectations_are_named(name, value, said, tmp_path):
    with pytest.raises(UsageError) as error:
        expectations_of({name: value})
    assert str(error.value).startswith(f"--expect {name}={value}: ")
    assert said in str(error.value)
    path = save(rollout(), tmp_path / "a.parquet")
    for words in (["inspect", path], ["advantages", path, tmp_path / "b.parquet"]):
        ran = run(*words, "--expect", f"{name}={value}")
        assert (ran.code, f"--expect {name}={value}" in ran.err) == (2, True)
    assert not (tmp_path / "b.parquet").exists()


TABLE = steps_table()
FACTS_OF_TABLE = {
    "responses": 60,
    "files": 4,
    "steps": 6,
    "domains": 3,
    "groups": len(TABLE.group_by(["step", "prompt_id"]).aggregate([])),
    "group_size": "1..2",
    "responses_per_step": "9..12",
    "policy_tokens": "1..5",
    "rewards": "0..1",
}
"""What `write_files` writes in three files, and one without rows."""


@pytest.fixture
def folder(tmp_path):
    write_files(TABLE, tmp_path / "in", 3)
    return tmp_path


def test_inspect_and_advantages_agree_on_every_fact(folder):
    assert {*FACTS_OF_TABLE} == {*FACTS}
    assert not names(rlpost.inspect(folder / "in", expect=FACTS_OF_TABLE))
    options = replace(LOCAL, expect=FACTS_OF_TABLE)
    assert rlpost.advantages(folder / "in", folder / "out", RECIPE, options).errors == []


def names(inspection):
    return [one.name for one in inspection.findings if one.name == "unmet_expectations"]


@pytest.mark.parametrize("side", ["low", "high"])
def test_each_fact_that_differs_fails_inspect_and_advantages(side, folder):
    bounds = {name: str(text).partition("..") for name, text in FACTS_OF_TABLE.items()}
    expect = {name: f"{float(low) + 1 / 8}.." for name, (low, _, _) in bounds.items()}
    if side == "high":
        expect = {n: f"..{float(high or low) - 1 / 8}" for n, (low, _, high) in bounds.items()}
    inspection = rlpost.inspect(folder / "in", expect=expect)
    (finding,) = (one for one in inspection.findings if one.name == "unmet_expectations")
    assert (finding.count, finding.of) == (len(FACTS), len(FACTS))
    with pytest.raises(FindingsError) as error:
        rlpost.advantages(folder / "in", folder / "out", RECIPE, replace(LOCAL, expect=expect))
    for name, value in expect.items():
        assert f"--expect {name}={value}: " in finding.text
        assert f"--expect {name}={value}: " in str(error.value)
    assert error.value.summary["outputs"] == []
    assert not (folder / "out").exists() or not [*(folder / "out").iterdir()]


def test_facts_without_a_column_are_unmet(tmp_path):
    path = save(rollout().drop_columns(["prompt_id"]), tmp_path / "a.parquet")
    expect = dict.fromkeys(("groups", "group_size", "steps", "responses_per_step"), "1..")
    (finding,) = (
        one
        for one in rlpost.inspect(path, expect=expect).findings
        if one.name == "unmet_expectations"
    )
    assert finding.count == 4
    assert finding.text.count("unknown, no column for group") == 2
    recipe = rlpost.Recipe(estimator="reinforce")
    with pytest.raises(FindingsError) as error:
        rlpost.advantages(path, tmp_path / "b.parquet", recipe, rlpost.Options(expect=expect))
    assert str(error.value).count("unknown, no column for batch") == 2


def test_evidence_has_the_groups_steps_and_responses(tmp_path):
    table = rollout(16).slice(0, 15).append_column("step", pa.array([0] * 8 + [1] * 7))
    path = save(table, tmp_path / "a.parquet")

    def evidence(**expect):
        (finding,) = (
            one
            for one in rlpost.inspect(path, expect=expect).findings
            if one.name == "unmet_expectations"
        )
        return [(one.group, one.row) for one in finding.evidence]

    def rows(flags):
        return [(f"p{row // 4}", row) for row, flag in enumerate(flags) if flag][:5]

    assert evidence(group_size=4) == [("p3", 12)]
    assert evidence(responses_per_step=8) == [("p2", 8)]
    masks, rewards = (table[name].to_pylist() for name in ("response_mask", "reward"))
    assert evidence(policy_tokens="..3") == rows(sum(mask) > 3 for mask in masks)
    assert evidence(rewards="..0.8") == rows(reward > 0.8 for reward in rewards)
    with pytest.raises(FindingsError, match=r"1 group of 3 .*a\.parquet, row 12"):
        rlpost.advantages(path, tmp_path / "b.parquet", RECIPE, LOCAL_ONE)


LOCAL_ONE = replace(LOCAL, expect={"group_size": 4})


ENGINES = {
    "local": lambda top, options: rlpost.advantages(top / "in", top / "out", RECIPE, options),
    "update": lambda top, options: rlpost.advantages(
        top / "in", top / "out", RECIPE, replace(options, update=True)
    ),
    "tasks": lambda top, options: in_tasks(top / "in", top / "out", RECIPE, options),
    "ray": lambda top, options: rlpost.advantages(
        top / "in", top / "out", RECIPE,
        replace(RAY, expect=options.expect, fail_on=options.fail_on, state=options.state),
    ),
}  # fmt: skip


AT_NIGHT = [pytest.param(n, marks=pytest.mark.nightly if n == "ray" else ()) for n in ENGINES]


def published(folder):
    return [path.name for path in (folder / "out").glob("*.parquet")]


@pytest.mark.parametrize("engine", AT_NIGHT)
def test_no_engine_publishes_if_an_expectation_is_not_met(engine, folder):
    """The message is that of a local run, with the first row of a group of each wrong size."""
    expect = {"group_size": 2, "responses": 60}
    with pytest.raises(FindingsError) as error:
        ENGINES[engine](folder, replace(LOCAL, expect=expect))
    assert published(folder) == []
    assert "groups of 1 " in str(error.value)
    assert f"(the first begins at {folder / 'in' / 'part-0.parquet'}, row " in str(error.value)
    (text,) = error.value.summary["errors"]
    with pytest.raises(FindingsError) as local:
        ENGINES["local"](folder, replace(LOCAL, expect=expect))
    assert [text] == local.value.summary["errors"]
    assert ENGINES["local"](folder, LOCAL).errors == []
    assert len(published(folder)) == 4


@pytest.mark.parametrize("engine", AT_NIGHT)
def test_warnings_fail_a_run_on_request_and_its_state_stays(engine, folder):
    state = None if engine == "update" else folder / "state.json"
    with pytest.raises(FindingsError) as error:
        ENGINES[engine](folder, replace(LOCAL, fail_on="warning", state=state))
    assert error.value.summary["errors"] == []
    assert all(text in str(error.value) for text in error.value.summary["warnings"])
    assert published(folder) == []
    assert not (folder / "state.json").exists()
    again = folder / "again"
    write_files(TABLE, again / "in", 3)
    assert ENGINES[engine](again, replace(LOCAL, fail_on="error"))["warnings"]
    assert len(published(again)) == 4


def test_errors_fail_a_run_on_request(tmp_path):
    table = rollout()
    path = save(table.set_column(1, "reward", pa.array([1.0] * 12)), tmp_path / "a.parquet")
    out, summary = tmp_path / "b.parquet", tmp_path / "summary.json"
    words = ["advantages", path, out, "--summary-json", summary, "-q"]
    for severity in ("error", "warning"):
        ran = run(*words, "--fail-on", severity)
        assert (ran.code, out.exists()) == (1, False)
        assert "all advantages are zero" in ran.err
        assert len(strict_json(summary.read_text())["errors"]) == 1
    assert run(*words).code == 0
    assert strict_json(summary.read_text())["outputs"] == [str(out)]


def test_tables_in_memory_fail_likewise():
    with pytest.raises(FindingsError, match="--expect group_size=3: 4 came"):
        rlpost.enrich(rollout(), RECIPE, rlpost.Options(expect={"group_size": 3}))
    with pytest.raises(FindingsError, match="the input is a table"):
        rlpost.enrich(rollout(), RECIPE, rlpost.Options(expect={"files": 1}))
    assert rlpost.enrich(rollout(), RECIPE, rlpost.Options(expect={"group_size": 4}))[1]


def test_a_stopped_run_keeps_its_files_and_a_run_without_the_option_publishes_them(folder):
    options = replace(LOCAL, resume=True, expect={"group_size": 9})
    with pytest.raises(FindingsError):
        rlpost.advantages(folder / "in", folder / "out", RECIPE, options)
    assert published(folder) == []
    rlpost.advantages(folder / "in", folder / "out", RECIPE, replace(LOCAL, resume=True))
    assert len(published(folder)) == 4
