"""What must not change a result: chunk size, workers, row order, files, row groups, layout."""

import json
import tempfile
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from reference import Response
from strategies import layouts, recipes, rollouts, same_length, to_table

import rlpost
from rlpost.display.reporter import SilentReporter
from rlpost.errors import DataError

EVERYTHING = 1 << 20
OUTCOMES = (
    "raw", "dr_grpo", "rloo", "reinforce_pp_baseline", "opo", "gpg", "grpo_passk", "max_rl", "gdpo",
    "hierarchical_grpo",
)  # fmt: skip
# Where γ is 1 and only the last token is paid.
CONSTANT = ("grpo", "reinforce", "reinforce_pp", "step_reinforce", "gigpo", "agentic_reinforce")
SCANS = (
    "gae", "reinforce", "grpo", "reinforce_pp", "remax", "optimal_token_baseline", "opd",
    "agentic_reinforce",
)  # fmt: skip
MANNER = {"inputs", "outputs", "seconds", "rewritten"}


class Pieces(SilentReporter):
    """A reporter that notes how many rows each piece had."""

    def __init__(self):
        super().__init__()
        self.rows = []

    def start(self, purpose, rows):
        assert purpose
        assert rows > 0

    def advance(self, rows):
        self.rows.append(rows)


def enriched(table, recipe, chunk_tokens=EVERYTHING, workers=1, device="cpu"):
    """The new columns, the summary as text, and the rows of each piece of each pass."""
    pieces = Pieces()
    options = rlpost.Options(device, chunk_tokens, workers, reporter=pieces)
    out, summary = rlpost.enrich(table, recipe, options)
    return new_columns(out), json.dumps(summary), pieces.rows


def new_columns(table):
    names = ("advantages", "returns", "response_level_rewards", "sample_mask", "sample_weight")
    return table.select([name for name in names if name in table.schema.names]).combine_chunks()


def bits(column):
    """The type, the lengths and the very bytes of a column."""
    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    array = pa.concat_arrays([array])  # drops what a slice hides
    lengths = array.value_lengths().to_pylist() if pa.types.is_list(array.type) else []
    flat = array.flatten() if lengths else array
    values = flat.to_numpy(zero_copy_only=False)
    return lengths, str(values.dtype), values.tobytes()


def same_bits(got, want):
    assert got.schema.names == want.schema.names
    for name in want.schema.names:
        assert bits(got.column(name)) == bits(want.column(name)), name


def same_numbers(got, want):
    assert got.schema.names == want.schema.names
    for name in want.schema.names:
        a, b = (table.column(name).combine_chunks() for table in (got, want))
        if pa.types.is_list(a.type):
            assert a.value_lengths() == b.value_lengths()
            a, b = a.flatten(), b.flatten()
        a, b = (x.to_numpy(zero_copy_only=False).astype(np.float64) for x in (a, b))
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6, err_msg=name)


@st.composite
def outcome_cases(draw, *, extreme=True):
    """Rows and a recipe whose results must agree to the last bit."""
    rows = draw(rollouts(extreme=extreme and draw(st.booleans())))
    options = draw(recipes((*OUTCOMES, *CONSTANT), gammas=(1.0,)))
    if options["estimator"] in CONSTANT:
        options = {k: v for k, v in options.items() if k not in ("kl_coef", "kl_target")}
        options["whiten_rewards"] = False
        rows = [replace(r, token_rewards=None) for r in rows]
    elif draw(st.booleans()):
        rows = [replace(r, token_rewards=None) for r in rows]
    return rows, rlpost.Recipe(**options)


@st.composite
def scan_cases(draw):
    """Rows and a recipe with a scan."""
    return draw(rollouts()), rlpost.Recipe(**draw(recipes(SCANS, gammas=(0.9, 1.0))))


devices = st.sampled_from(("cpu", "cpu", "cpu", "torch:cpu"))


def base(rows, recipe, device="cpu"):
    """The table and what all at once gives for it; cases with nothing left are passed over."""
    table = to_table(rows)
    try:
        return table, *enriched(table, recipe, device=device)[:2]
    except DataError:
        assume(False)  # noqa: FBT003
        raise


def unchanged_in_chunks(rows, recipe, same, device):
    table, want, summary = base(rows, recipe, device)
    for chunk_tokens, workers in ((1, 2), (1, 1), (40, 3), (1000, 1)):
        got, own, pieces = enriched(table, recipe, chunk_tokens, workers, device)
        same(got, want)
        if same is same_bits:
            assert own == summary
        if chunk_tokens == 1:
            assert set(pieces) == {1}


@settings(max_examples=40)
@given(outcome_cases(), devices)
def test_chunks_and_workers_change_no_bit_of_outcomes_or_summary(case, device):
    unchanged_in_chunks(*case, same_bits, device)


@settings(max_examples=20)
@given(scan_cases(), devices)
def test_chunks_and_workers_change_no_bit_of_scans(case, device):
    unchanged_in_chunks(*case, same_bits, device)


@settings(max_examples=10)
@given(st.one_of(outcome_cases(extreme=False), scan_cases()))
def test_torch_and_numpy_agree_up_to_rounding(case):
    table, want, _ = base(*case)
    same_numbers(enriched(table, case[1], 40, device="torch:cpu")[0], want)


def unchanged_in_another_order(rows, recipe, order, same, device):
    table, want, _ = base(rows, recipe, device)
    got, _, _ = enriched(table.take(order), recipe, 40, device=device)
    same(got.take(np.argsort(order)), want)


def orders(case):
    return st.tuples(st.just(case), st.permutations(range(len(case[0]))))


def has_ordered_batches(case):
    """Batches by domain come in the order in which domains appear, which a KL that adapts sees."""
    recipe = case[1]
    return recipe.kl_target is None or recipe.numerics.batch != "step_domain"


@settings(max_examples=40)
@given(outcome_cases().filter(has_ordered_batches).flatmap(orders), devices)
def test_the_order_of_rows_changes_no_bit_of_outcomes(case, device):
    (rows, recipe), order = case
    unchanged_in_another_order(rows, recipe, order, same_bits, device)


@settings(max_examples=20)
@given(scan_cases().filter(has_ordered_batches).flatmap(orders), devices)
def test_the_order_of_rows_changes_scans_by_rounding_only(case, device):
    (rows, recipe), order = case
    unchanged_in_another_order(rows, recipe, order, same_numbers, device)


# Files


def files_of(table, cuts, row_groups, directory):
    """The table as files, cut before these rows; some may have no rows."""
    bounds = [0, *sorted(cuts), table.num_rows]
    for place, (start, stop) in enumerate(pairwise(bounds)):
        part = table.slice(start, stop - start)
        size = row_groups[place % len(row_groups)]
        pq.write_table(part, directory / f"part-{place}.parquet", row_group_size=size)


def unchanged_in_files(rows, recipe, cuts, row_groups, same, device):
    table, want, summary = base(rows, recipe, device)
    with tempfile.TemporaryDirectory() as name:
        top = Path(name)
        (top / "in").mkdir()
        files_of(table, [cut % (len(rows) + 1) for cut in cuts], row_groups, top / "in")
        options = rlpost.Options(device, chunk_tokens=30, workers=2)
        own = rlpost.advantages(top / "in", top / "out", recipe, options)
        parts = [pq.read_table(path) for path in sorted((top / "out").glob("*.parquet"))]
    assert len(parts) == len(cuts) + 1
    got = pa.concat_tables(parts)
    same(new_columns(got), want)
    assert got.select(table.schema.names).equals(table)
    if same is same_bits:
        facts = {key: own[key] for key in json.loads(summary)}
        assert json.dumps(facts) == summary
        assert set(own) - set(facts) >= MANNER


cuts = st.lists(st.integers(0, 100), min_size=6, max_size=6)
row_groups = st.lists(st.integers(1, 6), min_size=1, max_size=3)


@settings(max_examples=20)
@given(outcome_cases(), cuts, row_groups, devices)
def test_seven_files_are_one_file_to_the_last_bit(case, places, sizes, device):
    unchanged_in_files(*case, places, sizes, same_bits, device)


@settings(max_examples=10)
@given(scan_cases(), cuts, row_groups, devices)
def test_seven_files_are_one_file_for_scans(case, places, sizes, device):
    unchanged_in_files(*case, places, sizes, same_bits, device)


def test_bytes_depend_on_the_data_the_recipe_and_the_size_of_chunks(tmp_path):
    """Not on threads, time, names of folders and the process; on chunks in pages alone."""
    recipe = rlpost.Recipe(estimator="gae", kl_coef=0.1, whiten_advantages=True)
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        pq.write_table(to_table(big(300)), tmp_path / name / "in.parquet", row_group_size=70)
    outputs = {}
    for name, workers, tokens in (("a", 1, None), ("b", 2, None), ("a", 2, 100), ("b", 1, 100)):
        out = tmp_path / name / f"out-{tokens}.parquet"
        options = rlpost.Options(workers=workers, chunk_tokens=tokens)
        rlpost.advantages(tmp_path / name / "in.parquet", out, recipe, options)
        outputs.setdefault(tokens, set()).add(out.read_bytes())
    assert [len(own) for own in outputs.values()] == [1, 1]
    assert outputs[None] != outputs[100]
    whole, small = (pq.read_table(tmp_path / f"a/out-{tokens}.parquet") for tokens in (None, 100))
    assert whole.equals(small)


def test_files_may_have_no_rows(tmp_path):
    table = to_table(big(4))
    (tmp_path / "in").mkdir()
    files_of(table, [0, 2, 2, 4], [2], tmp_path / "in")
    rlpost.advantages(tmp_path / "in", tmp_path / "out")
    read = [pq.read_table(path).num_rows for path in sorted((tmp_path / "out").iterdir())]
    assert read == [0, 2, 0, 2, 0]


# Many rows, so that chunks of 1,000 tokens are several


def big(size, seed=3):
    """Rows with masks, in groups and steps, none like another."""
    rng = np.random.default_rng(seed)
    rows = []
    for i in range(size):
        n = int(rng.integers(0, 40))
        old = rng.normal(-1, 0.5, n)
        rows.append(
            Response(
                group=f"p{rng.integers(size // 4 + 1)}", reward=float(rng.normal()), batch=i % 3,
                mask=(rng.random(n) < 0.8).astype(int).tolist(), domain=str(rng.integers(2)),
                old=old.tolist(), ref=(old + rng.normal(0, 0.1, n)).tolist(),
                values=rng.normal(size=n).tolist(), difficulty=float(rng.random()),
                traj_id=f"{i % 3}-{rng.integers(2)}",
            )
        )  # fmt: skip
    return rows


@pytest.mark.parametrize(
    ("options", "same"),
    [
        ({"estimator": "grpo", "whiten_advantages": True, "length_weight": True}, same_bits),
        ({"estimator": "rloo", "kl_coef": 0.1, "kl_target": 0.05, "kl_horizon": 9.0}, same_bits),
        ({"estimator": "dr_grpo", "norm_mean": "running", "norm_std": "running"}, same_bits),
        ({"estimator": "raw", "whiten_rewards": True, "reward_clip": 1.0}, same_bits),
        *(
            (
                {"estimator": "rloo", "columns": {"rollout": "trajectory"}, "rollout_reward": rule},
                same_bits,
            )
            for rule in ("sum", "mean")  # `last` depends on the order
        ),
        ({"estimator": "gae", "gamma": 0.99, "whiten_advantages": True}, same_bits),
        ({"estimator": "grpo", "kl_coef": 0.1}, same_bits),
    ],
    ids=lambda value: value.get("estimator") if isinstance(value, dict) else "",
)
def test_a_thousand_tokens_at_a_time(options, same):
    table, recipe = to_table(big(400)), rlpost.Recipe(**options)
    want, summary, one = enriched(table, recipe)
    order = np.random.default_rng(1).permutation(400)
    for rows, places in ((table, np.arange(400)), (table.take(order), np.argsort(order))):
        got, own, pieces = enriched(rows, recipe, 1000, 3)
        same(got.take(places), want)
        assert max(pieces) < 100
        assert set(one) == {400}
        if same is same_bits and rows is table:
            assert own == summary


# Layout


@settings(max_examples=40)
@given(rollouts(), recipes(), layouts())
def test_every_type_of_list_and_number_gives_the_same(rows, options, layout):
    if layout.lists == "fixed_size_list":
        rows = same_length(rows)
    recipe = rlpost.Recipe(**options)
    _, want, summary = base(rows, recipe)
    got, own, _ = enriched(to_table(rows, layout), recipe)
    same_bits(got, want)
    assert own == summary


@settings(max_examples=20)
@given(rollouts(), recipes(), st.sampled_from(["list", "large_list", "fixed_size_list"]))
def test_slices_and_chunked_columns_give_the_same(rows, options, lists):
    rows = same_length(rows) if lists == "fixed_size_list" else rows
    recipe = rlpost.Recipe(**options)
    table, want, _ = base(rows, recipe)
    middle = len(rows) // 2
    around = pa.concat_tables([table, table, table]).combine_chunks().slice(len(rows), len(rows))
    in_parts = pa.concat_tables([table.slice(0, middle), table.slice(middle)])
    for other in (around, in_parts):
        same_bits(enriched(other, recipe)[0], want)


def test_a_polars_frame_is_as_good_as_an_arrow_table():
    table = to_table(big(30))
    got, _ = rlpost.enrich(pl.from_arrow(table))
    expected = pl.from_arrow(enriched(table, rlpost.Recipe())[0])
    assert got.select(expected.columns).equals(expected)
