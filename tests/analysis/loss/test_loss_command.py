"""`rlpost loss`: numbers against plain computations, and everything that must not change them."""

import math
from itertools import pairwise
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from loss_runs import (
    FLOATS,
    SWEEP,
    by,
    dump,
    of_all,
    of_measures,
    policy_tokens,
    ppo,
    save,
    summary_of,
    texts,
    with_lists,
    with_nan,
)
from runs import Ran, loads, run, strict_json

import rlpost
from rlpost.analysis.loss.run import loss
from rlpost.kernels.segments import POSITION_RANGES, PositionSegments, offsets_of, position_range
from rlpost.losses.config import LossConfig
from rlpost.recipe.loss import LossOptions

SAMPLE = Path(__file__).parents[3] / "sample_data"


def test_sample_weights_and_importance_weights_multiply_the_loss(tmp_path):
    table = dump()
    weights = np.random.default_rng(3).random(60).astype(np.float32) * 2
    lists = [[0.5] * len(row) for row in table.column("response_mask").to_pylist()]
    path = save(
        table.append_column("sample_weight", pa.array(weights)).append_column(
            "is_weight", pa.array(lists, FLOATS)
        ),
        tmp_path / "in.parquet",
    )
    tokens = ppo(policy_tokens(path)).with_columns(
        loss=pl.col("loss") * pl.col("sample_weight") * 0.5
    )
    for step, policy in by(summary_of(path), "policy_loss").items():
        own = tokens.filter(pl.col("step") == step)
        assert policy == pytest.approx(own["loss"].mean())
    bare = summary_of(path, "--map", "sample_weight=none", "--map", "is_weight=none")
    assert bare["facts"] == summary_of(save(table, tmp_path / "bare.parquet"))["facts"]


@pytest.mark.parametrize("column", ["sample_mask", "run_attempt"])
def test_masked_rows_and_older_attempts_of_a_step_are_left_out(tmp_path, column):
    table = dump()
    keep = np.arange(60) % 3 > 0
    masked = save(table.append_column(column, pa.array(keep * 1)), tmp_path / "masked.parquet")
    if column == "run_attempt":
        assert summary_of(masked, "--attempts", "all")["tokens"] == summary_of(save(
            table, tmp_path / "whole.parquet"))["tokens"]  # fmt: skip
    fewer = save(table.filter(pa.array(keep)), tmp_path / "fewer.parquet")
    got, want = summary_of(masked)["facts"], summary_of(fewer)["facts"]
    assert got.pop("without_tokens") != want.pop("without_tokens")
    assert got == want


# Sweeps


DETAILS = {"position", "step", "domain"}
OF_INPUT = ("advantage", "ratio", "log_ratio", "policy_k3", "engine_k1", "engine_k3", "ratio_ess")


def test_rows_of_a_sweep_equal_single_runs_bit_for_bit(tmp_path):
    path = save(dump(80), tmp_path / "in.parquet")
    swept = summary_of(path, *SWEEP)
    assert len(swept["settings"]) == 11  # the clip range changes four of seven losses
    assert [tuple(one["swept"].values()) for one in swept["settings"][:2]] == [
        (0.1, "ppo"),
        (0.1, "gspo"),
    ]
    for setting in swept["settings"]:
        named = {x: y for x, y in setting["swept"].items() if y is not None}
        single = summary_of(path, *[f"--{x.replace('_', '-')}={y}" for x, y in named.items()])
        facts = swept["facts"] | setting["facts"]
        for name, entry in single["facts"].items():
            assert entry["all"] == facts[name]["all"]
            if name.endswith("_loss") and name != "token_loss":
                assert entry == facts[name]
        gradient = {"gradient_norm", "gradient_ess", "gradient_cosine"}
        assert facts.keys() - single["facts"].keys() == gradient
        for name in ("options", "formula", "bounds", "aggregation"):
            assert single[name] == setting[name]


MANY = ",".join(str(n / 1000) for n in range(1, 400))


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--sweep", "pg_clp=1,2"], "no option 'pg_clp' of ppo\n  did you mean pg_clip"),
        (["--sweep", "tau=1,2", "--sweep", "loss=ppo,tis"], "no option 'tau' of ppo, tis"),
        (["--sweep", "tau=1,x", "--loss", "real"], "--sweep tau=x: must be a valid number"),
        (["--loss-option", "tau=1", "--sweep", "loss=ppo,tis"], "has no option 'tau'"),
        (["--loss-option", "tau=1"], "tip: # kimi15, real and kimi_k2 have it"),
        (["--tau", "1"], "did you mean --loss-option tau=VALUE (kimi15, real and kimi_k2 have it)"),
        (["0.2"], "OUT is 0.2: a number\n  tip: # a range is one word, LOW:HIGH"),
        (["--loss-option", "pg_clip=3"], "it is an option of rlpost: --pg-clip"),
        (["--sweep", "pg_clip"], "write it NAME=VALUE,VALUE"),
        (["--sweep", "pg_clip=0.1,x"], "pg_clip"),
        (["--sweep", "pg_clip=0.1,0.1"], "a value is repeated"),
        (["--sweep", "loss=ppo,gpso"], "no policy loss 'gpso'\n  did you mean gspo"),
        (["--sweep", "pg_clip=1", "--sweep", "pg_clip=2"], "pg_clip is named twice"),
        (["--loss", "pp"], "no policy loss 'pp'"),
        (["--pg-clip", "-1"], "--pg-clip -1: "),
        (["--preset", "verk"], "no preset 'verk'\n  did you mean verl"),
        (["--sweep", f"pg_clip={MANY}", "--sweep", "loss=ppo,pg,gspo"], "1197 settings"),
        (["out.parquet", "--sweep", "pg_clip=0.1,0.2"], "--sweep and OUT exclude each other"),
        (["b.parquet", "c.parquet", "d.parquet"], "one IN and at most one OUT are"),
    ],
)
def test_a_wrong_command_line_exits_2_and_names_the_error(tmp_path, words, text):
    path = save(dump(8), tmp_path / "in.parquet")
    ran = run("loss", path, *words)
    assert ran.code == 2
    assert text in ran.err
    assert ran.out == ""


def test_an_option_is_swept_over_the_losses_that_have_it(tmp_path):
    path, recipe = save(dump(), tmp_path / "in.parquet"), tmp_path / "recipe.toml"
    recipe.write_text("[loss]\nloss_options = { k_pos = 1.0, k_neg = 2.0 }\n")
    words = ("--sweep", "tau=0.1,0.2", "--sweep", "pg_clip=0.1:0.2,0.3", "--loss-option", "k_neg=4")
    swept = summary_of(path, "--sweep", "loss=ppo,kimi15,pg,vespo", *words, "--config", recipe)
    assert [(x["swept"]["loss"], *[*x["swept"].values()][1:]) for x in swept["settings"]] == [
        ("ppo", None, "0.1:0.2"),
        ("ppo", None, 0.3),
        ("kimi15", 0.1, None),
        ("kimi15", 0.2, None),
        ("pg", None, None),
        ("vespo", None, None),
    ]
    options = swept["settings"][-1]["options"]["loss_options"]
    assert (options["k_pos"], options["k_neg"]) == (1.0, 4.0)
    assert not any("without effect" in text for text in texts(swept))


# Nothing else changes a number

MEANS = "token-mean,token-mean-by-sign,prompt-mean"


@pytest.mark.parametrize(
    "words", [["--chunk-tokens", 1, "--workers", 3], ["--chunk-tokens", 50], ["--workers", 2]]
)
@pytest.mark.parametrize("given", [True, False], ids=["read", "computed"])
def test_chunks_and_workers_change_no_bit(tmp_path, words, given):
    path = save(dump(with_advantages=given), tmp_path / "in.parquet")
    sweep = ("--sweep", "loss=ppo,gspo,sapo", "--sweep", f"aggregation={MEANS}")
    want = summary_of(path, *sweep, "--chunk-tokens", 1 << 20, "--workers", 1)
    assert summary_of(path, *sweep, *words) == want


@pytest.mark.parametrize(
    "options",
    [
        [],
        ["--estimator", "gae", "--kl-coef", "0.05", "--whiten-advantages"],
        ["--difficulty-weight", "--drop-equal-rewards", "--advantage-clip", "0.9"],
        ["--is-weight", "token", "--is-cap", "1.01"],
    ],
    ids=["grpo", "gae", "weights", "importance"],
)
def test_advantages_of_the_run_and_of_a_file_give_the_same_loss(tmp_path, options):
    table = dump(with_advantages=False)
    rng = np.random.default_rng(9)
    values = [rng.normal(size=len(row)) for row in table.column("response_mask").to_pylist()]
    table = table.append_column("values", pa.array(values, FLOATS))
    table = table.append_column("difficulty", pa.array(rng.random(60)))
    path = save(table, tmp_path / "in.parquet")
    assert run("advantages", path, tmp_path / "adv.parquet", *options).code == 0
    computed, read = summary_of(path, *options), summary_of(tmp_path / "adv.parquet")
    assert computed["estimator"] is not None
    assert read["estimator"] is None
    assert read["advantages_from"] == "advantages"
    for name in ("facts", "options", "tokens"):
        assert computed[name] == read[name], name


def test_tokens_that_another_row_trains_count_in_no_mean(tmp_path):
    """Each rollout's second row has the first one's tokens before its own; plain loops."""
    rng, rows = np.random.default_rng(4), []
    for number in range(16):
        ids = [100 * number + i for i in range(int(rng.integers(4, 12)))]
        for turn, size in enumerate((int(rng.integers(1, len(ids) + 1)), len(ids))):
            row = {"prompt_id": f"p{number // 4}", "rollout_id": f"r{number}", "turn": turn}
            row |= {"step": number // 8, "reward": float(number % 3 == 0), "prompt_token_ids": [7]}
            first = len(rows[-1]["response_token_ids"]) if turn else 0
            own = [True] * size if not turn else [i >= first for i in range(size)]
            mask = [1] * first + [0] + [1] * (size - first) if turn else [1] * size
            row |= {"response_token_ids": ids[:first] + [9] * turn + ids[first:size]}
            old = -rng.exponential(0.7, len(mask))
            row |= {"old_log_probs": old, "log_probs": old + 0.3 * rng.standard_normal(len(mask))}
            kept = np.array(own[:first] + [True] * turn + own[first:])  # filters reject the others
            row |= {"infer_log_probs": np.where(kept, old, old - 9)}
            row |= {"response_mask": mask, "own": own[:first] + [False] * turn + own[first:]}
            rows.append(row)
    own = [row.pop("own") for row in rows]
    path = tmp_path / "in.parquet"
    pq.write_table(pa.Table.from_pylist(rows), path)
    words = ("--map", "rollout=rollout_id", "--aggregation")
    reject = ("--is-filter", "token:ratio:0.5:2")
    assert run("advantages", path, tmp_path / "adv.parquet", *words[:2], *reject).code == 0
    written = pl.read_parquet(tmp_path / "adv.parquet")
    assert [[bool(x) for x in mask] for mask in written["final_response_mask"]] == own
    names = ("step", "prompt_id", "rollout_id", "log_probs", "old_log_probs", "advantages")
    every = [
        dict(zip(names, (*row[:3], *values), strict=True)) | {"row": number}
        for number, row in enumerate(written.select(names).iter_rows())
        for *values, trains in zip(*row[3:], own[number], strict=True)
        if trains
    ]
    tokens = ppo(pl.DataFrame(every))
    of = {"rollout-mean": "rollout_id", "prompt-mean": "prompt_id", "seq-mean-token-mean": "row"}
    for how in ("token-mean", "token-mean-by-sign", "seq-mean-token-sum", *of):
        computed = summary_of(path, *words, how, *reject)
        read = summary_of(tmp_path / "adv.parquet", *words, how)
        assert computed["facts"] == read["facts"]
        if how in of or how == "token-mean":
            for step, policy in by(computed, "policy_loss").items():
                losses = tokens.filter(pl.col("step") == step)
                rows = losses.group_by(of[how]).agg(pl.mean("loss")) if how in of else losses
                assert policy == pytest.approx(rows["loss"].mean()), how


# The output


def test_the_output_has_the_input_columns_the_loss_and_the_clip_state(tmp_path):
    path = save(dump(), tmp_path / "in.parquet")
    out = tmp_path / "out.parquet"
    ran = run("loss", path, out)
    assert ran.code == 0, ran.err
    got, source = pq.read_table(out), pq.read_table(path)
    assert got.select(source.schema.names).equals(source)
    assert got.schema.names == [*source.schema.names, "pg_loss", "clip_state"]
    assert got.schema.field("pg_loss").type.value_type == pa.float32()
    assert got.schema.field("clip_state").type.value_type == pa.uint8()
    tokens = ppo(policy_tokens(path))
    own = pl.read_parquet(out).filter(pl.col("response_mask").list.len() > 0)
    flat = own.explode("response_mask", "pg_loss", "clip_state")
    policy = flat.filter(pl.col("response_mask") == 1)
    np.testing.assert_allclose(policy["pg_loss"], tokens["loss"], rtol=1e-6, atol=1e-7)
    states = tokens["low"].cast(pl.UInt8) + tokens["high"].cast(pl.UInt8) * 2
    assert policy["clip_state"].to_list() == states.to_list()
    others = flat.filter(pl.col("response_mask") == 0)
    assert others["pg_loss"].abs().sum() == others["clip_state"].sum() == 0
    metadata = pq.read_metadata(out).metadata
    options = LossOptions.model_validate_json(metadata[b"rlpost.loss"])
    assert (options.loss, options.pg_clip) == ("ppo", (0.2, 0.2))
    assert (options.dual_clip, options.ratio_clamp) == (math.inf, 20)


def test_the_output_has_advantages_if_they_were_computed(tmp_path):
    path = save(dump(with_advantages=False), tmp_path / "in.parquet")
    assert run("loss", path, tmp_path / "out.parquet", "--estimator", "rloo").code == 0
    assert run("advantages", path, tmp_path / "adv.parquet", "--estimator", "rloo").code == 0
    got, want = (pq.read_table(tmp_path / name) for name in ("out.parquet", "adv.parquet"))
    assert got.select(want.schema.names).equals(want)
    assert got.schema.names[-2:] == ["pg_loss", "clip_state"]
    metadata = pq.read_metadata(tmp_path / "out.parquet").metadata
    assert loads(metadata[b"rlpost.recipe"])["estimator"] == "rloo"


# Errors


@pytest.mark.parametrize(
    ("drop", "words", "text"),
    [
        ("log_probs", [], "no column for log_probs"),
        ("old_log_probs", [], "no column for old_log_probs"),
        ("infer_log_probs", ["--behaviour", "infer"], "no column for infer_log_probs"),
        ("ref_log_probs", ["--kl-loss-coef", "0.1"], "no column for ref_log_probs"),
        ("ref_log_probs", ["--loss", "ref_kl"], "no column for ref_log_probs"),
        ("group", ["--aggregation", "prompt-mean"], "no column for group (--aggregation"),
        ("rollout", ["--aggregation", "rollout-mean"], "no column for rollout (--aggregation"),
    ],
)
def test_a_missing_column_is_named_with_what_needs_it(tmp_path, drop, words, text):
    table, column = dump(8), {"group": "prompt_id"}.get(drop, drop)
    kept = [name for name in table.column_names if name != column]
    path = save(table.select(kept), tmp_path / "in.parquet")
    ran = run("loss", path, *words)
    assert ran.code == 3
    assert text in ran.err
    assert f"--map {drop}=" in ran.err


def test_advantages_need_no_rewards_groups_or_steps(tmp_path):
    table = dump(with_advantages=True)
    path = save(table, tmp_path / "in.parquet")
    bare = save(
        table.select(["log_probs", "old_log_probs", "response_mask", "advantages"]),
        tmp_path / "bare.parquet",
    )
    got, want = summary_of(bare), summary_of(path)
    assert of_measures(got, "clipped") == of_measures(want, "clipped")
    assert want["facts"].keys() - got["facts"].keys() == {
        "engine_k1", "engine_k3", "kl_loss", "kl_clamped",
    }  # fmt: skip
    assert not any({"step", "domain"} & entry.keys() for entry in got["facts"].values())
    assert of_all(got, "policy_loss", "count") == 1


def test_nonfinite_log_probs_are_an_error_with_the_row_or_are_left_out(tmp_path):
    row, table = with_nan(dump())
    path = save(table, tmp_path / "in.parquet")
    ran = run("loss", path)
    assert ran.code == 3
    assert f"row {row}" in ran.err
    assert "`log_probs`" in ran.err
    rows = [place for place in range(60) if place != row]
    want = summary_of(save(table.take(rows), tmp_path / "fewer.parquet"))
    got = summary_of(path, "--nonfinite", "mask")
    counts = [of_all(x, "without_tokens", "total") for x in (got, want)]
    assert counts[0] == counts[1] + 1
    for name in ("log_ratio", "policy_loss"):
        assert got["facts"][name] == want["facts"][name]


def test_an_infinite_ratio_is_an_error_that_names_the_clamp(tmp_path):
    table = dump(8)
    path = save(with_lists(table, "old_log_probs", lambda _: -2000.0), tmp_path / "in.parquet")
    ran = run("loss", path, "--ratio-clamp", "never", "--pg-clip", "never")
    assert ran.code == 3
    assert "are log_probs and old_log_probs of the same tokens?" in ran.err
    assert of_all(summary_of(path, "--ratio-clamp", "20"), "ratio", "max") > 1e100


# Warnings


def warnings(*words):
    return " ".join(texts(summary_of(*words)))


def test_suspicious_log_probs_and_advantages_give_warnings(tmp_path):
    table = dump()
    path = save(table, tmp_path / "in.parquet")
    assert "are the same column" in warnings(path, "--map", "log_probs=old_log_probs")
    place = table.schema.get_field_index("log_probs")
    copied = table.set_column(place, "log_probs", table.column("old_log_probs"))
    assert "every ratio is 1" in warnings(save(copied, tmp_path / "copy.parquet"))
    flat = with_lists(table, "advantages", lambda _: 0.0)
    assert "all advantages are zero" in warnings(save(flat, tmp_path / "zero.parquet"))
    bare = save(table.drop_columns(["response_mask"]), tmp_path / "bare.parquet")
    assert "no mask column" in warnings(bare)


# Options from elsewhere


def test_presets_files_and_flags_set_the_loss(tmp_path):
    path = save(dump(), tmp_path / "in.parquet")
    recipe = tmp_path / "recipe.toml"
    recipe.write_text('[loss]\nloss = "cispo"\npg-clip = 0.3\n')
    from_file = summary_of(path, "--config", recipe)["options"]
    assert (from_file["loss"], from_file["pg_clip"]) == ("cispo", 0.3)
    beaten = summary_of(path, "--config", recipe, "--pg-clip", "0.1")["options"]
    assert (beaten["loss"], beaten["pg_clip"]) == ("cispo", 0.1)
    verl = summary_of(path, "--preset", "verl")["options"]
    assert verl["dual_clip"] == 3.0
    swept = summary_of(path, "--preset", "trl", "--sweep", "loss=grpo,dr_grpo")["settings"]
    assert [one["options"]["loss"] for one in swept] == ["ppo", "ppo"]
    assert [one["swept"]["loss"] for one in swept] == ["grpo", "dr_grpo"]
    aggregations = [one["aggregation"] for one in swept]
    assert aggregations == ["seq-mean-token-mean", "seq-mean-token-sum-norm"]


# Text


def test_the_summary_of_the_sample_data_has_all_tables():
    ran = run("loss", SAMPLE / "arithmetic.parquet")
    assert ran.code == 0
    assert ran.out.splitlines()[1].startswith("2.0 % of 10,991 policy tokens")
    assert "clipped, ratio > 1.2" in ran.out
    for part in ("by position", "by step", "by domain", "loss by batch"):
        assert part in ran.out
    assert "\x1b" not in ran.out
    assert ran.err == ""
    assert run("loss", SAMPLE / "arithmetic.parquet", "--quiet") == Ran(0, "", "")
    asked = run("loss", SAMPLE / "arithmetic.parquet", "--quiet", "--format", "json")
    assert strict_json(asked.out)["responses"] == 512


@pytest.mark.parametrize("masks", [[[], []], [[0, 0], [0]], [[1, 0], [1]]])
def test_files_with_few_or_no_policy_tokens_have_a_summary(tmp_path, masks):
    lists = pa.array([[-0.5] * len(mask) for mask in masks], FLOATS)
    table = pa.table(dict.fromkeys(("log_probs", "old_log_probs", "advantages"), lists))
    path = save(
        table.append_column("response_mask", pa.array(masks, pa.list_(pa.uint8()))),
        tmp_path / "in.parquet",
    )
    count = sum(map(sum, masks))
    ran = run("loss", path, tmp_path / "out.parquet")
    assert ran.code == 0
    assert "KL(old ‖ current)" in ran.out
    got = summary_of(path, "--sweep", "loss=ppo,gspo,geo_mean")
    assert got["tokens"]["policy"] == count
    assert of_all(got, "ratio") == (1 if count else None)
    want = pytest.approx(0.5) if count else None
    assert [of_all(setting, "policy_loss") for setting in got["settings"]] == [want] * 3


def test_python_and_the_command_give_the_same(tmp_path):
    path = save(dump(), tmp_path / "in.parquet")
    configs = [LossConfig(LossOptions(pg_clip=0.1))]
    got = loss(path, None, rlpost.Recipe(), configs)
    assert got["facts"] == summary_of(path, "--pg-clip", 0.1)["facts"]
    swept = rlpost.loss(path, sweep={"loss": ["pg", "kimi15"], "tau": [0.1, 0.2]})
    words = ("--sweep", "loss=pg,kimi15", "--sweep", "tau=0.1,0.2")
    assert swept["settings"] == summary_of(path, *words)["settings"]
    assert [x["swept"]["tau"] for x in swept["settings"]] == [None, 0.1, 0.2]


def test_stretches_cut_responses_at_fixed_positions():
    lengths = np.array([0, 5, 8, 9, 100])
    made = PositionSegments.of(offsets_of(lengths))
    assert np.diff(made.offsets).tolist() == [5, 8, 8, 1, 8, 8, 16, 32, 36]
    assert made.places.tolist() == [0, 0, 0, 1, 0, 1, 2, 3, 4]
    assert made.rows.tolist() == [0, 0, 1, 2, 4, 9]
    edges = [position_range(place) for place in range(POSITION_RANGES)]
    assert all(first[1] + 1 == second[0] for first, second in pairwise(edges))
    assert edges[-1][1] is None
    values = np.arange(122, dtype=np.float64)
    assert made.sum(values).sum() == values.sum()
