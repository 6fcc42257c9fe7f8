"""`rlpost inspect --about critic` and `--about entropy`: loops, the law of layout, screens."""

from __future__ import annotations

import json
import math
from statistics import fmean, pvariance, variance

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from inspected_files import RUN, SAMPLES

import rlpost
from rlpost.analysis.inspect import reading
from rlpost.cli.commands.inspect import app
from rlpost.errors import DataError


def rollouts(seed=0, rows=120):
    """Ragged responses; some have no policy token, some numbers are infinite or NaN."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(0, 40, rows)
    columns = {
        "prompt_id": [f"p{i // 4 % 15}" for i in range(rows)],
        "step": [i // 60 for i in range(rows)],
        "domain": [("a", "b", "c")[i // 4 % 3] for i in range(rows)],
        "reward": rng.normal(0.3, 1, rows),
        "response_mask": [(rng.random(n) < 0.8).astype(int) for n in lengths],
        "values": [rng.normal(0.2, 1, n) for n in lengths],
        "token_rewards": [0.1 * rng.normal(0, 1, n) for n in lengths],
        "old_log_probs": [-rng.exponential(1, n) for n in lengths],
        "entropy": [rng.exponential(1, n) for n in lengths],
        "advantages": [rng.normal(0, 1, n) for n in lengths],
    }
    columns["reward"][5] = math.nan
    columns["values"][9][:] = math.nan
    columns["entropy"][11][:] = math.inf
    return columns


def table(columns):
    return pa.table({name: pa.array(list(one)) for name, one in columns.items()})


def policy(columns, name, row):
    """The numbers of policy tokens of a row, as floats."""
    mask = columns["response_mask"][row]
    return [float(x) for x, keep in zip(columns[name][row], mask, strict=True) if keep]


def returns_of(columns, row):
    """Sums to the end of the rewards of policy tokens, with that of the row at the last."""
    rewards = policy(columns, "token_rewards", row)
    rewards[-1] += float(columns["reward"][row])
    return [math.fsum(rewards[at:]) for at in range(len(rewards))]


def near(value):
    return pytest.approx(value, rel=1e-9, abs=1e-9)


def test_the_critic_equals_loops():
    columns = rollouts()
    facts = rlpost.inspect(table(columns))
    whole = facts.whole
    rows = [
        row
        for row in range(len(columns["reward"]))
        if row not in (5, 9) and columns["response_mask"][row].any()
    ]
    values = {row: policy(columns, "values", row) for row in rows}
    returns = {row: returns_of(columns, row) for row in rows}
    flat = [(v, r) for row in rows for v, r in zip(values[row], returns[row], strict=True)]
    assert whole("value")["count"] == len(flat)
    assert whole("value")["mean"] == near(fmean(v for v, _ in flat))
    assert whole("value")["std"] == near(math.sqrt(variance(v for v, _ in flat)))
    explained = 1 - pvariance([r - v for v, r in flat]) / pvariance([r for _, r in flat])
    assert whole("critic_explained")["value"] == near(explained)
    squares = fmean((r - v) ** 2 for v, r in flat)
    assert whole("squared_value_error")["mean"] == near(squares)
    spans = [(0, 1), (1, 4), (4, 16), (16, 64)]
    labels = ["0", "1 to 3", "4 to 15", "16 to 63", "last"]
    assert facts.by("position", "value", "label") == labels
    for place, (first, end) in enumerate([*spans, (-1, None)]):
        part = [
            (v, r)
            for row in rows
            for v, r in zip(values[row][first:end], returns[row][first:end], strict=True)
        ]
        assert facts.by("position", "value", "count")[place] == len(part)
        assert facts.by("position", "value")[place] == near(fmean(v for v, _ in part))
        assert facts.by("position", "reward_to_go")[place] == near(fmean(r for _, r in part))
        squares = fmean((v - r) ** 2 for v, r in part)
        assert facts.by("position", "squared_value_error")[place] == near(squares)
    for step, square in zip(
        facts.labels("step"), facts.by("step", "squared_value_error"), strict=True
    ):
        part = [
            (v, r)
            for row in rows
            if columns["step"][row] == step
            for v, r in zip(values[row], returns[row], strict=True)
        ]
        assert square == near(fmean((v - r) ** 2 for v, r in part))


@pytest.mark.parametrize("without", ["", "entropy", "advantages"])
def test_the_entropy_equals_loops(without):
    columns = rollouts(1)
    columns.pop(without, None)
    facts = rlpost.inspect(table(columns))
    found, whole = facts.entropy, facts.whole("entropy")
    assert (found["sampled"], found["column"]) == (
        (True, "old_log_probs") if without == "entropy" else (False, "entropy")
    )
    log_probs = {row: policy(columns, "old_log_probs", row) for row in range(120)}
    if without == "entropy":
        own = {row: [-x for x in one] for row, one in log_probs.items()}
    else:
        own = {row: policy(columns, "entropy", row) for row in range(120) if row != 11}
    flat = [x for one in own.values() for x in one]
    assert whole["count"] == len(flat)
    assert (whole["mean"], whole["std"]) == near((fmean(flat), math.sqrt(variance(flat))))
    assert (whole["min"], whole["max"]) == (min(flat), max(flat))
    for key in ("step", "domain"):
        numbers = [facts.by(key, "entropy", part) for part in ("label", "count", "mean")]
        for label, count, mean in zip(*numbers, strict=True):
            part = [x for row in own if columns[key][row] == label for x in own[row]]
            assert (count, mean) == (len(part), near(fmean(part)))
    rewards = columns["reward"]

    def advantages(row):
        if without != "advantages":
            return policy(columns, "advantages", row)
        key = columns["step"][row], columns["prompt_id"][row]
        group = [
            float(r)
            for r, *other in zip(rewards, columns["step"], columns["prompt_id"], strict=True)
            if tuple(other) == key and math.isfinite(r)
        ]
        return [float(rewards[row]) - fmean(group)] * len(log_probs[row])

    kept = [row for row in range(120) if without != "advantages" or math.isfinite(rewards[row])]
    total = 0.0
    numbers = [facts.by("step", "covariance", part) for part in ("label", "count", "value")]
    for label, count, value in zip(*numbers, strict=True):
        pairs = [
            pair
            for row in kept
            if columns["step"][row] == label
            for pair in zip(log_probs[row], advantages(row), strict=True)
        ]
        log, advantage = map(fmean, zip(*pairs, strict=True))
        assert count == len(pairs)
        assert value == near(fmean((x - log) * (a - advantage) for x, a in pairs))
        total += value * count
    covariance = facts.whole("covariance")
    assert covariance["value"] == near(total / covariance["count"])


def test_layout_and_order_change_no_bit(tmp_path, monkeypatch):
    whole = table(rollouts(2))
    order = np.random.default_rng(3).permutation(len(whole))
    shuffled = whole.take(order)
    pq.write_table(shuffled.slice(0, 50), tmp_path / "a.parquet", row_group_size=7)
    pq.write_table(shuffled.slice(50), tmp_path / "b.parquet")
    once = rlpost.inspect(whole).as_json()
    monkeypatch.setattr(reading, "CHUNK_TOKENS", 64)
    again = rlpost.inspect(tmp_path).as_json()
    for name in ("turns", "entropy", "facts"):
        assert json.dumps(again[name]) == json.dumps(once[name])


def test_the_screens_have_the_numbers_of_the_sample_file():
    file = str(SAMPLES / "critic.parquet")
    facts = rlpost.inspect(file)
    for name, numbers in {
        "critic": ("21.7 %", "0.4492", "0.5242", "4 to 15"),
        "entropy": ("0.0847", "0.01413", "4 to 15"),
    }.items():
        done = RUN.invoke(app, [file, "--about", name])
        assert done.exit_code == 0, done.output
        assert not [one for one in numbers if one not in done.output]
        assert len(done.output.splitlines()) <= 24
    assert facts.whole("critic_explained")["value"] == pytest.approx(0.2169, abs=1e-4)
    assert not facts.entropy["sampled"]
    sampled = rlpost.inspect(file, columns_map={"entropy": "none"})
    assert sampled.entropy["sampled"]
    means = [x.whole("entropy")["mean"] for x in (sampled, facts)]
    assert means[0] == pytest.approx(means[1], abs=0.01)


@pytest.mark.parametrize(
    ("name", "options", "turns"),
    [("calculator", (), True), ("calculator", ("--unit", "row"), True), ("critic", (), False)],
)
def test_the_page_says_if_returns_lack_the_rewards_of_later_turns(name, options, turns):
    done = RUN.invoke(app, [str(SAMPLES / f"{name}.parquet"), "--about", "critic", *options])
    line = "rows are turns: a return has the rewards of its row, not of later turns"
    assert (line in done.output.splitlines()) == turns


@pytest.mark.parametrize(
    ("topic", "without"), [("critic", "values"), ("critic", "reward"), ("entropy", "entropy")]
)
def test_a_topic_without_its_columns_is_an_error_that_names_the_roles(tmp_path, topic, without):
    missing = {without, "old_log_probs"} if topic == "entropy" else {without}
    columns = {name: one for name, one in rollouts().items() if name not in missing}
    pq.write_table(table(columns), tmp_path / "a.parquet")
    done = RUN.invoke(app, [str(tmp_path / "a.parquet"), "--about", topic])
    assert isinstance(done.exception, DataError)
    assert f"--map {without}=COLUMN" in str(done.exception.parts)
