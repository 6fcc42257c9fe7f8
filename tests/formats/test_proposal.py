"""Files of layouts that nobody declared: where the rows are and what each field is."""

import json
import shlex

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from runs import loads, run

import rlpost
from rlpost.errors import UsageError
from rlpost.formats.base import ReadOptions
from rlpost.formats.proposal import propose, sample_of

CHAT = [{"role": "user", "content": "1+1?"}], [{"role": "user", "content": "2+2?"}]


def lines(path, records):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(one) + "\n" for one in records))
    return path


def whole(path, value):
    path.write_text(json.dumps(value))
    return path


def proposed(path, **options):
    return propose(sample_of([path]), ReadOptions(**options))


def results(ids):
    """As verifiers writes them: ids out of order, messages, whole floats as counts."""
    return [
        {
            "id": ids[i], "prompt": CHAT[i // 3],
            "completion": [{"role": "assistant", "content": "a"}],
            "answer": "2", "task": "default", "info": {},
            "reward": float(i % 3 == 0), "error": None,
            "is_truncated": i % 3 == 2, "stop_condition": None, "format_reward": 1.0,
            "token_usage": {"input_tokens": 1.0, "output_tokens": 14.0},
        }
        for i in range(6)
    ]  # fmt: skip


def test_an_id_that_contradicts_the_prompt_is_refused(tmp_path):
    found = proposed(lines(tmp_path / "a.jsonl", results([0, 1, 0, 1, 0, 1])))
    assert found.rows is None
    assert not found.doubt
    assert found.roles == {
        "reward": "reward", "group": "prompt", "truncated": "is_truncated",
        "response": "completion",
        "response_length": "token_usage.output_tokens",
    }  # fmt: skip
    assert "reward" not in found.map  # its name says it
    right = proposed(lines(tmp_path / "b.jsonl", results([4, 4, 4, 7, 7, 7])))
    assert right.roles["group"] == "prompt"  # a name of a prompt is worth more than `id`
    named = [{**one, "example_id": i // 3} for i, one in enumerate(results(range(6)))]
    assert proposed(lines(tmp_path / "c.jsonl", named)).roles["group"] == "example_id"


SAMPLE = {"problem_id": 1, "score": 0.5, "finish_reason": "stop", "steps": [{"reward": 9.0}]}
PLACES = {
    "an object": ({"accuracy": 0.4, "samples": [SAMPLE, {**SAMPLE, "score": 1.0}]}, "samples"),
    "an array": ([SAMPLE, {**SAMPLE, "score": 1.0}], None),
    "nested": ({"run": {"results": [SAMPLE, {**SAMPLE, "score": 1.0}]}}, "run.results"),
    "lists in lists": (
        {"groups": [{"q": "a", "rollouts": [SAMPLE]}, {"q": "b", "rollouts": [SAMPLE, SAMPLE]}]},
        "groups.rollouts",
    ),
    "objects by name": ({"scores": {"a": SAMPLE, "b": {**SAMPLE, "score": 1.0}}}, "scores"),
    "nothing but objects": ({"a": SAMPLE, "b": {**SAMPLE, "score": 1.0}}, "*"),
    "lists by name": (
        {"tasks": {"a": {"rollouts": [SAMPLE]}, "b": {"rollouts": [SAMPLE, SAMPLE]}}},
        "tasks.rollouts",
    ),
    "rubrics of an answer": (
        [
            {"reward": 1.0, "rubric_judgements": [{"score": 0.1}] * 3, "task_id": i}
            for i in range(3)
        ],
        None,
    ),
    "turns of one answer": ({"reward": 1.0, "trajectory": [{"reward": 0.0}] * 4}, None),
}


@pytest.mark.parametrize("case", PLACES)
def test_the_rows_are_where_the_rewards_are(case, tmp_path):
    value, place = PLACES[case]
    found = proposed(whole(tmp_path / "a.json", value))
    assert (found.rows, found.doubt) == (place, "")


def test_the_name_of_an_object_may_be_its_group_and_what_has_no_column_is_named(tmp_path):
    tasks = {f"t{i}": {"rollouts": [{"reward": 0.0}, {"reward": i}]} for i in range(3)}
    source = whole(tmp_path / "a.json", {"tasks": tasks, "config": {"lr": 1}, "ys": [1]})
    summary = rlpost.convert(source, tmp_path / "o.parquet")
    assert pq.read_table(tmp_path / "o.parquet")["prompt_id"].to_pylist() == [
        "t0", "t0", "t1", "t1", "t2", "t2",
    ]  # fmt: skip
    assert summary["warnings"] == ["2 fields without a column, left out: config, ys"]


def test_parquet_whose_roles_are_in_structs_alone_is_proposed(tmp_path):
    rows = [{"meta": {"uid": f"u{i // 2}", "reward": i % 2}} for i in range(4)]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "in.parquet")
    assert rlpost.inspect(tmp_path / "in.parquet").prompt_groups.sizes == {2: 2}


def test_lists_of_one_length_are_the_responses_of_a_record(tmp_path):
    records = [{"question": q, "responses": ["a", "b"], "rewards": [0.0, 1.0]} for q in "xy"]
    found = proposed(lines(tmp_path / "a.jsonl", records))
    assert (found.rows, found.roles["reward"], found.roles["group"]) == (
        "rewards",
        "rewards",
        "question",
    )
    tokens = [{"prompt": "x", "ids": [1, 2], "rewards": [0.0, 1.0]}]
    assert proposed(lines(tmp_path / "b.jsonl", tokens)).rows is None


def test_rows_without_a_key_are_blocks_of_their_record(tmp_path):
    records = [{"rollouts": [{"reward": 0.0}, {"reward": 1.0}]} for _ in range(3)]
    found = proposed(lines(tmp_path / "a.jsonl", records))
    assert (found.rows, found.group_size) == ("rollouts", 2)
    assert "group" not in found.roles


def test_groups_of_lists_are_rows_and_a_mask_is_of_0_and_1(tmp_path):
    """As Atropos writes them: -100 for the prompt, and ids of tokens, in place of a mask."""
    group = {"tokens": [[1, 2, 3]] * 4, "masks": [[-100, 2, 3]] * 4, "scores": [1.0, 0.0, 0.0, 1.0]}
    chats = [[{"role": "user", "content": "q"}]] * 4
    path = lines(
        tmp_path / "a.jsonl", [{**group, "group_id": i, "messages": chats} for i in (0, 1)]
    )
    made = rlpost.convert(path, tmp_path / "a.parquet")
    assert (made["proposed"]["rows"], made["proposed"]["map"]["mask"]) == ("scores", "none")
    table = pq.read_table(tmp_path / "a.parquet")
    assert table["reward"].to_pylist() == [1.0, 0.0, 0.0, 1.0] * 2
    assert table["prompt_id"].to_pylist() == ["0"] * 4 + ["1"] * 4


def test_values_decide_as_names_do(tmp_path):
    records = [
        {
            "prompt": "", "task_name": f"t{i // 2}", "is_resolved": None if i == 3 else i % 2 == 0,
            "failure_mode": "unset" if i < 3 else "timeout", "score": "good", "domain": f"d{i}",
            "logprobs": [-0.5, -0.1], "response_mask": [1, 1], "uid": i,
            "difficulty": "easy", "global_step": "first",
        }
        for i in range(4)
    ]  # fmt: skip
    found = proposed(lines(tmp_path / "a.jsonl", records))
    assert found.roles == {
        "reward": "is_resolved", "group": "task_name", "mask": "response_mask",
        "infer_log_probs": "logprobs",
    }  # fmt: skip
    misleading = ("domain", "batch", "difficulty")  # by their names alone
    assert {role for role, path in found.map.items() if path == "none"} == {*misleading}


@pytest.mark.parametrize(("uid", "says"), [(1e17, "1e+17"), (0.5, "0.5")])
def test_a_key_that_a_double_cannot_hold_is_named_where_it_stands(tmp_path, uid, says):
    made = lines(tmp_path / "a.jsonl", [{"uid": uid, "reward": float(i)} for i in range(4)])
    ran = run("advantages", made, tmp_path / "out.parquet")
    assert ran.code == 3
    assert f"line 1: `uid` is {says}" in ran.err


def test_what_is_proposed_is_read_and_stated(tmp_path):
    """The command gives the same columns, and the user's options come first."""
    source = whole(tmp_path / "a.json", {"n": 2, "samples": [
        {"q": "x", "quality": 0.1, "correct": i == 0, "task_id": i // 2} for i in range(4)
    ]})  # fmt: skip
    made = rlpost.convert(source, tmp_path / "a.parquet")
    command = shlex.split(made["proposed"]["command"])
    assert command[-6:] == [
        "--rows",
        "samples",
        "--map",
        "reward=correct",
        "--map",
        "group=task_id",
    ]
    words = [str(tmp_path / "b.parquet") if one == "OUT.parquet" else one for one in command[1:]]
    assert run(*words).code == 0
    tables = [pq.read_table(tmp_path / f"{name}.parquet") for name in "ab"]
    assert tables[0].equals(tables[1])
    assert tables[0]["reward"].to_pylist() == [1.0, 0.0, 0.0, 0.0]
    ran = run("advantages", source, tmp_path / "c.parquet", "--map", "reward=quality")
    assert (
        "as proposed: rows are the items of `samples`, reward = quality, group = task_id" in ran.err
    )
    assert "stated: rlpost convert" in ran.err
    assert pq.read_table(tmp_path / "c.parquet")["reward"].to_pylist() == [0.1] * 4
    shown = loads(run("inspect", source, "--group-size", "4", "--format", "json").out)
    assert shown["prompt_groups"]["sizes"] == {"4": 1}


def test_what_is_not_sure_is_an_error_with_the_fields_and_a_command_that_runs(tmp_path):
    source = lines(
        tmp_path / "a.jsonl", [{"verdict": x, "q": "x", "n_tokens": 3} for x in (0.25, 0.5)]
    )
    ran = run("inspect", source)
    assert ran.code == 2
    assert "the format is unknown, and no field looks like a reward" in ran.err
    flat = " ".join(ran.err.split())
    assert "verdict (number, 0.25: reward)" in flat
    assert 'q (text, "x")' in flat
    command = shlex.split(flat.partition("tip: ")[2])
    words = [str(tmp_path / "b.parquet") if one == "OUT.parquet" else one for one in command[1:]]
    assert run(*words).code == 0
    two = lines(tmp_path / "b.jsonl", [{"correct": i, "solved": 1 - i, "q": "x"} for i in (0, 1)])
    with pytest.raises(UsageError, match="correct and solved look like rewards alike"):
        rlpost.convert(two, tmp_path / "c.parquet")
    inside = whole(tmp_path / "d.json", {"samples": [{"verdict": 0.5}, {"verdict": 0.0}]})
    with pytest.raises(UsageError, match="--rows samples --map reward=verdict"):
        rlpost.convert(inside, tmp_path / "c.parquet", source="jsonl")


def test_a_folder_of_an_object_a_file_is_one_input_and_other_files_are_left_out(tmp_path):
    for i in range(6):
        (tmp_path / "trials" / str(i)).mkdir(parents=True)
        whole(
            tmp_path / "trials" / str(i) / "results.json",
            {"task_id": f"t{i // 3}", "passed": i % 3 == 0},
        )
    shown = rlpost.inspect(tmp_path / "trials")
    assert (shown.responses, shown.prompt_groups.sizes) == (6, {3: 2})
    lines(tmp_path / "runs" / "results.jsonl", results(range(6)))
    whole(tmp_path / "runs" / "metadata.json", {"model": "m", "avg_reward": 0.3})
    made = rlpost.convert(tmp_path / "runs", tmp_path / "out.parquet")
    assert made["responses"] == 6
    assert made["skipped_files"] == [str(tmp_path / "runs" / "metadata.json")]


def test_options_of_dumps_are_those_of_three_commands(tmp_path):
    """Parquet is read as a dump where an option says so; a field of a dump is no column then."""
    source = lines(
        tmp_path / "a.jsonl", [{"prompt_id": "p", "reward": 1.0, "other": i} for i in range(4)]
    )
    ran = run(
        "advantages", source, tmp_path / "b.parquet", "--map", "reward=other", "--group-size", "2"
    )
    assert (ran.code, "2 groups of 2" in ran.err) == (0, True)
    assert pq.read_table(tmp_path / "b.parquet")["reward"].to_pylist() == [0.0, 1.0, 2.0, 3.0]
    table = tmp_path / "c.parquet"
    (tmp_path / "steps").mkdir()
    pq.write_table(pq.read_table(tmp_path / "b.parquet").select(["reward", "prompt_id"]), table)
    assert rlpost.inspect(table, group_size=4).prompt_groups.sizes == {4: 1}
    assert rlpost.inspect(table).prompt_groups.sizes == {2: 2}
    for name in ("step_0", "step_1"):
        pq.write_table(pq.read_table(table), tmp_path / "steps" / f"{name}.parquet")
    assert rlpost.inspect(tmp_path / "steps", source="parquet").prompt_groups.sizes == {2: 4}
    assert rlpost.inspect(tmp_path / "steps").prompt_groups.sizes == {4: 2}
    ran = run("inspect", table, "--rows", "samples")
    assert (ran.code, "Traceback" in ran.err) == (3, False)
    for command in ("convert", "inspect", "advantages"):
        text = run(command, "--help-all" if command == "advantages" else "--help").out
        assert [x for x in ("--from", "--rows", "--group-size", "--map") if x not in text] == []


def test_fields_of_dumps_are_mapped_wherever_columns_are(tmp_path):
    value = {"samples": [{"verdict": i / 2, "id": i // 2, "old": float(i)} for i in range(4)]}
    source = whole(tmp_path / "a.json", value)
    mapped = {"reward": "verdict"}
    assert rlpost.report(source, columns_map=mapped).roles["reward"].column == "reward"
    recipes = {"a": rlpost.Recipe(columns=mapped), "b": rlpost.Recipe(estimator="rloo")}
    compared = rlpost.compare(source, recipes, columns_map=mapped)
    assert compared["sides"] == ["a", "b"]


def test_a_number_of_the_outer_record_is_no_length_of_its_responses(tmp_path):
    path = whole(
        tmp_path / "game.json",
        [
            {"idx": i, "samples": [{"reward": 0}, {"reward": i}], "usage": {"output_tokens": 90}}
            for i in range(3)
        ],
    )
    assert proposed(path).roles == {"reward": "reward", "group": "idx"}


def test_rewards_of_an_unknown_name_within_lists_are_in_the_advice(tmp_path):
    steps = [{"idx": i, "infos": [{"r": 0}, {"r": i}], "cost": 0.5} for i in range(3)]
    found = proposed(whole(tmp_path / "game.json", steps))
    assert found.doubt == "no field looks like a reward"
    assert (found.rows, found.roles) == ("infos", {"reward": "r", "group": "idx"})


def test_a_seed_of_several_records_does_not_join_their_groups(tmp_path):
    scores = [[0.5, 0.2], [0.1, -0.3], [0.4, 0.4]]
    records = [
        {"seed": 7 + i // 2, "scores": x, "messages": [CHAT[0], CHAT[1]]}
        for i, x in enumerate(scores)
    ]
    found = proposed(lines(tmp_path / "steps.jsonl", records))
    assert (found.rows, found.group_size) == ("scores", 2)
    assert "group" not in found.roles
    alone = proposed(lines(tmp_path / "alone.jsonl", records[1:]))
    assert (alone.roles["group"], alone.group_size) == ("seed", None)


def test_lists_of_one_answer_are_rows(tmp_path):
    records = [
        {"idx": i, "question": f"{i}?", "code": ["so"], "pred": ["1"], "score": [i > 1]}
        for i in range(4)
    ]
    found = proposed(lines(tmp_path / "math.jsonl", records))
    assert (found.rows, found.roles["reward"], found.doubt) == ("score", "score", "")


def test_categories_of_datasets_are_walked(tmp_path):
    results = [
        {"question": str(i), "completions": [{"score": 0.0}, {"score": 1.0}]} for i in (1, 2)
    ]
    whole(tmp_path / "a.json", {"categories": [{"datasets": [{"results": results}]}]})
    found = proposed(tmp_path / "a.json")
    assert found.rows == "categories.datasets.results.completions"
    assert (found.roles["reward"], found.doubt) == ("score", "")


def test_a_list_that_is_not_of_tokens_leaves_responses_without_tokens(tmp_path):
    votes = [{"idx": i // 2, "reward": i % 2, "votes": [7, 7, i]} for i in range(4)]
    run("advantages", lines(tmp_path / "votes.jsonl", votes), tmp_path / "out.parquet")
    got = pq.read_table(tmp_path / "out.parquet")
    half = 0.5**0.5
    assert got["response_advantage"].to_pylist() == pytest.approx([-half, half] * 2, abs=1e-5)
    assert got["votes"].to_pylist() == [one["votes"] for one in votes]


def test_a_text_that_some_rows_lack_is_no_domain(tmp_path):
    calls = [{"idx": 0, "reward": i, **({"subject": "a"} if i else {})} for i in range(4)]
    assert proposed(lines(tmp_path / "calls.jsonl", calls)).roles == {
        "reward": "reward", "group": "idx",
    }  # fmt: skip
    full = [{**one, "subject": "a"} for one in calls]
    assert proposed(lines(tmp_path / "full.jsonl", full)).roles["domain"] == "subject"
