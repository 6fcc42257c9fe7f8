"""`rlpost inspect --about critic` and `--about entropy`: loops, the law of layout, screens."""

from __future__ import annotations

import json
import math
from collections import defaultdict
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

LOSSES = ((0.5, math.inf), (0.5, 10.0), (0.2, math.inf))


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
    columns["new_values"] = [one + rng.normal(0, 0.4, len(one)) for one in columns["values"]]
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
    """Rewards of policy tokens, the reward of the row with the last; and their sums to the end."""
    rewards = policy(columns, "token_rewards", row)
    rewards[-1] += float(columns["reward"][row])
    return rewards, [math.fsum(rewards[at:]) for at in range(len(rewards))]


def target_of(rewards, values, lam):
    """V + A of the first token, by the recursion."""
    advantage, ahead = 0.0, 0.0
    for reward, value in zip(reversed(rewards), reversed(values), strict=True):
        advantage, ahead = reward + ahead - value + lam * advantage, value
    return values[0] + advantage


def loss_of(value, old, target, clip, delta=math.inf):
    def huber(error):
        size = abs(error)
        return error**2 / 2 if size < delta else delta * (size - delta / 2)

    plain = huber(value - target)
    clipped = huber(min(max(value, old - clip), old + clip) - target)
    return plain, max(plain, clipped), clipped > plain


def near(value):
    return pytest.approx(value, rel=1e-9, abs=1e-9)


def test_the_critic_equals_loops():
    columns = rollouts()
    found = rlpost.inspect(table(columns)).critic
    rows = [
        row
        for row in range(len(columns["reward"]))
        if row not in (5, 9) and columns["response_mask"][row].any()
    ]
    values = {row: policy(columns, "values", row) for row in rows}
    new = {row: policy(columns, "new_values", row) for row in rows}
    both = {row: returns_of(columns, row) for row in rows}
    returns = {row: both[row][1] for row in rows}
    flat = [(v, r) for row in rows for v, r in zip(values[row], returns[row], strict=True)]
    assert (found.tokens, found.responses) == (len(flat), len(rows))
    assert found.value == near(fmean(v for v, _ in flat))
    explained = 1 - pvariance([r - v for v, r in flat]) / pvariance([r for _, r in flat])
    assert found.explained_variance == near(explained)
    assert found.rmse == near(math.sqrt(fmean((r - v) ** 2 for v, r in flat)))
    for end, at in ((found.first, 0), (found.last, -1)):
        pairs = [(values[row][at], returns[row][at]) for row in rows]
        assert (end.value, end.returns) == near(tuple(map(fmean, zip(*pairs, strict=True))))
        assert end.rmse == near(math.sqrt(fmean((v - r) ** 2 for v, r in pairs)))
    for one, (clip, delta) in zip(found.losses, LOSSES, strict=True):
        losses = [
            loss_of(*three, clip, delta)
            for row in rows
            for three in zip(new[row], values[row], returns[row], strict=True)
        ]
        plain, clipped, share = map(fmean, zip(*losses, strict=True))
        assert (one.plain, one.clipped, one.clipped_share) == near((plain, clipped, share))
    flat.sort()
    assert sum(one.tokens for one in found.calibration) == len(flat)
    assert len(found.calibration) == 10
    for one in found.calibration:  # bins of 1/32 are whole, so a decile has not exactly a tenth
        part, flat = flat[: one.tokens], flat[one.tokens :]
        means = tuple(map(fmean, zip(*part, strict=True)))
        assert (one.value, one.returns) == pytest.approx(means, abs=0.05)
    for one in found.by_position:
        part = [
            (v, r)
            for row in rows
            for at, (v, r) in enumerate(zip(values[row], returns[row], strict=True))
            if one.first <= at < one.end
        ]
        assert one.tokens == len(part)
        assert one.rmse == near(math.sqrt(fmean((v - r) ** 2 for v, r in part)))
    groups = defaultdict(list)
    for row in rows:
        groups[columns["step"][row], columns["prompt_id"][row]].append(row)
    groups = [own for own in groups.values() if len(own) > 1]
    assert found.groups == len(groups)
    for one in found.lambdas:
        squares, spreads = [], []
        for own in groups:
            targets = [target_of(both[row][0], values[row], one.lam) for row in own]
            leads = [x - returns[row][0] for x, row in zip(targets, own, strict=True)]
            squares.append(fmean(leads) ** 2 - variance(leads) / len(own))
            spreads.append(variance(targets))
        assert one.bias == pytest.approx(math.sqrt(max(fmean(squares), 0)), abs=1e-7)
        assert one.std == near(math.sqrt(fmean(spreads)))
    for one in found.steps:
        part = [
            (v, r)
            for row in rows
            if columns["step"][row] == one.label
            for v, r in zip(values[row], returns[row], strict=True)
        ]
        assert one.rmse == near(math.sqrt(fmean((v - r) ** 2 for v, r in part)))


@pytest.mark.parametrize("without", ["", "entropy", "advantages"])
def test_the_entropy_equals_loops(without):
    columns = rollouts(1)
    columns.pop(without, None)
    found = rlpost.inspect(table(columns)).entropy
    assert (found.sampled, found.column) == (
        (True, "old_log_probs") if without == "entropy" else (False, "entropy")
    )
    log_probs = {row: policy(columns, "old_log_probs", row) for row in range(120)}
    if without == "entropy":
        own = {row: [-x for x in one] for row, one in log_probs.items()}
    else:
        own = {row: policy(columns, "entropy", row) for row in range(120) if row != 11}
    flat = [x for one in own.values() for x in one]
    assert found.tokens == len(flat)
    assert found.mean == near(fmean(flat))
    highest = sorted(flat, reverse=True)[: len(flat) // 5]
    assert found.top_share == pytest.approx(math.fsum(highest) / math.fsum(flat), rel=0.01)
    assert found.top_least == pytest.approx(highest[-1], rel=1 / 32)
    for slices, name in ((found.steps, "step"), (found.domains, "domain")):
        for one in slices:
            part = [x for row in own if columns[name][row] == one.label for x in own[row]]
            assert (one.tokens, one.mean) == (len(part), near(fmean(part)))
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
    for one in found.covariance[1:]:
        pairs = [
            pair
            for row in kept
            if columns["step"][row] == one.label
            for pair in zip(log_probs[row], advantages(row), strict=True)
        ]
        log, advantage = map(fmean, zip(*pairs, strict=True))
        assert one.tokens == len(pairs)
        assert one.value == near(fmean((x - log) * (a - advantage) for x, a in pairs))
        total += one.value * one.tokens
    assert found.covariance[0].value == near(total / found.covariance[0].tokens)


def test_layout_and_order_change_no_bit(tmp_path, monkeypatch):
    whole = table(rollouts(2))
    order = np.random.default_rng(3).permutation(len(whole))
    shuffled = whole.take(order)
    pq.write_table(shuffled.slice(0, 50), tmp_path / "a.parquet", row_group_size=7)
    pq.write_table(shuffled.slice(50), tmp_path / "b.parquet")
    once = rlpost.inspect(whole).as_json()
    monkeypatch.setattr(reading, "CHUNK_TOKENS", 64)
    again = rlpost.inspect(tmp_path).as_json()
    for name in ("critic", "entropy"):
        assert json.dumps(again[name]) == json.dumps(once[name])


def test_the_screens_have_the_numbers_of_the_sample_file():
    file = str(SAMPLES / "critic.parquet")
    facts = rlpost.inspect(file)
    for name, numbers in {
        "critic": ("21.7 %", "0.08310", "0.09349", "23.4 %", "0.9*"),
        "entropy": ("0.0847", "95.2 %", "0.01413", "4 to 15"),
    }.items():
        done = RUN.invoke(app, [file, "--about", name])
        assert done.exit_code == 0, done.output
        assert not [one for one in numbers if one not in done.output]
        assert len(done.output.splitlines()) <= 24
    assert facts.critic.best.lam == 0.9
    assert facts.critic.explained_variance == pytest.approx(0.2169, abs=1e-4)
    assert not facts.entropy.sampled
    sampled = rlpost.inspect(file, columns_map={"entropy": "none"}).entropy
    assert sampled.sampled
    assert sampled.mean == pytest.approx(facts.entropy.mean, abs=0.01)


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
