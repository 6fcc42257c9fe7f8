"""The sample rollouts: rewards, masks and scores, recomputed from their tokens."""

import json
import math
import re
from itertools import pairwise
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow.parquet as pq
import pytest

FOLDER = Path(__file__).parent.parent / "sample_data"
FILES = {name: FOLDER / f"{name}.parquet" for name in ("arithmetic", "calculator")}
EOS, MOST_TOKENS = 1, 30
LOG_PROBS = ["old_log_probs", "infer_log_probs", "ref_log_probs", "log_probs"]
TOKEN_COLUMNS = [*LOG_PROBS, "response_tokens", "response_mask", "values", "sum_pi_squared"]

both_files = pytest.mark.parametrize("name", FILES)


def frame(name):
    return pl.read_parquet(FILES[name])


def tokens(name):
    """One row per response token."""
    return frame(name).explode(TOKEN_COLUMNS)


def vocabulary(name):
    return json.loads(pq.read_schema(FILES[name]).metadata[b"vocabulary"])


def value(expression):
    """Evaluate a sum or difference of products."""
    terms = re.findall(r"([+-]?)(\d+(?:\*\d+)*)", expression)
    assert "".join(map("".join, terms)) == expression
    return sum((-1 if sign == "-" else 1) * math.prod(map(int, t.split("*"))) for sign, t in terms)


def outcomes(name):
    """One row per trajectory: its group, its last turn, its total reward, its success."""
    rows = frame(name)
    if name == "arithmetic":
        return rows.with_columns(total="reward", success="reward_correct")
    last = rows.sort("turn").group_by("traj_id", maintain_order=True).last()
    totals = rows.group_by("traj_id").agg(total=pl.col("reward").sum())
    return last.join(totals, on="traj_id").with_columns(success="episode_score")


def correlation(x, y):
    return np.corrcoef(x, y)[0, 1]


# The files


def test_both_files_are_small():
    assert sum(path.stat().st_size for path in FILES.values()) < 3e6


@both_files
def test_each_row_group_is_a_step(name):
    file = pq.ParquetFile(FILES[name])
    steps = [file.read_row_group(i, ["step"])["step"].unique() for i in range(file.num_row_groups)]
    assert [step.to_pylist() for step in steps] == [[0], [1], [2], [3]]
    assert {file.metadata.row_group(0).column(i).compression for i in range(5)} == {"ZSTD"}


@both_files
def test_values_are_float32_masks_uint8_and_tokens_int32(name):
    schema = pq.read_schema(FILES[name])
    floats = [*LOG_PROBS, "values", "sum_pi_squared"]
    assert {str(schema.field(column).type) for column in floats} == {"list<element: float>"}
    assert str(schema.field("response_mask").type) == "list<element: uint8>"
    assert str(schema.field("prompt_tokens").type) == "list<element: int32>"
    assert str(schema.field("response_tokens").type) == "list<element: int32>"


@both_files
def test_the_metadata_describe_the_file(name):
    metadata = pq.read_schema(FILES[name]).metadata
    assert re.search(rb"make_rollouts\.py, seed \d+", metadata[b"made_by"])
    assert b"One row is one" in metadata[b"description"]


@both_files
def test_nothing_is_null_or_not_finite(name):
    rows = tokens(name)
    assert sum(rows.null_count().row(0)) == 0
    assert all(rows[column].is_finite().all() for column in [*LOG_PROBS, "values", "reward"])


@both_files
def test_all_lists_of_a_row_have_one_length(name):
    lengths = frame(name).select(pl.col(TOKEN_COLUMNS).list.len())
    assert lengths["response_tokens"].min() > 0
    assert all((lengths[column] == lengths["response_tokens"]).all() for column in lengths.columns)


@both_files
@pytest.mark.parametrize("text", ["prompt", "response"])
def test_tokens_decode_to_the_text(name, text):
    rows, words = frame(name), vocabulary(name)
    decoded = ["".join(words[token] for token in row) for row in rows[f"{text}_tokens"].to_list()]
    assert decoded == rows[text].to_list()


# Both tasks


@both_files
def test_every_group_has_eight_responses(name):
    rows = outcomes(name)
    sizes = rows.group_by("step", "prompt_id").len()["len"]
    assert set(sizes) == {8}
    assert len(rows) == {"arithmetic": 4 * 16 * 8, "calculator": 4 * 8 * 8}[name]


@both_files
def test_the_last_step_repeats_the_prompts_of_the_first(name):
    prompts = frame(name).group_by("step").agg(pl.col("prompt_id").unique().sort()).sort("step")
    first, second, third, last = map(set, prompts["prompt_id"])
    assert first == last
    assert first.isdisjoint(second | third)
    assert second.isdisjoint(third)


@both_files
def test_log_probs_are_not_positive(name):
    rows = tokens(name)
    assert all(rows[column].max() <= 0 for column in LOG_PROBS)
    assert rows["sum_pi_squared"].max() <= 1
    assert rows["sum_pi_squared"].min() >= 1 / len(vocabulary(name))


@both_files
def test_sum_pi_squared_agrees_with_the_probability_of_the_token(name):
    rows = tokens(name)
    p, total = np.exp(rows["old_log_probs"].to_numpy()), rows["sum_pi_squared"].to_numpy()
    rest = 1 - p
    assert (total >= p**2 - 1e-5).all()  # at least the token's own square
    assert (total <= p**2 + rest**2 + 1e-5).all()  # at most one other token with the rest


@both_files
def test_the_engine_differs_from_the_trainer_by_the_rounding_of_bfloat16(name):
    rows = tokens(name).filter(pl.col("response_mask") == 1)
    gap = (rows["infer_log_probs"] - rows["old_log_probs"]).abs()
    assert 1e-5 < gap.mean() < 1e-2
    assert gap.max() < 0.5
    assert (gap > 0).mean() > 0.9


@both_files
def test_the_policy_starts_at_the_reference_and_diverges(name):
    drift = tokens(name).with_columns(
        drift=(pl.col("old_log_probs") - pl.col("ref_log_probs")).abs()
    )
    by_step = drift.group_by("step").agg(pl.col("drift").mean()).sort("step")["drift"]
    assert by_step[0] < 1e-6
    assert all(mean > 1e-3 for mean in by_step[1:])


@both_files
def test_each_update_raises_the_probability_of_better_responses(name):
    moved = (pl.col("log_probs") - pl.col("old_log_probs")) * pl.col("response_mask")
    group = ["step", "prompt_id"]
    if name == "arithmetic":
        rows = frame(name).select(*group, gain=moved.list.sum(), total="reward")
    else:
        sums = [moved.list.sum().sum().alias("gain"), pl.col("reward").sum().alias("total")]
        rows = frame(name).group_by(*group, "traj_id").agg(sums)
    above = pl.col("total") - pl.col("total").mean().over(group)
    pull = (
        rows.with_columns(pull=above * pl.col("gain")).group_by("step").agg(pl.col("pull").mean())
    )
    assert len(pull) == 4
    assert pull["pull"].min() > 0


@both_files
def test_values_correlate_with_the_outcome(name):
    rows = outcomes(name)
    assert correlation(rows["values"].list.first(), rows["total"]) > 0.3


@both_files
def test_pass_rates_range_from_0_to_1(name):
    rates = outcomes(name).group_by("step", "prompt_id").agg(pl.col("success").mean())["success"]
    assert rates.min() == 0
    assert rates.max() == 1
    assert rates.is_between(0, 1, closed="none").mean() > 0.3
    assert 0.2 < rates.mean() < 0.8


@both_files
def test_difficulty_predicts_the_pass_rate(name):
    rows = outcomes(name)
    groups = rows.group_by("step", "prompt_id", "difficulty").agg(pl.col("success").mean())
    assert len(groups) == len(rows) / 8
    assert rows["difficulty"].is_between(0, 1).all()
    assert correlation(groups["success"], groups["difficulty"]) < -0.7


@both_files
def test_each_group_has_one_greedy_baseline(name):
    rows = frame(name)
    baselines = rows.group_by("step", "prompt_id").agg(pl.col("reward_baseline").n_unique())
    assert set(baselines["reward_baseline"]) == {1}
    assert rows["reward_baseline"].n_unique() > 1
    assert correlation(rows["reward_baseline"], 1 - rows["difficulty"]) > 0.3


@both_files
def test_all_three_domains_occur_and_follow_the_operator(name):
    rows = frame(name)
    operator = {"add": "+", "sub": "-", "mul": "*"}
    assert set(rows["domain"]) == set(operator)
    pairs = rows.select("domain", "prompt").iter_rows()
    assert all(operator[domain] in prompt for domain, prompt in pairs)


# Arithmetic: one turn


def test_arithmetic_has_no_observations():
    assert set(tokens("arithmetic")["response_mask"]) == {1}


def test_rewards_are_the_sum_of_their_components():
    rows = frame("arithmetic")
    assert (rows["reward"] == rows["reward_correct"] + rows["reward_format"]).all()
    assert set(rows["reward_correct"]) == {0.0, 1.0}
    assert set(rows["reward_format"]) == {0.0, -0.1}


def test_reward_correct_is_1_for_a_finished_right_answer():
    for prompt, response, finish, correct in (
        frame("arithmetic")
        .select("prompt", "response", "finish_reason", "reward_correct")
        .iter_rows()
    ):
        answer = response.partition("#")[2]
        right = answer == str(value(prompt.removesuffix("="))) and finish == "stop"
        assert correct == right, (prompt, response)


def test_truncated_responses_lack_the_end_token():
    rows = frame("arithmetic")
    truncated = rows["finish_reason"] == "length"
    assert set(rows["finish_reason"]) == {"stop", "length"}
    assert (truncated == (rows["response_tokens"].list.last() != EOS)).all()
    assert set(rows.filter(truncated)["response_tokens"].list.len()) == {MOST_TOKENS}
    assert 0.02 < truncated.mean() < 0.2
    assert (rows.filter(truncated)["reward"] < 0).all()


def test_responses_have_many_lengths():
    lengths = frame("arithmetic")["response_tokens"].list.len()
    assert lengths.n_unique() > 15
    assert lengths.max() == MOST_TOKENS


# Calculator: several turns


def trajectories():
    rows = frame("calculator").sort("traj_id", "turn")
    return [part.to_dicts() for part in rows.partition_by("traj_id", maintain_order=True)]


def test_turns_follow_one_another():
    lengths = set()
    for turns in trajectories():
        assert [row["turn"] for row in turns] == list(range(len(turns)))
        for row, after in pairwise(turns):
            assert after["prompt_tokens"] == row["prompt_tokens"] + row["response_tokens"]
        lengths.add(len(turns))
    assert max(lengths) == 4
    assert len(lengths) > 1


def test_the_mask_is_zero_exactly_on_observation_tokens():
    for row in frame("calculator").iter_rows(named=True):
        own, call_end, reply = row["response"].partition(">")
        policy_tokens = len(own + call_end) + (row["response_tokens"][-1] == EOS)
        assert row["response_mask"] == [1] * policy_tokens + [0] * len(reply), row["response"]


def test_the_calculator_computes_correctly():
    replies = []
    for response in frame("calculator")["response"]:
        if match := re.fullmatch(r"<(\d+[-+*]\d+)>\[(.*)\]", response):
            assert match[2] == str(value(match[1]))
            replies.append(match[2])
    assert len(replies) > 500


def test_most_rows_end_in_an_observation_and_so_do_some_trajectories():
    trailing = frame("calculator")["response_mask"].list.last() == 0
    assert 0.5 < trailing.mean() < 0.9
    ends = outcomes("calculator")
    out_of_turns = ends.filter(ends["response_mask"].list.last() == 0)
    assert len(out_of_turns) > 0
    assert set(out_of_turns["turn"]) == {3}
    assert set(out_of_turns["finish_reason"]) == {"length"}


def test_observation_tokens_have_low_log_probs():
    by_mask = tokens("calculator").group_by("response_mask").agg(pl.col("old_log_probs").mean())
    observed, own = by_mask.sort("response_mask")["old_log_probs"]
    assert observed < own - 2


def test_an_episode_succeeds_if_its_last_turn_is_the_answer():
    for turns in trajectories():
        problem = turns[0]["prompt"].removesuffix("?")
        success = turns[-1]["response"] == f"#{value(problem)}"
        assert {row["episode_score"] for row in turns} == {float(success)}
        assert (turns[-1]["step_score"] == 1) == success


def test_a_helpful_call_scores_and_a_wasted_call_costs():
    for turns in trajectories():
        known = set(re.findall(r"\d+", turns[0]["prompt"]))
        made = set()
        for row in turns:
            assert row["reward"] == row["step_score"]
            assert row["state_id"] == turns[0]["prompt"] + ",".join(sorted(made))
            call, _, reply = row["response"].removeprefix("<").partition(">")
            if re.fullmatch(r"#-?\d+", row["response"]):
                assert row["step_score"] == row["episode_score"]
                continue
            helps = re.fullmatch(r"\[-?\d+\]", reply) and row["response"].startswith("<")
            helps = helps and known.issuperset(re.split(r"[-+*]", call)) and call not in made
            assert row["step_score"] == (0.1 if helps else -0.1), row["response"]
            if helps:
                made.add(call)
                known.add(reply.strip("[]"))


def test_trajectories_of_a_group_share_states():
    rows = frame("calculator").filter(pl.col("turn") > 0)
    visits = rows.group_by("step", "prompt_id", "state_id").agg(pl.col("traj_id").n_unique())
    assert (visits["traj_id"] > 1).mean() > 0.3
    assert (visits["traj_id"] == 1).any()


def test_different_prompts_lead_to_the_same_state():
    prompts = frame("calculator").group_by("state_id").agg(pl.col("prompt").n_unique())
    assert prompts["prompt"].max() > 1


# The critic


def test_the_critic_learns_from_the_returns_of_the_batch():
    rows = pl.read_parquet(FOLDER / "critic.parquet").explode(
        "response_tokens", "response_mask", "old_log_probs", "values", "new_values", "entropy"
    )
    error = {name: rows["reward"] - rows[name] for name in ("values", "new_values")}
    squares = {name: (one**2).mean() for name, one in error.items()}
    assert squares["new_values"] < squares["values"] < rows["reward"].var()
    assert correlation(rows["values"], rows["reward"]) > 0.3
    assert rows["entropy"].min() >= 0
    assert rows["entropy"].max() <= math.log(22)
    assert abs(rows["entropy"].mean() + rows["old_log_probs"].mean()) < 0.05
