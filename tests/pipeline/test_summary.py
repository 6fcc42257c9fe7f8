"""The summary against plain polars over the files, and the warnings, each alone."""

import json
import re
import time
from itertools import pairwise

import numpy as np
import polars as pl
import pyarrow.parquet as pq
import pytest
from runs import loads, rollout, run, save
from summaries import errors_of, numbers, parts, warnings_of

import rlpost

L = 12  # the longest response
EMIT = (
    "advantages",
    "returns",
    "response_level_rewards",
    "sample_mask",
    "final_response_mask",
    "token_level_rewards",
)
TOKENS = ["advantages", "returns", "token_level_rewards", "final_response_mask", "response_mask"]


def frame(rows=240, seed=5):
    """Rollouts of two domains and three steps; every prompt has eight responses a step."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, L + 1, rows)
    masks = [(rng.random(n) < 0.8).astype(int) for n in lengths]
    for mask in masks:
        mask[0] = 1
    old = [rng.normal(-1, 0.5, n).astype(np.float32) for n in lengths]
    prompts = np.arange(rows) // 8 % 10
    return pl.DataFrame(
        {
            "prompt_id": [f"p{p}" for p in prompts],
            "step": np.arange(rows) // 80,
            "domain": [("math", "code")[p % 2] for p in prompts],
            "reward": np.where(prompts < 2, 1.0, rng.integers(0, 3, rows) / 2),
            "response_mask": [mask.tolist() for mask in masks],
            "old_log_probs": [x.tolist() for x in old],
            "ref_log_probs": [(x + rng.normal(0, 0.2, len(x))).tolist() for x in old],
            "values": [rng.normal(0, 1, n).tolist() for n in lengths],
            "difficulty": rng.random(rows),
            "finish_reason": np.where(lengths == L, "length", "stop"),
        }
    )


def processed(tmp_path, data, **options):
    """The output as one frame, all input columns and the new ones, and the summary."""
    (tmp_path / "in").mkdir()
    cuts = [0, 70, 71, data.height]
    for start, stop in pairwise(cuts):
        data[start:stop].write_parquet(tmp_path / "in" / f"{start:03}.parquet", row_group_size=33)
    emit = (*EMIT, *(["kl"] if "ref_log_probs" in data.columns else []))
    emit += ("sample_weight",) if options.get("length_weight") else ()
    recipe = rlpost.Recipe(**options, emit=emit)
    run = rlpost.Options(chunk_tokens=100, workers=2)
    summary = rlpost.advantages(tmp_path / "in", tmp_path / "out", recipe, run)
    return pl.read_parquet(tmp_path / "out" / "*.parquet"), summary


def statistic(values):
    values = values.cast(pl.Float64)
    if values.is_empty():
        return {"count": 0, "mean": None, "std": None, "min": None, "max": None}
    std = values.std() if len(values) > 1 else 0.0
    return {
        "count": len(values),
        "mean": values.mean(),
        "std": std,
        "min": values.min(),
        "max": values.max(),
    }


MASKS = ("left_out:", "dropped:")
NEWLY = "newly_dropped:"


def saturated(values, bound):
    """How many written values are at the bound, and their share."""
    return share(values.abs() == np.float32(bound), len(values))


def share(flags, rows):
    return {"count": rows, "total": int(flags.sum()), "mean": flags.sum() / rows}


def signal(out):
    """Kept tokens and responses by the sign of the advantage, and the groups of equal rewards."""
    kept = (
        out.with_row_index("i")
        .select("i", "advantages", "final_response_mask")
        .explode("advantages", "final_response_mask")
        .filter(pl.col("final_response_mask") == 1)
    )
    rows = kept.group_by("i").agg(pl.col("advantages").cast(pl.Float64).sum().sign(), pl.len())
    measures = {}
    for name, sign in (("positive", 1), ("negative", -1), ("zero", 0)):
        measures[f"advantage_{name}"] = share(kept["advantages"].sign() == sign, kept.height)
        lengths = rows.filter(pl.col("advantages") == sign)["len"]
        measures[f"length_{name}"] = {"count": len(lengths), "mean": lengths.mean()}
    valid = out.filter(pl.col("reward").is_finite())
    reward, trains = pl.col("reward"), pl.col("advantages").list.max() != 0
    trains |= pl.col("advantages").list.min() != 0
    groups = valid.group_by("step", "prompt_id").agg(
        reward.first(), trains.any().alias("trains"), reward.n_unique().alias("kinds"), pl.len()
    )
    several = groups.filter(pl.col("len") > 1)
    equal = several["kinds"] == 1
    return measures | {
        "with_signal": share(groups["trains"], groups.height),
        "group_size": statistic(groups["len"]),
        "single": share(groups["len"] == 1, groups.height),
        "equal_rewards": share(equal, several.height),
        "all_pass": share(equal & (several["reward"] >= 1), several.height),
    }


def explained(out):
    """The share of the variance of the returns of kept tokens that the values explain."""
    columns = ["returns", "values", "final_response_mask"]
    tokens = out.select(columns).explode(columns).filter(pl.col("final_response_mask") == 1)
    errors = tokens["returns"].cast(pl.Float64) - tokens["values"]
    value = {
        "count": tokens.height,
        "value": 1 - errors.var() / tokens["returns"].cast(pl.Float64).var(),
    }
    return {"explained_variance": value}


def dropped(out, recipe):
    """How many responses each mask drops, if it is the only one."""
    rows, lengths, measures = out.height, out["response_mask"].list.sum(), {}
    if recipe.drop_longer:
        measures["dropped:longer"] = share(lengths >= recipe.drop_longer, rows)
    if recipe.drop_truncated:
        measures["dropped:truncated"] = share(out["finish_reason"] == "length", rows)
    if recipe.drop_equal_rewards:
        measures["dropped:equal_rewards"] = share(out["kinds"] == 1, rows)
    if recipe.drop_difficulty:
        inside = out["solved"].is_between(*recipe.drop_difficulty, closed="none")
        measures["dropped:difficulty"] = share(~inside, rows)
    if recipe.drop_long_errors:
        good = (out["reward"] == 1) | ((out["reward"] == 0) & (lengths < recipe.drop_long_errors))
        measures["dropped:long_errors"] = share(~good, rows)
    return measures


def clipped(out, kept, recipe):
    """How many written values are at the bounds of the recipe."""
    measures = {}
    if recipe.reward_clip:
        rewards = out.filter("sample_mask")["response_level_rewards"]
        measures["reward_clipped"] = saturated(rewards, recipe.reward_clip.high)
        measures["token_reward_clipped"] = saturated(
            kept["token_level_rewards"], recipe.reward_clip.high
        )
    if recipe.advantage_clip:
        measures["advantage_clipped"] = saturated(kept["advantages"], recipe.advantage_clip)
    return measures


def facts(out, recipe):
    """What the summary says of these rows, by measure, from the columns alone."""
    rows, valid = out.height, out.filter(pl.col("reward").is_finite())
    tokens = out.filter(pl.col("response_mask").list.len() > 0).select(TOKENS).explode(TOKENS)
    kept = tokens.filter(pl.col("final_response_mask") == 1)
    ends = out.filter(pl.col("sample_mask"), pl.col("response_mask").list.sum() > 0)
    measures = {
        "kept": share(out["sample_mask"], rows),
        "left_out:nonfinite": share(~out["reward"].is_finite(), rows),
        "policy_tokens": statistic(valid["response_mask"].list.sum()),
        "reward": statistic(valid["reward"]),
        "passed": share(valid["reward"] >= 1, valid.height),
        "response_level_reward": statistic(valid["response_level_rewards"]),
        "advantage": statistic(kept["advantages"]),
        "return": statistic(kept["returns"]),
        **signal(out),
        **dropped(out, recipe),
        **clipped(out, kept, recipe),
    }
    if recipe.estimator in ("gae", "reinforce_pp") or recipe.kl_coef:  # an advantage a token
        del measures["with_signal"]
    if recipe.estimator == "gae":
        measures |= explained(out)
    if recipe.estimator == "gae" or recipe.drop_truncated:  # then the column is read
        measures["truncated"] = share(ends["finish_reason"] == "length", ends.height)
    if "kl" in out.columns:
        measures["kl"] = statistic(valid["kl"].list.sum() / valid["response_mask"].list.sum())
    if "sample_weight" in out.columns:
        measures["sample_weight"] = statistic(valid["sample_weight"])
    return measures


def same(got, want, where=""):
    """Equal to float32 accuracy, number by number; `got` may say more."""
    if isinstance(want, dict):
        for key, value in want.items():
            same(got[key], value, f"{where}.{key}")
    elif want is None or isinstance(want, int | str):
        assert got == want, where
    else:
        assert got == pytest.approx(want, rel=2e-5, abs=2e-6), where


RECIPES = {
    "grpo": {"advantage_clip": 0.7},
    "masks": {
        "drop_longer": 9, "drop_truncated": True,
        "drop_equal_rewards": True, "estimator": "rloo",
    },
    "difficulty": {
        "drop_difficulty": (0.3, 0.6),
        "drop_long_errors": 11,
    },
    "kl and clips": {"kl_coef": 0.4, "reward_clip": 0.8, "advantage_clip": 0.5, "estimator": "gae"},
    "clips and masks": {
        "kl_coef": 0.4, "reward_clip": 0.6, "advantage_clip": 0.5, "drop_truncated": True,
        "drop_equal_rewards": True,
    },
    "kl and a score": {"kl_coef": 2.0, "reward_clip": 0.6, "estimator": "dr_grpo"},
    "whitening": {"estimator": "reinforce_pp", "gamma": 0.9, "advantage_clip": 1.2},
    "weights": {"length_weight": True, "norm_mean": "running", "norm_std": "running"},
    "bad numbers": {"nonfinite": "mask", "advantage_clip": 0.7},
}  # fmt: skip


@pytest.mark.parametrize("name", RECIPES)
def test_the_summary_is_what_the_columns_say(name, tmp_path):
    data = frame()
    if name == "bad numbers":
        data = data.with_columns(
            reward=pl.when(pl.int_range(pl.len()) % 7 == 3).then(float("nan")).otherwise("reward")
        )
    out, summary = processed(tmp_path, data, **RECIPES[name])
    over = pl.col("reward").filter(pl.col("reward").is_finite())
    out = out.with_columns(
        kinds=over.n_unique().over("step", "prompt_id"),
        solved=over.mean().over("step", "prompt_id"),
    )
    recipe = rlpost.Recipe(**RECIPES[name])
    want, measured = facts(out, recipe), summary["facts"]
    same(numbers(summary), want)
    assert {x for x in measured if x.startswith(MASKS)} == {x for x in want if x.startswith(MASKS)}
    newly = [x for x in measured if x.startswith(NEWLY)]
    assert len(newly) == sum(x.startswith("dropped:") for x in want)
    assert summary["responses"] == out.height
    masks = out["response_mask"]
    assert summary["tokens"] == {"all": masks.list.len().sum(), "policy": masks.list.sum().sum()}
    for by in ("step", "domain"):
        rows = parts(summary, by)
        assert [row["label"] for row in rows] == sorted(out[by].unique().to_list())
        for row in rows:
            same(row, facts(out.filter(pl.col(by) == row["label"]), recipe), row["label"])


def test_roles_and_settings_are_said(tmp_path):
    data = frame().rename({"reward": "score"}).rename({"prompt_id": "question"})
    _, summary = processed(
        tmp_path,
        data,
        columns={"group": "question"},
        kl_coef=0.1,
        kl_target=0.01,
        kl_estimator="k2",
    )
    roles = summary["roles"]
    assert roles["group"] == {"column": "question", "found_by": "map"}
    assert roles["reward"] == {"column": "score", "found_by": "alias"}
    assert roles["mask"] == {"column": "response_mask", "found_by": "name"}
    assert summary["estimator"] == "grpo"
    betas = summary["kl"]["coefficients"]
    assert [part["batch"] for part in betas] == [0, 1, 2]
    assert betas[0]["coefficient"] == 0.1
    assert betas[1]["coefficient"] == pytest.approx(0.1 * (1 + 0.2 * 80 / 10000))
    assert summary["recipe"]["kl_target"] == 0.01
    assert loads(json.dumps(summary))


def test_a_column_that_could_serve_a_role_is_named(tmp_path):
    """`reward` and `score` differ: the summary has the one that was read, and the other."""
    save(rollout().append_column("score", [[1.0, 0.0] * 6]), tmp_path / "in.parquet")
    ran = run("advantages", tmp_path / "in.parquet", tmp_path / "out.parquet")
    assert "reward (not score)" in ran.err
    assert "! `score` ignored: reward is read from `reward` (--map reward=score)" in ran.err
    chosen = ("--map", "reward=score", "--overwrite")
    ran = run("advantages", tmp_path / "in.parquet", tmp_path / "out.parquet", *chosen)
    assert "reward = score (map)" in ran.err
    assert "ignored" not in ran.err
    both = small().with_columns(score=pl.lit(0.5), scores=pl.lit(0.5))
    (text,) = warnings(both)
    assert text.startswith("`score` and `scores` ignored: reward is read from `reward`")
    alias = both.drop("reward")
    roles = rlpost.enrich(alias)[1]["roles"]
    assert roles["reward"] == {"column": "score", "found_by": "alias", "ignored": ["scores"]}
    unread = small().with_columns(value_preds=pl.lit([0.0] * 2), values=pl.lit([0.0] * 2))
    assert warnings(unread) == []


def test_a_footer_has_the_findings_of_its_file_whatever_files_are_beside_it(tmp_path):
    alone, beside = tmp_path / "alone", tmp_path / "beside"
    for number in (1, 2):
        values = [[0.0] * (1 + number), [0.0] * 3, [0.0], [0.0, 0.0]]  # the masks have 8
        save(small(values=values, step=[number] * 4).to_arrow(), tmp_path / f"in/{number}.parquet")
    rlpost.advantages(tmp_path / "in", beside)
    for number, text in ((1, None), (2, "`values` has 9 values, and `response_mask` 8")):
        name = f"{number}.parquet"
        rlpost.advantages(tmp_path / "in" / name, alone / name)
        first, second = (
            loads(pq.read_metadata(folder / name).metadata[b"rlpost.summary"])["findings"]
            for folder in (alone, beside)
        )
        assert first == second
        assert [x["text"].partition(":")[0] for x in first] == [text] * (text is not None)


# Warnings


def small(**columns):
    """Four responses of two groups that nothing is wrong with, but for these columns."""
    data = {
        "prompt_id": ["a", "a", "b", "b"],
        "reward": [0.0, 1.0, 1.0, 0.0],
        "response_mask": [[1, 1], [1, 0, 1], [1], [1, 1]],
        "old_log_probs": [[-1.0, -0.5], [-1.0, -0.1, -0.2], [-0.5], [-1.0, -2.0]],
        "ref_log_probs": [[-1.0, -0.6], [-1.0, -0.2, -0.2], [-0.5], [-1.0, -1.0]],
    }
    data |= columns
    return pl.DataFrame({name: values for name, values in data.items() if values is not None})


def warnings(data, **options):
    """The findings of a run, errors first."""
    summary = rlpost.enrich(data, rlpost.Recipe(**options))[1]
    return errors_of(summary) + warnings_of(summary)


def test_nothing_wrong_nothing_said():
    assert warnings(small()) == []
    for estimator in ("dr_grpo", "rloo", "reinforce_pp", "reinforce"):
        assert warnings(small(), estimator=estimator, kl_coef=0.1) == []


def test_a_key_of_groups_that_is_hardly_that_of_prompts_is_named(tmp_path):
    (mixed,) = warnings(small(data_source=["easy", "hard", "easy", "easy"]))
    assert mixed.startswith("1 of 2 groups by `prompt_id` have responses of several `data_source`")
    assert warnings(small(data_source=["easy", "easy", "hard", "hard"])) == []
    (same,) = warnings(small(prompt_id=[""] * 4, step=[1, 1, 2, 2]))
    assert same.startswith("all responses of a step are one group, of at least 2, by `prompt_id`")
    for number, name in enumerate(("step_1", "step_2")):
        key = ["a", "a", "b", "b"] if number else ["a", "a", "c", "c"]
        small(prompt_id=key).write_parquet(tmp_path / f"{name}.parquet")
    (files,) = warnings_of(rlpost.advantages([*tmp_path.iterdir()], tmp_path / "out"))
    assert files.startswith("1 of 3 groups by `prompt_id` have responses of several of 2 files")


MEASURED = {"kl_estimator": "k1"}
filled = [[-1.0, 0.0], [-1.0, -0.1, 0.0], [0.0], [-1.0, -2.0]]
padded = [[-1.0, 0.0, 0.0], [-1.0, -0.1, -0.2], [-0.1, 0.0, 0.0], [-1.0, -2.0, 0.0]]


def test_log_probs_of_0_that_another_column_has_too_are_no_shift():
    """A forced first token, or a certain end: the reference agrees, up to rounding."""
    certain = {"old_log_probs": filled, "ref_log_probs": [[-1e-6 if x == 0 else x for x in row]
                                                          for row in filled]}  # fmt: skip
    assert warnings(small(**certain), **MEASURED) == []
    engine = certain | {"infer_log_probs": certain["ref_log_probs"]}
    engine["ref_log_probs"] = [[-1.0] * len(row) for row in filled]
    assert warnings(small(**engine), is_weight="token") == []


@pytest.mark.parametrize(
    ("columns", "options", "text"),
    [
        ({"response_mask": None}, {}, "no mask column"),
        ({"prompt_id": ["a", "b", "c", "c"]}, {}, "2 of 3 groups have one response"),
        ({"reward": [1.0] * 4}, {}, "all advantages are zero"),
        ({"reward": [1.0] * 4}, {"estimator": "rloo"}, "all advantages are zero"),
        (
            {
                "response_mask": [[1, 0, 0], [1, 1, 1], [1, 0, 0], [1, 1, 0]],
                "old_log_probs": padded,
                "ref_log_probs": padded,
            },
            MEASURED,
            "3 of 4 responses end in an observation token .* padded",
        ),
        ({"old_log_probs": filled}, MEASURED, "3 of 4 responses begin or end .* shifted"),
        (
            {"old_log_probs": [[0.0, -1.0], [0.0, -1.0, -0.5], [0.0], [-1.0, -0.5]]},
            MEASURED,
            "3 of 4 responses begin or end .* shifted",
        ),
        (
            {},
            {"columns": {"infer_log_probs": "old_log_probs"}},
            "old and infer log-probs are the same column, `old_log_probs`",
        ),
        (
            {"response_mask": [[1, 1], [0, 0, 0], [1], [1, 1]]},
            {},
            "1 response without policy tokens",
        ),
        ({"reward": [0.0, 1.0, 1.0, float("nan")]}, {"nonfinite": "mask"}, "1 response left out"),
        (
            {"response_mask": [[1, 1], [1, 1, 1], [1], [0, 1]]},
            {"drop_longer": 2},
            "--drop-longer 2: 1 response longer, up to 3 policy tokens",
        ),
    ],
)
def test_each_warning_has_its_cause(columns, options, text):
    said = warnings(small(**columns), **options)
    assert [line for line in said if re.search(text, line)]


half = [[-1.0, 0.0], [-1.0, -0.1, 0.0], [-0.5], [-1.0, -2.0]]


@pytest.mark.parametrize(
    "columns",
    [
        {"prompt_id": ["a", "a", "a", "b"]},
        {"reward": [1.0, 1.0, 1.0, 0.0]},
        {"response_mask": [[1, 0], [1, 1, 0], [1], [1, 1]], "old_log_probs": half},
        {"old_log_probs": half},
        {"infer_log_probs": half},
    ],
    ids=str,
)
def test_half_a_cause_is_none(columns):
    assert warnings(small(**columns), **MEASURED) == []


@pytest.mark.parametrize("estimator", ["grpo", "reinforce_pp"])
def test_a_batch_of_one_token_is_not_whitened_and_that_is_said(estimator):
    recipe = rlpost.Recipe(estimator=estimator, whiten_advantages=True)
    columns = {"prompt_id": ["a", "a", "b"], "step": [0, 0, 1], "reward": [1.0, 0.0, 0.5]}
    data = pl.DataFrame({**columns, "response_mask": [[1, 1], [1], [1]]})
    _, summary = rlpost.enrich(data, recipe)
    (said,) = [text for text in warnings_of(summary) if "whitened" in text]
    assert said.startswith("1 batch is not whitened")
    _, summary = rlpost.enrich(data.head(2), recipe)
    assert [text for text in warnings_of(summary) if "whitened" in text] == []


def test_the_seconds_of_a_run_are_start_up_passes_and_publishing(tmp_path):
    small().write_parquet(tmp_path / "in.parquet")
    began = time.perf_counter() - 5.0
    recipe = rlpost.Recipe(estimator="grpo", gamma=0.9, whiten_advantages=True)
    summary = rlpost.advantages(
        tmp_path / "in.parquet", tmp_path / "out.parquet", recipe, rlpost.Options(started=began)
    )
    elapsed = time.perf_counter() - began
    seconds = summary["seconds"]
    assert [*seconds] == ["total", "start_up", "passes", "publishing"]
    assert [*seconds["passes"]] == [
        "read responses", "reduce", "statistics for advantage whitening", "write",
    ]  # fmt: skip
    assert 5.0 < seconds["start_up"] < seconds["total"] < elapsed
    parts = seconds["start_up"] + sum(seconds["passes"].values()) + seconds["publishing"]
    assert parts < seconds["total"]
    copied = (tmp_path / "in.parquet").stat().st_size
    assert summary["bytes"]["written"] == (tmp_path / "out.parquet").stat().st_size
    assert 0 < summary["bytes"]["copied"] < min(copied, summary["bytes"]["written"])
    assert summary["bytes"]["decoded"] > 0
