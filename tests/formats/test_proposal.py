"""Files of layouts that nobody declared: where the rows are and what each field is."""

from __future__ import annotations

import json
import shlex

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from format_writers import lines
from runs import loads, run

import rlpost
from rlpost.errors import DataError, UsageError
from rlpost.formats.base import ReadOptions
from rlpost.formats.proposal import propose, sample_of

CHAT = [{"role": "user", "content": "1+1?"}], [{"role": "user", "content": "2+2?"}]


def whole(path, value):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value))
    return path


def results(ids, **more):
    """As verifiers writes them: ids out of order, messages, whole floats as counts."""
    return [
        {
            "id": ids[i], "prompt": CHAT[i // 3],
            "completion": [{"role": "assistant", "content": "a"}],
            "answer": "2", "task": "default", "info": {},
            "reward": float(i % 3 == 0), "error": None,
            "is_truncated": i % 3 == 2, "stop_condition": None, "format_reward": 1.0,
            "token_usage": {"input_tokens": 1.0, "output_tokens": 14.0},
            **{name: values[i] for name, values in more.items()},
        }
        for i in range(6)
    ]  # fmt: skip


SAMPLE = {"problem_id": 1, "score": 0.5, "finish_reason": "stop", "steps": [{"reward": 9.0}]}
PAIR = [SAMPLE, {**SAMPLE, "score": 1.0}]
RUBRICS = [
    {"reward": 1.0, "rubric_judgements": [{"score": 0.1}] * 3, "task_id": i} for i in range(3)
]
SEEDS = [
    {"seed": 7 + i // 2, "scores": scores, "messages": [*CHAT]}
    for i, scores in enumerate([[0.5, 0.2], [0.1, -0.3], [0.4, 0.4]])
]
CATEGORIES = [{"question": str(i), "completions": [{"score": 0.0}, {"score": 1.0}]} for i in (1, 2)]
CALLS = [{"idx": 0, "reward": i, **({"subject": "a"} if i else {})} for i in range(4)]
REWARD = {"reward": "reward"}
CASES = {
    # Where the rows are
    "an object": ({"accuracy": 0.4, "samples": PAIR}, "samples", None),
    "an array": (PAIR, None, None),
    "nested": ({"run": {"results": PAIR}}, "run.results", None),
    "lists in lists": (
        {"groups": [{"q": "a", "rollouts": [SAMPLE]}, {"q": "b", "rollouts": PAIR}]},
        "groups.rollouts", None,
    ),
    "objects by name": ({"scores": {"a": SAMPLE, "b": PAIR[1]}}, "scores", None),
    "nothing but objects": ({"a": SAMPLE, "b": PAIR[1]}, "*", None),
    "lists by name": (
        {"tasks": {"a": {"rollouts": [SAMPLE]}, "b": {"rollouts": PAIR}}}, "tasks.rollouts", None,
    ),
    "rubrics of an answer": (RUBRICS, None, None),
    "turns of one answer": ({"reward": 1.0, "trajectory": [{"reward": 0.0}] * 4}, None, None),
    "categories of datasets": (
        {"categories": [{"datasets": [{"results": CATEGORIES}]}]},
        "categories.datasets.results.completions", {"reward": "score", "group": "question"},
    ),
    "lists of one length are the responses": (
        [{"question": q, "responses": ["a", "b"], "rewards": [0.0, 1.0]} for q in "xy"],
        "rewards", {"reward": "rewards", "group": "question", "response": "responses"},
    ),
    "messages of a prompt are no list of responses": (
        [{"prompt": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": q}],
          "responses": ["a", "b"], "rewards": [0.0, 1.0]} for q in "xy"],
        "rewards", {"reward": "rewards", "group": "prompt", "response": "responses"},
    ),
    "lists of one answer": (
        [{"idx": i, "question": f"{i}?", "code": ["so"], "pred": ["1"], "score": [i > 1]}
         for i in range(4)],
        "score", None,
    ),
    # What the fields are
    "an id that contradicts the prompt is refused": (
        results([0, 1, 0, 1, 0, 1]), None,
        {**REWARD, "group": "prompt", "truncated": "is_truncated", "response": "completion",
         "response_length": "token_usage.output_tokens"},
    ),
    "a prompt is worth more than `id`": (
        results([4, 4, 4, 7, 7, 7]), None,
        {**REWARD, "group": "prompt", "truncated": "is_truncated", "response": "completion",
         "response_length": "token_usage.output_tokens"},
    ),
    "an example is worth more than a prompt": (
        results(range(6), example_id=[0, 0, 0, 1, 1, 1]), None,
        {**REWARD, "group": "example_id", "truncated": "is_truncated", "response": "completion",
         "response_length": "token_usage.output_tokens"},
    ),
    "values decide as names do": (
        [{"prompt": "", "task_name": f"t{i // 2}", "is_resolved": None if i == 3 else i % 2 == 0,
          "failure_mode": "unset" if i < 3 else "timeout", "score": "good", "domain": f"d{i}",
          "logprobs": [-0.5, -0.1], "response_mask": [1, 1], "uid": i,
          "difficulty": "easy", "global_step": "first"} for i in range(4)], None,
        {"reward": "is_resolved", "group": "task_name", "mask": "response_mask",
         "infer_log_probs": "logprobs"},
    ),
    "a number of the outer record is no length": (
        [{"idx": i, "samples": [{"reward": 0}, {"reward": i}], "usage": {"output_tokens": 90}}
         for i in range(3)],
        "samples", {**REWARD, "group": "idx"},
    ),
    "a seed of several records does not join their groups": (SEEDS, "scores", {"reward": "scores"}),
    "a seed of each record is a group": (
        SEEDS[1:], "scores", {"reward": "scores", "group": "seed"},
    ),
    "a text that some rows lack is no domain": (CALLS, None, {**REWARD, "group": "idx"}),
    "a text of all rows is": (
        [{**one, "subject": "a"} for one in CALLS], None,
        {**REWARD, "group": "idx", "domain": "subject"},
    ),
    "rows without a key are blocks of their record": (
        [{"rollouts": [{"reward": 0.0}, {"reward": 1.0}]} for _ in range(3)], "rollouts", REWARD,
    ),
}  # fmt: skip
BLOCKS = {"rows without a key are blocks of their record",
          "a seed of several records does not join their groups"}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_rows_are_where_the_rewards_are_and_fields_have_the_likeliest_roles(case, tmp_path):
    value, rows, roles = CASES[case]
    proposal = propose(sample_of([whole(tmp_path / "a.json", value)]), ReadOptions())
    assert (proposal.rows, proposal.doubt) == (rows, "")
    assert roles is None or {x: y for x, y in proposal.roles.items() if x in roles} == roles
    assert roles is None or proposal.roles.keys() - roles.keys() <= {"response"}
    assert proposal.group_size == (2 if case in BLOCKS else None)
    assert "reward" not in proposal.map or roles is None or roles["reward"] != "reward"
    if case == "values decide as names do":  # by their names alone
        misleading = {"domain", "batch", "difficulty"}
        assert {role for role, path in proposal.map.items() if path == "none"} == misleading


def test_the_name_of_an_object_may_be_its_group_and_what_has_no_column_is_named(tmp_path):
    tasks = {f"t{i}": {"rollouts": [{"reward": 0.0}, {"reward": i}]} for i in range(3)}
    source = whole(tmp_path / "a.json", {"tasks": tasks, "config": {"lr": 1}, "ys": [1]})
    summary = rlpost.convert(source, tmp_path / "o.parquet")
    groups = pq.read_table(tmp_path / "o.parquet")["prompt_id"].to_pylist()
    assert groups == ["t0", "t0", "t1", "t1", "t2", "t2"]
    assert summary["warnings"] == ["2 fields without a column, left out: config, ys"]


def test_an_id_that_a_row_lacks_is_an_error_of_that_row(tmp_path):
    records = [{"config": {"lr": 1}}, *({"prompt_id": i // 2, "reward": i % 2} for i in range(8))]
    with pytest.raises(DataError, match="line 1: `prompt_id` is null; every row needs a value"):
        rlpost.convert(lines(tmp_path / "dump.jsonl", records), tmp_path / "out.parquet")


def test_a_row_that_lacks_a_field_has_that_of_its_record(tmp_path):
    samples = [{"reward": 1, "answer": ["c"]}, {"reward": 0}]
    record = {"q": "x", "answer": ["a", "b"], "samples": samples}
    path = lines(tmp_path / "dump.jsonl", [record, record])
    rlpost.convert(path, tmp_path / "o.parquet", rows="samples", columns_map={"response": "answer"})
    answers = pq.read_table(tmp_path / "o.parquet")["response"].to_pylist()
    assert [json.loads(text) for text in answers] == [["c"], ["a", "b"]] * 2


@pytest.mark.parametrize("place", [0, 2])
def test_lists_of_other_lengths_are_an_error_and_records_without_rows_are_counted(place, tmp_path):
    records = [{"q": f"{i}?", "responses": [f"{i} a", f"{i} b"], "rewards": [0.0, 1.0]}
               for i in range(4)]  # fmt: skip
    records[place] |= {"rewards": [1.0]}
    path, out = tmp_path / "dump.jsonl", tmp_path / "out.parquet"
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    with pytest.raises(DataError, match=r"line \d, .*`responses` is .*need one length"):
        rlpost.convert(path, out)
    assert not out.exists()
    records[place] |= {"rewards": None}
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    converted = rlpost.convert(path, out)
    assert converted["responses"] == 6
    assert any(text.startswith("1 record without rows") for text in converted["warnings"])


def test_groups_of_lists_are_rows_and_a_mask_is_of_0_and_1(tmp_path):
    """As Atropos writes them: -100 for the prompt, and ids of tokens, in place of a mask."""
    group = {"tokens": [[1, 2, 3]] * 4, "masks": [[-100, 2, 3]] * 4, "scores": [1.0, 0.0, 0.0, 1.0]}
    chats = [[{"role": "user", "content": "q"}]] * 4
    path = lines(
        tmp_path / "a.jsonl", [{**group, "group_id": i, "messages": chats} for i in (0, 1)]
    )
    summary = rlpost.convert(path, tmp_path / "a.parquet")
    assert (summary["proposed"]["rows"], summary["proposed"]["map"]["mask"]) == ("scores", "none")
    table = pq.read_table(tmp_path / "a.parquet")
    assert table["reward"].to_pylist() == [1.0, 0.0, 0.0, 1.0] * 2
    assert table["prompt_id"].to_pylist() == ["0"] * 4 + ["1"] * 4


@pytest.mark.parametrize(("uid", "says"), [(1e17, "1e+17"), (0.5, "0.5")])
def test_a_key_that_a_double_cannot_hold_is_named_where_it_stands(tmp_path, uid, says):
    source = lines(tmp_path / "a.jsonl", [{"uid": uid, "reward": float(i)} for i in range(4)])
    ran = run("advantages", source, tmp_path / "out.parquet")
    assert (ran.code, f"line 1: `uid` is {says}" in ran.err) == (3, True)


def stated(command, out):
    """Run the command that a proposal states."""
    words = [str(out) if word == "OUT.parquet" else word for word in shlex.split(command)[1:]]
    assert run(*words).code == 0
    return words


def test_what_is_proposed_is_read_and_stated(tmp_path):
    """The command gives the same columns, and the user's options come first."""
    source = whole(tmp_path / "a.json", {"n": 2, "samples": [
        {"q": "x", "quality": 0.1, "correct": i == 0, "task_id": i // 2} for i in range(4)
    ]})  # fmt: skip
    summary = rlpost.convert(source, tmp_path / "a.parquet")
    words = stated(summary["proposed"]["command"], tmp_path / "b.parquet")
    assert words[-6:] == shlex.split("--rows samples --map reward=correct --map group=task_id")
    tables = [pq.read_table(tmp_path / f"{name}.parquet") for name in "ab"]
    assert tables[0].equals(tables[1])
    assert tables[0]["reward"].to_pylist() == [1.0, 0.0, 0.0, 0.0]
    ran = run("advantages", source, tmp_path / "c.parquet", "--map", "reward=quality")
    proposed = "as proposed: rows are the items of `samples`, reward = quality, group = task_id"
    assert proposed in ran.err
    assert "stated: rlpost convert" in ran.err
    assert pq.read_table(tmp_path / "c.parquet")["reward"].to_pylist() == [0.1] * 4
    with pytest.raises(DataError, match=r"difficulty=qualty: no field .*did you mean quality\?"):
        rlpost.convert(source, tmp_path / "d.parquet", columns_map={"difficulty": "qualty"})
    shown = loads(run("inspect", source, "--group-size", "4", "--format", "json").out)
    assert shown["prompt_groups"]["sizes"] == {"4": 1}
    mapped = {"reward": "quality"}  # a field of a dump is mapped wherever columns are
    assert rlpost.report(source, columns_map=mapped).roles["reward"].column == "reward"
    recipes = {"a": rlpost.Recipe(columns=mapped), "b": rlpost.Recipe(estimator="rloo")}
    assert rlpost.compare(source, recipes, columns_map=mapped)["sides"] == ["a", "b"]


def test_what_is_not_sure_is_an_error_with_the_fields_and_a_command_that_runs(tmp_path):
    records = [{"verdict": x, "q": "x", "n_tokens": 3} for x in (0.25, 0.5)]
    ran = run("inspect", lines(tmp_path / "a.jsonl", records))
    assert ran.code == 2
    flat = " ".join(ran.err.split())
    for text in ("the format is unknown, and no field looks like a reward",
                 "verdict (number, 0.25: reward)", 'q (text, "x")'):  # fmt: skip
        assert text in flat
    stated(flat.partition("tip: ")[2], tmp_path / "b.parquet")
    alike = [{"correct": i, "solved": 1 - i, "q": "x"} for i in (0, 1)]
    steps = [{"idx": i, "infos": [{"r": 0}, {"r": i}], "cost": 0.5} for i in range(3)]
    inside = {"samples": [{"verdict": 0.5}, {"verdict": 0.0}]}
    for value, source, told in (
        (alike, None, "correct and solved look like rewards alike"),
        (steps, None, "--rows infos --map reward=r --map group=idx"),
        (inside, "jsonl", "--rows samples --map reward=verdict"),
    ):
        with pytest.raises(UsageError, match=told):
            rlpost.convert(whole(tmp_path / "c.json", value), tmp_path / "c.parquet", source=source)


def test_a_folder_of_an_object_a_file_is_one_input_and_other_files_are_left_out(tmp_path):
    for i in range(6):
        trial = {"task_id": f"t{i // 3}", "passed": i % 3 == 0}
        whole(tmp_path / "trials" / str(i) / "results.json", trial)
    shown = rlpost.inspect(tmp_path / "trials")
    assert (shown.responses, shown.prompt_groups.sizes) == (6, {3: 2})
    lines(tmp_path / "runs" / "results.jsonl", results(range(6)))
    whole(tmp_path / "runs" / "metadata.json", {"model": "m", "avg_reward": 0.3})
    summary = rlpost.convert(tmp_path / "runs", tmp_path / "out.parquet")
    assert summary["responses"] == 6
    assert summary["skipped_files"] == [str(tmp_path / "runs" / "metadata.json")]


def test_options_of_dumps_are_those_of_three_commands(tmp_path):
    """Parquet is read as a dump where an option says so; a field of a dump is no column then."""
    records = [{"prompt_id": "p", "reward": 1.0, "other": i} for i in range(4)]
    source, out = lines(tmp_path / "a.jsonl", records), tmp_path / "b.parquet"
    ran = run("advantages", source, out, "--map", "reward=other", "--group-size", "2")
    assert (ran.code, "2 groups of 2" in ran.err) == (0, True)
    assert pq.read_table(out)["reward"].to_pylist() == [0.0, 1.0, 2.0, 3.0]
    table = tmp_path / "c.parquet"
    pq.write_table(pq.read_table(out).select(["reward", "prompt_id"]), table)
    assert rlpost.inspect(table, group_size=4).prompt_groups.sizes == {4: 1}
    assert rlpost.inspect(table).prompt_groups.sizes == {2: 2}
    (tmp_path / "steps").mkdir()
    for name in ("step_0", "step_1"):
        pq.write_table(pq.read_table(table), tmp_path / "steps" / f"{name}.parquet")
    assert rlpost.inspect(tmp_path / "steps", source="parquet").prompt_groups.sizes == {2: 4}
    assert rlpost.inspect(tmp_path / "steps").prompt_groups.sizes == {4: 2}
    structs = [{"meta": {"uid": f"u{i // 2}", "reward": i % 2}} for i in range(4)]
    pq.write_table(pa.Table.from_pylist(structs), tmp_path / "structs.parquet")
    assert rlpost.inspect(tmp_path / "structs.parquet").prompt_groups.sizes == {2: 2}
    ran = run("inspect", table, "--rows", "samples")
    assert (ran.code, "Traceback" in ran.err) == (3, False)
    for command in ("convert", "inspect"):
        text = run(command, "--help").out
        assert all(option in text for option in ("--from", "--rows", "--group-size", "--map"))


def test_a_list_that_is_not_of_tokens_leaves_responses_without_tokens(tmp_path):
    votes = [{"idx": i // 2, "reward": i % 2, "votes": [7, 7, i]} for i in range(4)]
    run("advantages", lines(tmp_path / "votes.jsonl", votes), tmp_path / "out.parquet")
    rows = pq.read_table(tmp_path / "out.parquet").to_pydict()
    half = 0.5**0.5
    assert rows["response_advantage"] == pytest.approx([-half, half] * 2, abs=1e-5)
    assert rows["votes"] == [one["votes"] for one in votes]
