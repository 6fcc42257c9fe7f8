"""The sample rollouts: rewards, masks and scores, recomputed from their tokens."""

import json
import math
import re
from itertools import pairwise
from pathlib import Path

import polars as pl
import pyarrow.parquet as pq
import pytest

FOLDER = Path(__file__).parent.parent / "sample_data"
FILES = {name: FOLDER / f"{name}.parquet" for name in ("arithmetic", "calculator")}
EOS, MOST_TOKENS = 1, 30
LOG_PROBS = ["old_log_probs", "infer_log_probs", "ref_log_probs", "log_probs"]
TOKEN_COLUMNS = [*LOG_PROBS, "response_tokens", "response_mask", "values", "sum_pi_squared"]


def frame(name):
    return pl.read_parquet(FILES[name])


def value(expression):
    """Evaluate a sum or difference of products."""
    terms = re.findall(r"([+-]?)(\d+(?:\*\d+)*)", expression)
    assert "".join(map("".join, terms)) == expression
    return sum((-1 if sign == "-" else 1) * math.prod(map(int, t.split("*"))) for sign, t in terms)


@pytest.mark.parametrize("name", FILES)
def test_a_file_is_complete_and_its_tokens_decode_to_its_texts(name):
    rows, schema = frame(name), pq.read_schema(FILES[name])
    words = json.loads(schema.metadata[b"vocabulary"])
    for text in ("prompt", "response"):
        decoded = ["".join(words[t] for t in tokens) for tokens in rows[f"{text}_tokens"].to_list()]
        assert decoded == rows[text].to_list()
    lengths = rows.select(pl.col(TOKEN_COLUMNS).list.len())
    assert all((lengths[column] == lengths["response_tokens"]).all() for column in lengths.columns)
    tokens = rows.explode(TOKEN_COLUMNS)
    assert sum(tokens.null_count().row(0)) == 0
    assert all(tokens[column].is_finite().all() for column in [*LOG_PROBS, "values", "reward"])
    assert all(tokens[column].max() <= 0 for column in LOG_PROBS)
    p, total = (tokens[x].to_numpy() for x in ("old_log_probs", "sum_pi_squared"))
    p = math.e**p
    assert ((total >= p**2 - 1e-5) & (total <= p**2 + (1 - p) ** 2 + 1e-5)).all()
    groups = rows.group_by("step", "prompt_id")
    counted = "traj_id" if name == "calculator" else "response"
    sizes = groups.agg(pl.len() if counted == "response" else pl.col(counted).n_unique())
    assert {*sizes[sizes.columns[-1]]} == {8}
    assert {*groups.agg(pl.col("reward_baseline").n_unique())["reward_baseline"]} == {1}


def test_rewards_are_the_sum_of_their_components():
    rows = frame("arithmetic")
    assert (rows["reward"] == rows["reward_correct"] + rows["reward_format"]).all()
    columns = ("prompt", "response", "finish_reason", "reward_correct")
    for prompt, response, finish, correct in rows.select(*columns).iter_rows():
        answer = response.partition("#")[2]
        right = answer == str(value(prompt.removesuffix("="))) and finish == "stop"
        assert correct == right, (prompt, response)


def test_truncated_responses_lack_the_end_token():
    rows = frame("arithmetic")
    truncated = rows["finish_reason"] == "length"
    assert (truncated == (rows["response_tokens"].list.last() != EOS)).all()
    assert {*rows.filter(truncated)["response_tokens"].list.len()} == {MOST_TOKENS}


def trajectories():
    rows = frame("calculator").sort("traj_id", "turn")
    return [part.to_dicts() for part in rows.partition_by("traj_id", maintain_order=True)]


def test_turns_follow_one_another_and_an_episode_succeeds_if_its_last_turn_is_the_answer():
    for turns in trajectories():
        assert [row["turn"] for row in turns] == list(range(len(turns)))
        for row, after in pairwise(turns):
            assert after["prompt_tokens"] == row["prompt_tokens"] + row["response_tokens"]
        success = turns[-1]["response"] == f"#{value(turns[0]['prompt'].removesuffix('?'))}"
        assert {row["episode_score"] for row in turns} == {float(success)}
        assert (turns[-1]["step_score"] == 1) == success


def test_the_mask_is_zero_exactly_on_observation_tokens():
    for row in frame("calculator").iter_rows(named=True):
        own, call_end, reply = row["response"].partition(">")
        policy_tokens = len(own + call_end) + (row["response_tokens"][-1] == EOS)
        assert row["response_mask"] == [1] * policy_tokens + [0] * len(reply), row["response"]


def test_a_helpful_call_scores_and_a_wasted_call_costs():
    for turns in trajectories():
        known = {*re.findall(r"\d+", turns[0]["prompt"])}
        made = set()
        for row in turns:
            assert row["reward"] == row["step_score"]
            assert row["state_id"] == turns[0]["prompt"] + ",".join(sorted(made))
            call, _, reply = row["response"].removeprefix("<").partition(">")
            if re.fullmatch(r"#-?\d+", row["response"]):
                continue
            helps = re.fullmatch(r"\[-?\d+\]", reply) and row["response"].startswith("<")
            helps = helps and known.issuperset(re.split(r"[-+*]", call)) and call not in made
            assert row["step_score"] == (0.1 if helps else -0.1), row["response"]
            if helps:
                assert reply == f"[{value(call)}]"
                made.add(call)
                known.add(reply.strip("[]"))
