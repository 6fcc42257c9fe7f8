"""Laws of every recipe: what must not change a result.

Chunks and workers, the order of rows, files and row groups, the layout of columns, and responses
that are left out. The law of a recipe's fields is in test_fields.py.
"""

import json
import math
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from loss_runs import SWEEP, dump, save, summary_of, tied
from reference import Response
from reference_pipeline import pipeline
from runs import loads
from strategies import ESSENTIALS, JOINING, layouts, recipes, rollouts, same_length, to_table
from test_left_out import close, flat, written

import rlpost
from rlpost.display.reporter import SilentReporter
from rlpost.errors import DataError
from rlpost.estimators import ESTIMATORS

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
MANNER = {"inputs", "outputs", "seconds"}
CORRECTED = {"is_weight": "token:normalised", "is_cap": 1.2}
RECIPES = {
    **{name: {"estimator": name, **ESSENTIALS.get(name, {})} for name in ESTIMATORS},
    "weights": {"length_weight": True, "difficulty_weight": True, "whiten_advantages": True},
    "adaptive KL": {"estimator": "rloo", "kl_coef": 0.1, "kl_target": (0.05, 9.0)},
    "KL": {"kl_coef": 0.1},
    "running": {"estimator": "dr_grpo", "norm_mean": "running", "norm_std": "running"},
    "whitened rewards": {"estimator": "raw", "whiten_rewards": True, "reward_clip": 1.0},
    "whitened gae": {"estimator": "gae", "gamma": 0.99, "whiten_advantages": True},
    **{
        f"{rule} of a rollout": {
            "estimator": "rloo", "columns": {"rollout": "trajectory"}, "rollout_reward": rule,
        }
        for rule in ("last", "sum", "mean")
    },
    "filter of tokens": {**CORRECTED, "is_filter": ("token:ratio:0.71:1.43",)},
    "filter of responses": {
        **CORRECTED, "is_weight": "segment", "is_filter": ("geometric:k3::0.01",),
    },
    "scan of a rollout": {
        "estimator": "gae", "scan": "rollout", "columns": {"rollout": "trajectory"},
        "rollout_reward": "last",
    },
}  # fmt: skip


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
    names = ("advantages", "returns", "response_level_rewards", "sample_mask", "sample_weight",
             "is_weight")  # fmt: skip
    return table.select([name for name in names if name in table.schema.names]).combine_chunks()


def bits(column):
    """The type, the lengths and the very bytes of a column."""
    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    array = pa.concat_arrays([array])  # drops what a slice hides
    lengths = array.value_lengths().to_pylist() if pa.types.is_list(array.type) else []
    values = (array.flatten() if lengths else array).to_numpy(zero_copy_only=False)
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


def files_of(table, cuts, row_groups, folder):
    """The table as files, cut before these rows; some may have no rows."""
    folder.mkdir()
    bounds = [0, *sorted(cuts), table.num_rows]
    for place, (start, stop) in enumerate(pairwise(bounds)):
        part = table.slice(start, stop - start)
        size = row_groups[place % len(row_groups)]
        pq.write_table(part, folder / f"part-{place}.parquet", row_group_size=size)


def check_chunks(table, recipe, want, summary, chunks=((1, 2), (40, 3)), device="cpu"):
    for chunk_tokens, workers in chunks:
        got, facts, pieces = enriched(table, recipe, chunk_tokens, workers, device)
        same_bits(got, want)
        assert facts == summary
        if chunk_tokens == 1:
            assert set(pieces) == {1}


def check_order(table, recipe, want, order, same, device="cpu"):
    got, _, _ = enriched(table.take(order), recipe, 40, device=device)
    same(got.take(np.argsort(order)), want)


def check_files(table, recipe, want, summary, cuts, row_groups, top, device="cpu"):
    files_of(table, [cut % (table.num_rows + 1) for cut in cuts], row_groups, top / "in")
    options = rlpost.Options(device, chunk_tokens=100, workers=2)
    facts = rlpost.advantages(top / "in", top / "out", recipe, options)
    parts = [pq.read_table(path) for path in sorted((top / "out").glob("*.parquet"))]
    assert len(parts) == len(cuts) + 1
    got = pa.concat_tables(parts)
    same_bits(new_columns(got), want)
    assert got.select(table.schema.names).equals(table)
    facts["findings"] = [row | {"rows": []} for row in facts["findings"]]  # a table has no files
    assert json.dumps({key: facts[key] for key in loads(summary)}) == summary
    assert set(facts) - set(loads(summary)) >= MANNER


# Every recipe on one table


def rows_of_all_roles(size=48, seed=3):
    """Groups of four in three steps, none like another; a rollout has two rows."""
    rng = np.random.default_rng(seed)
    rows = []
    for i in range(size):
        n = int(rng.integers(0, 40))
        old = -rng.exponential(0.7, n)
        near = {name: (old + rng.normal(0, 0.1, n)).tolist() for name in ("ref", "infer")}
        rows.append(
            Response(
                group=f"p{i // 4}", reward=float(np.float32(rng.normal())), batch=i // 4 % 3,
                mask=(rng.random(n) < 0.8).astype(int).tolist(), domain=str(i // 4 % 2),
                old=old.tolist(), current=(old + 0.1).tolist(), values=rng.normal(size=n).tolist(),
                sum_pi_squared=rng.random(n).tolist(), difficulty=float(rng.random()),
                reward_baseline=float(rng.random()), finish_reason="stop",
                traj_id=f"{i // 2}", turn=i % 2, state_id=f"s{i % 2}",
                step_score=float(rng.normal()), episode_score=float(i // 2 % 5),
                turn_reward=float(rng.random()), win_rate=float(rng.random()),
                components={"correctness": float(i % 3), "format": float(rng.random())},
                teachers={"large": (old - rng.random(n)).tolist()}, **near,
            )
        )  # fmt: skip
    return rows


TABLE = to_table(rows_of_all_roles())


def recipe_of(name):
    emit = ("advantages", "returns", "response_level_rewards")
    weighs = [x for x in ("is_weight",) if x in RECIPES[name]]
    return rlpost.Recipe(**RECIPES[name], emit=(*emit, *weighs) if weighs else None)


@pytest.mark.parametrize("name", RECIPES)
def test_chunks_workers_and_files_change_no_bit(name, tmp_path):
    recipe = recipe_of(name)
    want, summary, pieces = enriched(TABLE, recipe)
    assert set(pieces) == {TABLE.num_rows}
    check_chunks(TABLE, recipe, want, summary, [(60, 3)])
    check_files(TABLE, recipe, want, summary, [0, 21, 21], [20, 7], tmp_path)


@pytest.mark.parametrize("name", [name for name in RECIPES if name != "rae"])
def test_the_order_of_rows_changes_scans_by_rounding_and_nothing_else(name):
    recipe = recipe_of(name)
    want, summary, _ = enriched(TABLE, recipe)
    order = np.random.default_rng(1).permutation(TABLE.num_rows)
    exact = recipe.estimator in (*OUTCOMES, *CONSTANT) and not recipe.kl_coef
    check_order(TABLE, recipe, want, order, same_bits if exact else same_numbers)
    if exact:
        _, mixed, _ = enriched(TABLE.take(order), recipe)
        mixed, summary = loads(mixed), loads(summary)
        assert mixed["facts"]["advantage"] == summary["facts"]["advantage"]


# Any recipe on any table


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
    return rows, rlpost.Recipe(**options), same_bits


@st.composite
def scan_cases(draw):
    """Rows and a recipe with a scan, whose last bit the order of rows may change."""
    return draw(rollouts()), rlpost.Recipe(**draw(recipes(SCANS, gammas=(0.9, 1.0)))), same_numbers


def base(rows, recipe, device="cpu"):
    """The table and what all at once gives for it; cases with nothing left are passed over."""
    table = to_table(rows)
    try:
        return table, *enriched(table, recipe, device=device)[:2]
    except DataError:
        assume(False)  # noqa: FBT003
        raise


@settings(max_examples=12)
@given(
    st.one_of(outcome_cases(), scan_cases()),
    st.lists(st.integers(0, 100), min_size=6, max_size=6),
    st.lists(st.integers(1, 6), min_size=1, max_size=3),
    st.integers(0, 2**31),
    st.sampled_from(("cpu", "cpu", "cpu", "torch:cpu")),
)
def test_chunks_order_and_files_change_nothing(tmp_path_factory, case, cuts, sizes, seed, device):
    rows, recipe, same = case
    table, want, summary = base(rows, recipe, device)
    check_chunks(table, recipe, want, summary, device=device)
    top = tmp_path_factory.mktemp("files")
    check_files(table, recipe, want, summary, cuts, sizes, top, device)
    # Batches by domain come in the order in which domains appear, which a KL that adapts sees.
    if recipe.kl_target is None or recipe.numerics.batch != "step_domain":
        order = np.random.default_rng(seed).permutation(table.num_rows)
        check_order(table, recipe, want, order, same, device)


@settings(max_examples=10)
@given(st.one_of(outcome_cases(extreme=False), scan_cases()))
def test_torch_and_numpy_agree_up_to_rounding(case):
    table, want, _ = base(*case[:2])
    same_numbers(enriched(table, case[1], 40, device="torch:cpu")[0], want)


@settings(max_examples=30)
@given(rollouts(), recipes(), layouts())
def test_every_type_of_list_and_number_gives_the_same_as_do_slices_and_parts(rows, options, layout):
    if layout.lists == "fixed_size_list":
        rows = same_length(rows)
    recipe = rlpost.Recipe(**options)
    _, want, summary = base(rows, recipe)
    table, middle = to_table(rows, layout), len(rows) // 2
    got, facts, _ = enriched(table, recipe)
    same_bits(got, want)
    assert facts == summary
    around = pa.concat_tables([table, table, table]).combine_chunks().slice(len(rows), len(rows))
    in_parts = pa.concat_tables([table.slice(0, middle), table.slice(middle)])
    for other in (around, in_parts):
        same_bits(enriched(other, recipe)[0], want)


@pytest.mark.parametrize("key", [pa.string(), pa.large_string(), pa.int16(), pa.float64()], ids=str)
def test_every_type_of_key_gives_the_same(key):
    keys = pa.array([i // 4 for i in range(TABLE.num_rows)], pa.int64())
    want, *_ = enriched(TABLE.set_column(0, "prompt_id", keys), rlpost.Recipe())
    same_bits(enriched(TABLE.set_column(0, "prompt_id", keys.cast(key)), rlpost.Recipe())[0], want)


# Bytes of files


def test_bytes_depend_on_the_data_the_recipe_and_the_size_of_chunks(tmp_path):
    """Not on threads, time, names of folders and the process; on chunks in pages alone."""
    recipe = rlpost.Recipe(estimator="gae", kl_coef=0.1, whiten_advantages=True)
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        pq.write_table(TABLE, tmp_path / name / "in.parquet", row_group_size=70)
    outputs = {}
    for name, workers, tokens in (("a", 1, None), ("b", 2, None), ("a", 2, 100), ("b", 1, 100)):
        out = tmp_path / name / f"out-{tokens}.parquet"
        options = rlpost.Options(workers=workers, chunk_tokens=tokens)
        rlpost.advantages(tmp_path / name / "in.parquet", out, recipe, options)
        outputs.setdefault(tokens, set()).add(out.read_bytes())
    assert [len(files) for files in outputs.values()] == [1, 1]
    assert outputs[None] != outputs[100]
    whole, small = (pq.read_table(tmp_path / f"a/out-{tokens}.parquet") for tokens in (None, 100))
    assert whole.equals(small)


def test_many_small_files_are_the_same_for_any_workers(tmp_path):
    steps = TABLE.set_column(2, "step", pa.array([i // 4 for i in range(TABLE.num_rows)]))
    files_of(steps, range(4, TABLE.num_rows, 4), [4], tmp_path / "in")
    one, four = (
        rlpost.advantages(
            tmp_path / "in", tmp_path / str(n), rlpost.Recipe(), rlpost.Options(workers=n)
        )
        for n in (1, 4)
    )
    assert {k: one[k] for k in one.keys() - MANNER} == {k: four[k] for k in four.keys() - MANNER}
    names = sorted(path.name for path in (tmp_path / "in").iterdir())
    assert len(names) == TABLE.num_rows // 4
    for n in ("1", "4"):
        assert sorted(path.name for path in (tmp_path / n).iterdir()) == names
    for name in names:
        assert (tmp_path / "1" / name).read_bytes() == (tmp_path / "4" / name).read_bytes()
    # A file that is a run by itself has the summary that it has among others.
    alone = rlpost.advantages(tmp_path / "in" / names[3], tmp_path / "alone.parquet")
    metadata = pq.read_metadata(tmp_path / "1" / names[3]).metadata
    stored = loads(metadata[b"rlpost.summary"])
    alone["findings"] = [row | {"rows": []} for row in alone["findings"]]  # no footer has places
    alone = alone | {"facts": {x: {"of": y["of"], "all": y["all"]} for x, y in alone.facts.items()}}
    alone |= {"findings": [row | {"rows": []} for row in alone["findings"]]}  # no paths
    assert {name: loads(json.dumps(alone[name])) for name in stored} == stored


# Losses


@pytest.mark.parametrize("given", [True, False], ids=["read", "computed"])
@pytest.mark.parametrize("loss", ["gspo", "kl_cov", "clip_cov"])
def test_chunks_order_and_files_change_no_bit_of_a_loss(tmp_path, given, loss):
    words = ("--loss", loss, *(["--loss-option", "share=0.05"] if "cov" in loss else []))
    words += ("--loss-option", "cov=0.1:5") if loss == "clip_cov" else ()
    table = tied(dump(with_advantages=given))
    path = save(table, tmp_path / "one.parquet")
    want = summary_of(path, *words, "--workers", 1)
    assert "cov" not in loss or want["facts"]["selected"]["all"]["total"] > 20
    assert summary_of(path, *words, "--chunk-tokens", 50, "--workers", 2) == want
    shuffled = table.take(np.random.default_rng(5).permutation(60))
    for place, start in enumerate(range(0, 60, 25)):
        save(shuffled.slice(start, 25), tmp_path / "many" / f"{place}.parquet", 10)
    assert summary_of(tmp_path / "many", *words, "--chunk-tokens", 1) == want


def test_blocks_of_a_chunk_change_no_bit(tmp_path, monkeypatch):
    path = save(dump(), tmp_path / "in.parquet")
    want = summary_of(path, *SWEEP)
    monkeypatch.setattr("rlpost.pipeline.stages.loss._BLOCK", 30)
    assert summary_of(path, *SWEEP) == want


# Left out equals absent


BAD = (math.nan, math.inf, -math.inf)
EMIT = ("advantages", "returns", "response_level_rewards", "sample_mask", "kl", "raw_advantages",
        "token_level_rewards", "group_mean", "group_size")  # fmt: skip


def same_facts(got, want):
    """Equal to 1e-9, number by number."""
    if isinstance(want, dict):
        assert set(got) == set(want)
        for key, value in want.items():
            same_facts(got[key], value)
    elif isinstance(want, list):
        for a, b in zip(got, want, strict=True):
            same_facts(a, b)
    elif want is None or isinstance(want, str):
        assert got == want
    else:
        assert got == pytest.approx(want, rel=1e-9, abs=1e-9)


def with_bad(row, name, bad):
    """The row with its reward, or the value at its first policy token, replaced."""
    if name == "reward" or 1 not in row.mask:
        return replace(row, reward=bad)
    values = list(getattr(row, name))
    values[row.mask.index(1)] = bad
    return replace(row, **{name: values})


@st.composite
def left_out(draw):
    """Rows, a recipe, which rows are left out, and a table in which a mask or bad numbers do so."""
    rows = draw(rollouts(max_groups=3, max_group_size=4, max_batches=2, max_tokens=6))
    options = draw(recipes())
    flags = draw(st.lists(st.booleans(), min_size=len(rows), max_size=len(rows)))
    kind = draw(st.sampled_from([bool, int, float, *BAD]))
    if kind in (bool, int, float):
        table = to_table(rows).append_column("sample_mask", pa.array([kind(x) for x in flags]))
        return rows, options, flags, table, "sample_mask"
    assume("reward_components" not in options)  # its recipes read components, not the reward
    names = ["reward", "old", "ref", "token_rewards"]
    names += ["values"] if options["estimator"] == "gae" else []
    role = draw(st.sampled_from(names))
    spoilt = [r if stays else with_bad(r, role, kind) for r, stays in zip(rows, flags, strict=True)]
    return rows, options, flags, to_table(spoilt), "nonfinite"


@settings(max_examples=60)
@given(left_out())
def test_a_response_that_is_left_out_is_as_if_it_were_not_there(case):
    rows, options, flags, table, how = case
    assume(options["estimator"] not in JOINING)  # a rollout goes with its row
    stay, gone = ([i for i, flag in enumerate(flags) if flag == kept] for kept in (True, False))
    assume(gone)
    others = [rows[i] for i in stay]
    assume({r.batch for r in others} == {r.batch for r in rows})
    assume(any(r.kept for r in pipeline(others, options).rows))
    if options.get("numerics", {}).get("batch") == "step_domain":  # in order of appearance
        assume(
            [*dict.fromkeys(r.domain for r in rows)] == [*dict.fromkeys(r.domain for r in others)]
        )
    emit = tuple(name for name in EMIT if name != "kl" or rows[0].ref)
    recipe = rlpost.Recipe(**options, emit=emit, replace=True, nonfinite="mask")
    got, summary = rlpost.enrich(table, recipe)
    want, expected = rlpost.enrich(to_table(others), recipe)
    for name in emit:
        here, there = (written(part, name) for part in (got.take(stay), want))
        listed = isinstance(want.schema.field(name).type, pa.ListType)
        close(*((flat(here), flat(there)) if listed else (here, there)))
        out = written(got.take(gone), name)
        assert not any(flat(out) if listed else out), name
    here, there = summary["facts"], expected["facts"]
    assert here.pop(f"left_out:{how}")["all"]["total"] == len(gone)
    there.pop(f"left_out:{how}", None)
    assert (summary["responses"], expected["responses"]) == (len(rows), len(others))
    assert [*here] == [*there]
    for name, measure in there.items():
        if measure["of"] == "responses":
            assert here[name]["all"]["total"] == measure["all"]["total"]
        else:
            same_facts(here[name]["all"], measure["all"])
    for name in ("kl", "groups", "groups_with_signal"):
        same_facts(summary[name], expected[name])
