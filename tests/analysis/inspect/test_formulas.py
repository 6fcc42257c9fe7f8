"""Each number that `inspect` prints is its formula, in float64, of the population that it names."""

from __future__ import annotations

import json
import math
import re

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from inspected_files import RUN, SAMPLES

import rlpost
from rlpost.analysis import counted
from rlpost.analysis.inspect.measures import PLACED, TOKEN_MEASURES
from rlpost.cli.app import app_of
from rlpost.errors import DataError

ROWS, CLAMP = 160, 40.0
TOKENS = (
    "old_log_probs",
    "infer_log_probs",
    "ref_log_probs",
    "values",
    "token_rewards",
    "entropy",
    "advantages",
)


def rollouts(seed=0):
    """Ragged responses; some have no policy token, some numbers are infinite, NaN, or far off."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(0, 90, ROWS)
    columns = {
        "prompt_id": [f"p{row // 4 % 20}" for row in range(ROWS)],
        "step": [row // 80 for row in range(ROWS)],
        "domain": [("a", "b", "c")[row // 4 % 3] for row in range(ROWS)],
        "reward": rng.normal(0.3, 1, ROWS),
        "response_mask": [(rng.random(n) < 0.8).astype(int) for n in lengths],
        "values": [rng.normal(0.2, 1, n) for n in lengths],
        "token_rewards": [0.1 * rng.normal(0, 1, n) for n in lengths],
        "old_log_probs": [-rng.exponential(1, n) for n in lengths],
        "entropy": [rng.exponential(1, n) for n in lengths],
        "advantages": [rng.normal(0, 1, n).round(1) for n in lengths],
    }
    columns["ref_log_probs"] = [x - rng.normal(0, 0.1, len(x)) for x in columns["old_log_probs"]]
    infer = [x - rng.exponential(0.3, len(x)) for x in columns["old_log_probs"]]
    columns["infer_log_probs"] = [np.where(rng.random(len(x)) < 0.1, x + 0.3, x) for x in infer]
    columns["infer_log_probs"][3] = np.array(columns["old_log_probs"][3])
    long = next(row for row in range(20, ROWS) if lengths[row] > 5)
    columns["old_log_probs"][long][1], columns["response_mask"][long][:3] = -1e3, 1
    columns["reward"][5] = math.nan
    columns["values"][9][:] = math.nan
    columns["entropy"][11][:] = math.inf
    columns["old_log_probs"][13][:1] = -np.inf
    return columns


def table(columns):
    return pa.table({name: pa.array(list(values)) for name, values in columns.items()})


def policy_tokens(columns):
    """Policy tokens in order, float64, with returns, step and domain."""
    frame = pl.DataFrame(
        {x: columns[x] for x in ("response_mask", "step", "domain", "reward", "prompt_id")}
    )
    lists = pl.DataFrame({name: [x.tolist() for x in columns[name]] for name in TOKENS})
    frame = frame.with_columns(lists).with_row_index("row")
    frame = frame.explode(["response_mask", *TOKENS]).filter(pl.col("response_mask") == 1)
    ahead = pl.col("token_rewards").cum_sum(reverse=True).over("row")
    return frame.with_columns(
        returns=ahead + pl.col("reward"),
        d=(pl.col("old_log_probs") - pl.col("infer_log_probs")).clip(-CLAMP, CLAMP),
        size=(pl.col("old_log_probs") - pl.col("infer_log_probs")).abs(),
        error=ahead + pl.col("reward") - pl.col("values"),
    )


D, SIZE, CREDIT, ERROR = pl.col("d"), pl.col("size"), pl.col("advantages"), pl.col("error")
GAP = pl.col("old_log_probs") - pl.col("ref_log_probs")
FORMULAS = {
    "engine_gap": SIZE,
    "engine_k1": -D,
    "engine_k3": D.exp() - 1 - D,
    "engine_chi2": (2 * D).exp() - 1,
    "confident_disagreement": (pl.col("infer_log_probs") >= math.log(0.5)) & (SIZE > 2),
    "identical_log_probs": SIZE == 0,
    "engine_clamped": SIZE > CLAMP,
    "entropy": pl.col("entropy"),
    "value": pl.col("values"),
    "reward_to_go": pl.col("returns"),
    "value_error": ERROR,
    "squared_value_error": ERROR**2,
    "advantage": CREDIT,
    "advantage_positive": CREDIT > 0,
    "advantage_negative": CREDIT < 0,
    "advantage_zero": CREDIT == 0,
    "ref_gap": GAP,
    "ref_gap_size": GAP.abs(),
    "engine_ess": D.exp().sum() ** 2 / (pl.len() * (2 * D).exp().sum()),
    "critic_explained": 1 - ERROR.var(ddof=0) / pl.col("returns").var(ddof=0),
}
FINITE_ROWS = {
    "compared": None, "trained": None, "policy": ["entropy"],
    "critic": ["values", "token_rewards", "reward"],
}  # fmt: skip
"""What has to be finite in all tokens of a response, by population."""


def of_population(tokens, population):
    """The tokens of a population."""
    if population in ("compared", "drift"):
        return tokens.filter((SIZE if population == "compared" else GAP).is_finite())
    finite = [pl.col(x).is_finite().all().over("row") for x in FINITE_ROWS[population] or ()]
    return tokens.filter(pl.all_horizontal(pl.lit(value=True), *finite))


def numbers_of(tokens, formula, kind):
    """What JSON has of a measure of some tokens."""
    values = tokens.select(value=formula)["value"]
    count = {"count": len(tokens)}
    if kind == "value":
        return count | {"value": values[0]}
    if kind == "share":
        return count | {"total": values.sum(), "mean": values.mean()}
    numbers = count | {"mean": values.mean()}
    spread = {"std": values.std(), "min": values.min(), "max": values.max()}
    return numbers if kind == "mean" else numbers | spread


def near(value):
    return pytest.approx(value, rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("measure", TOKEN_MEASURES, ids=lambda measure: measure.name)
def test_a_measure_of_tokens_is_its_formula(measure):
    columns = rollouts()
    facts = rlpost.inspect(table(columns)).facts[measure.name]
    tokens = of_population(policy_tokens(columns), measure.of)
    formula = FORMULAS[measure.name]
    assert facts["all"] == near(numbers_of(tokens, formula, measure.kind))
    for key in ("step", "domain"):
        rows = zip(*facts[key].values(), strict=True)
        for label, *numbers in rows:
            part = tokens.filter(pl.col(key) == label)
            assert numbers == near([*numbers_of(part, formula, measure.kind).values()])
    assert ("position" in facts) == (measure.name in PLACED)
    if measure.name in PLACED:
        place, last = pl.int_range(pl.len()).over("row"), pl.len().over("row") - 1
        spans = [(0, 0), (1, 3), (4, 15), (16, 63), (64, 255)]
        parts = [tokens.filter(x) for x in (*(place.is_between(*x) for x in spans), place == last)]
        labels = ["0", "1 to 3", "4 to 15", "16 to 63", "64 to 255", "last"]
        assert facts["position"]["label"] == labels
        assert facts["position"]["count"] == [len(part) for part in parts]
        means = [part.select(value=formula)["value"].mean() for part in parts]
        assert facts["position"]["mean"] == near(means)


def test_entropies_are_estimated_without_their_column():
    columns = rollouts(1)
    columns["old_log_probs"][13] = np.abs(columns["old_log_probs"][13]).clip(0, 1) * -1
    tokens = policy_tokens(columns)
    assert rlpost.inspect(table(columns)).entropy["sampled"] is False
    del columns["entropy"]
    facts = rlpost.inspect(table(columns))
    assert facts.entropy == {"column": "old_log_probs", "sampled": True}
    assert facts.whole("entropy")["mean"] == near(-tokens["old_log_probs"].mean())


PRINTED = {
    "mismatch": {
        r"mean \|Δ log-prob\| (\S+) nats, at most (\S+)": ["engine_gap.mean", "engine_gap.max"],
        r"KL k1 (\S+), k3 (\S+); effective sample size (\S+) %": [
            "engine_k1.mean", "engine_k3.mean", "engine_ess.value"
        ],
        r"\|Δ\| is clamped to 40 nats in (\d+) token": ["engine_clamped.total"],
    },
    "critic": {
        r"mean value (\S+), mean return (\S+), error (\S+) \(root mean square\)": [
            "value.mean", "reward_to_go.mean", "squared_value_error.mean"
        ],
        r"the values explain (\S+) % of the variance of the returns \(sums of later": [
            "critic_explained.value"
        ],
    },
    "entropy": {
        r"mean (\S+) nats over": ["entropy.mean"],
    },
    "numbers": {
        r"advantage +\S+ +(\S+) +(\S+)": ["advantage.mean", "advantage.std"],
        r"advantage_zero +\S+ +(\S+) %": ["advantage_zero.mean"],
    },
}  # fmt: skip
"""By topic, what stands on its page, and the measures whose numbers these are."""


@pytest.mark.parametrize("topic", PRINTED)
def test_what_a_page_prints_is_the_measure_of_that_name(topic, tmp_path):
    pq.write_table(table(rollouts()), tmp_path / "a.parquet")
    facts = rlpost.inspect(tmp_path / "a.parquet")
    shown = RUN.invoke(app_of("inspect"), [str(tmp_path / "a.parquet"), "--about", topic]).output
    for pattern, names in PRINTED[topic].items():
        printed = re.search(pattern, shown)
        assert printed, (pattern, shown)
        for text, name in zip(printed.groups(), names, strict=True):
            measure, part = name.split(".")
            value = facts.whole(measure)[part]
            value = math.sqrt(value) if measure.startswith("squared") else value
            scale = 0.01 if f"{text} %" in shown else 1
            assert float(text.replace(",", "")) * scale == pytest.approx(value, rel=5e-3), name


def test_layout_and_order_change_no_bit(tmp_path, monkeypatch):
    whole = table(rollouts(2))
    shuffled = whole.take(np.random.default_rng(3).permutation(len(whole)))
    pq.write_table(shuffled.slice(0, 50), tmp_path / "a.parquet", row_group_size=7)
    pq.write_table(shuffled.slice(50), tmp_path / "b.parquet")
    once = rlpost.inspect(whole).as_json()
    monkeypatch.setattr(counted, "CHUNK_TOKENS", 64)
    again = rlpost.inspect(tmp_path).as_json()
    for name in ("turns", "entropy", "facts"):
        assert json.dumps(again[name]) == json.dumps(once[name])


def test_columns_of_tokens_are_counted(sample, facts):
    lists = ["old_log_probs", "infer_log_probs", "ref_log_probs", "values"]
    frame = pl.read_parquet(sample)
    tokens = frame.explode(["response_mask", *lists]).filter(pl.col("response_mask") == 1)
    for name in lists:
        column, values = facts.token_columns[name], tokens[name].cast(pl.Float64)
        numbers = [facts.whole(name)[part] for part in ("mean", "std")]
        assert numbers == pytest.approx([values.mean(), values.std()], rel=1e-12)
        counts = (column.tokens, column.min, column.max, column.zero)
        assert counts == (len(values), values.min(), values.max(), (values == 0).sum())


def test_a_signalling_nan_is_nan():
    """numpy warns when it casts one: a damaged file may have it, and a warning is an error here."""
    log_probs = np.full((8, 64), -0.5, np.float32)
    log_probs.view(np.uint32)[3, 5] = 0x7FA00000
    columns = {"prompt_id": ["a"] * 8, "reward": [0.0, 1.0] * 4}
    both = {"old_log_probs": [*log_probs], "infer_log_probs": [*log_probs]}
    facts = rlpost.inspect(pa.table(columns | both))
    assert facts.token_columns["old_log_probs"].nan == 1


def test_rows_of_unequal_lists_are_left_out_of_statistics_of_tokens():
    columns = rollouts(4)
    row = next(row for row in range(20, ROWS) if len(columns["values"][row]) > 1)
    columns["infer_log_probs"][row] = columns["infer_log_probs"][row][:-1]
    facts = rlpost.inspect(table(columns))
    assert facts.token_columns["infer_log_probs"].unequal_rows == 1
    whole = {name: [x for at, x in enumerate(y) if at != row] for name, y in columns.items()}
    others = rlpost.inspect(table(whole))
    for name in ("engine_gap", "engine_ess", "value", "entropy", "old_log_probs"):
        assert facts.whole(name) == others.whole(name)


@pytest.mark.parametrize(
    ("name", "options", "turns"),
    [("calculator", (), True), ("calculator", ("--unit", "row"), True), ("critic", (), False)],
)
def test_the_page_says_if_returns_lack_the_rewards_of_later_turns(name, options, turns):
    done = RUN.invoke(
        app_of("inspect"), [str(SAMPLES / f"{name}.parquet"), "--about", "critic", *options]
    )
    line = "rows are turns: a return has the rewards of its row, not of later turns"
    assert (line in done.output.splitlines()) == turns
    assert len(done.output.splitlines()) <= 24


@pytest.mark.parametrize(
    ("topic", "without"),
    [
        ("critic", "values"), ("critic", "reward"), ("entropy", "entropy"),
        ("mismatch", "old_log_probs"), ("mismatch", "infer_log_probs"),
    ],
)  # fmt: skip
def test_a_topic_without_its_columns_is_an_error_that_names_the_roles(tmp_path, topic, without):
    missing = {without, "old_log_probs", "infer_log_probs"} if topic == "entropy" else {without}
    columns = {name: values for name, values in rollouts().items() if name not in missing}
    pq.write_table(table(columns), tmp_path / "a.parquet")
    done = RUN.invoke(app_of("inspect"), [str(tmp_path / "a.parquet"), "--about", topic])
    assert isinstance(done.exception, DataError)
    assert f"--map {without}=COLUMN" in str(done.exception.parts)
