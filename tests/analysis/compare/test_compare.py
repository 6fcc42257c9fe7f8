"""`rlpost compare`: its numbers are those of polars and numpy on the same columns."""

from __future__ import annotations

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from compared_files import ARITHMETIC, CALCULATOR, compared, kept_by_both, measure, plain
from runs import loads, run
from summaries import whole

import rlpost
from rlpost.cli.commands.look import variants
from rlpost.cli.output import show
from rlpost.errors import UsageError
from rlpost.interface.results import Comparison

# The numbers


def test_pairs_are_what_polars_says(pair):
    comparison = compared(*pair)
    means, tokens = (kept_by_both(*columns) for columns in plain(pair))
    (correlations,) = comparison["pairs"]
    frame = pl.DataFrame({"a": means[0], "b": means[1]})
    pearson = frame.select(pl.corr("a", "b")).item()
    assert correlations["pearson"]["responses"] == pytest.approx(pearson, rel=1e-12)
    rank = frame.select(pl.corr("a", "b", method="spearman")).item()
    assert correlations["spearman"] == pytest.approx(rank, rel=1e-12)
    pearson = np.corrcoef(*tokens)[0, 1]
    assert correlations["pearson"]["tokens"] == pytest.approx(pearson, rel=1e-12)
    for level, (a, b) in (("response_", means), ("", tokens)):
        distance, either = np.abs(a - b), ((a != 0) | (b != 0)).sum()
        difference = measure(comparison, f"{level}difference")
        assert difference["count"] == len(a)
        assert difference["mean"] == pytest.approx(distance.mean(), rel=1e-12)
        assert difference["std"] == pytest.approx(distance.std(ddof=1), rel=1e-12)
        assert (difference["min"], difference["max"]) == (
            pytest.approx(distance.min()),
            pytest.approx(distance.max()),
        )
        counts = {
            "equal": (len(a), (a == b).sum()),
            "same_sign": (either, (np.sign(a) * np.sign(b) > 0).sum()),
            "opposite_sign": (either, (np.sign(a) * np.sign(b) < 0).sum()),
        }
        for name, (count, total) in counts.items():
            share = measure(comparison, f"{level}{name}")
            assert share == {"count": count, "total": total, "mean": pytest.approx(total / count)}


def test_sides_are_what_polars_says(pair):
    _, tokens = plain(pair)
    comparison = compared(*pair)
    for side, column in zip(comparison["sides"], tokens, strict=True):
        values = column[np.isfinite(column)]
        advantage = measure(comparison, "advantage", side)
        assert advantage == {
            "count": len(values),
            "mean": pytest.approx(values.mean(), rel=1e-9),
            "std": pytest.approx(values.std(ddof=1), rel=1e-9),
            "min": values.min(),
            "max": values.max(),
        }
        assert measure(comparison, "advantage_zero", side)["total"] == (values == 0).sum()
        population = comparison["facts"][f"advantage:{side}"]["of"]
        assert population == "policy tokens of kept responses"


def test_statistics_by_step_and_domain_are_those_of_their_rows(pair):
    comparison = compared(*pair)
    frames = [pl.read_parquet(path).with_row_index() for path in pair]
    kept = frames[0].with_columns(other=frames[1]["advantages"], keep=frames[1]["sample_mask"])
    tokens = (
        kept.explode("advantages", "other", "response_mask")
        .filter((pl.col("response_mask") == 1) & (pl.col("keep") == 1))
        .with_columns(apart=(pl.col("advantages").cast(pl.Float64) - pl.col("other")).abs())
    )
    for by in ("step", "domain"):
        facts = comparison["facts"]["difference:gae.parquet:rloo.parquet"][by]
        groups = {keys[0]: part["apart"] for keys, part in tokens.group_by(by)}
        assert {*facts["label"]} == {*groups}
        for i, label in enumerate(facts["label"]):
            assert facts["count"][i] == len(groups[label])
            assert facts["mean"][i] == pytest.approx(groups[label].mean(), rel=1e-9)
            assert facts["std"][i] == pytest.approx(groups[label].std(), rel=1e-9)
            assert facts["max"][i] == pytest.approx(groups[label].max(), rel=1e-6)
    assert comparison["facts"]["advantage:gae.parquet"]["step"]["label"] == sorted(
        frames[0]["step"].unique()
    )


def test_a_recipe_and_its_file_have_the_same_population(tmp_path):
    """Also if a filter rejects single tokens, which the file has as `final_response_mask`."""
    rows, out = 200, tmp_path / "out.parquet"
    chance = np.random.default_rng(4)
    lengths = chance.integers(2, 9, rows)
    offsets = np.concatenate([[0], lengths.cumsum()]).astype(np.int32)

    def lists(values, kind=np.float32):
        return pa.ListArray.from_arrays(offsets, pa.array(values.astype(kind)))

    table = pa.table({
        "prompt_id": [f"p{i // 4}" for i in range(rows)],
        "reward": chance.integers(0, 2, rows).astype(np.float32),
        "response_mask": lists(chance.integers(0, 4, offsets[-1]) > 0, np.int8),
        "old_log_probs": lists(-chance.random(offsets[-1])),
        "infer_log_probs": lists(-chance.random(offsets[-1])),
    })  # fmt: skip
    pq.write_table(table, tmp_path / "in.parquet")
    recipe = rlpost.Recipe(
        drop_equal_rewards=True,
        is_filter=("token:ratio:0.8:1.5",),
        emit=("advantages", "final_response_mask"),
    )
    summary = rlpost.advantages(tmp_path / "in.parquet", out, recipe)
    comparison = compared(out, recipes={"again": recipe})
    stored, again = (measure(comparison, "advantage", side) for side in comparison["sides"])
    assert stored == again
    kept = int(pl.read_parquet(out)["final_response_mask"].list.sum().sum())
    assert stored["count"] == kept < int(pl.read_parquet(out)["response_mask"].list.sum().sum())
    for name in ("count", "mean", "std", "min", "max"):
        assert stored[name] == pytest.approx(whole(summary, "advantage")[name], rel=1e-6)
    assert measure(comparison, "equal")["total"] == kept


def test_the_rows_that_differ_most_are_those(pair):
    means, _ = plain(pair)
    both = np.isfinite(means[0]) & np.isfinite(means[1])
    sizes = [np.sqrt(np.mean(np.square(side[both]))) for side in means]
    apart = np.nan_to_num(np.abs(means[0] - sizes[0] / sizes[1] * means[1]))
    frame = pl.read_parquet(CALCULATOR)
    listed = compared(*pair, count=7)["pairs"][0]["most_different"]
    assert [row["row"] for row in listed] == np.argsort(-apart, kind="stable")[:7].tolist()
    for row in listed:
        assert row["prompt_id"] == frame["prompt_id"][row["row"]]
        assert row["reward"] == frame["reward"][row["row"]]
        assert row["left"] == means[0][row["row"]]


def test_a_scale_alone_makes_no_row_differ(tmp_path):
    table = pq.read_table(ARITHMETIC, columns=["prompt_id", "step", "response_mask"])
    values = pa.array([[0.25 * (row % 5)] * 3 for row in range(len(table))])
    mask = pa.array([[1, 1, 1]] * len(table))
    for name, column in (
        ("a", values),
        ("b", pa.array([[2 * v for v in x] for x in values.to_pylist()])),
    ):
        made = table.set_column(2, "response_mask", mask).append_column("advantages", column)
        pq.write_table(made, tmp_path / f"{name}.parquet")
    (facts,) = compared(tmp_path / "a.parquet", tmp_path / "b.parquet")["pairs"]
    assert (facts["most_different"], facts["scale"]) == ([], 0.5)
    rows = pl.read_parquet(ARITHMETIC)
    recipes = {"a": rlpost.Recipe(), "b": rlpost.Recipe(estimator="rloo")}
    other = rlpost.compare(ARITHMETIC, recipes)
    unequal = rows.group_by("step", "prompt_id").agg(pl.col("reward").n_unique() > 1)["reward"]
    assert (other["groups"], other["groups_with_signal"]) == (len(unequal), unequal.sum())
    (pair,) = other["pairs"]
    for row in pair["most_different"]:
        assert row["difference"] == row["left"] - row["right"]
        assert row["beyond_scale"] == row["left"] - pair["scale"] * row["right"]
    assert facts["pearson"]["responses"] == pytest.approx(1)


# Recipes


def test_recipes_give_what_their_files_would(pair):
    recipes = {
        "gae": rlpost.Recipe(estimator="gae", unit="row", advantage_clip=0.4),
        "rloo": rlpost.Recipe(estimator="rloo", unit="row", drop_truncated=True),
    }
    found = compared(CALCULATOR, recipes=recipes)
    files = compared(*pair)
    for name in ("pearson", "spearman"):
        assert found["pairs"][0][name] == files["pairs"][0][name]
    assert [*found["facts"].values()] == [*files["facts"].values()]
    rows = [[row["row"] for row in one["pairs"][0]["most_different"]] for one in (found, files)]
    assert rows[0] == rows[1]


def test_a_column_that_recipes_write_is_compared(pair):
    recipe = rlpost.Recipe(estimator="gae", unit="row", advantage_clip=0.4, replace=True)
    recipes = {"gae": recipe, "again": recipe.model_copy(update={"gamma": 0.9})}
    found = compared(pair[0], recipes=recipes, column="returns")
    stored = compared(pair[0], recipes={"gae": recipe}, column="returns")
    assert measure(stored, "equal")["mean"] == 1
    returns = measure(stored, "advantage", str(pair[0]))
    assert measure(found, "advantage", "gae") == returns
    assert measure(found, "equal")["mean"] < 1
    with pytest.raises(UsageError, match="--emit is_weight needs --is-weight"):
        compared(pair[0], recipes=recipes, column="is_weight")


@pytest.mark.parametrize(
    ("presets", "estimators", "names"),
    [
        ([], ["grpo", "rloo"], ["grpo", "rloo"]),
        (["verl", "trl"], ["grpo"], ["verl", "trl"]),
        (["verl", "trl"], ["grpo", "rloo"], ["verl grpo", "verl rloo", "trl grpo", "trl rloo"]),
        (["verl"], ["grpo"], ["verl grpo"]),
        ([], [], []),
    ],
)
def test_sides_are_named_by_what_varies(presets, estimators, names):
    assert [*variants([], presets, estimators, {})] == names


# What is printed


def test_json_is_data_and_markdown_is_tables(pair, capsys):
    found = compared(*pair)
    show(Comparison(found), "json")
    assert loads(capsys.readouterr().out) == found
    show(Comparison(found), "markdown")
    text = capsys.readouterr().out
    assert text.startswith("# rlpost compare · ")
    assert "| agreement of |" in text
    assert str(found["pairs"][0]["most_different"][0]["row"]) in text


def sides(*recipes, path=ARITHMETIC, count=2):
    return compared(path, recipes=dict(recipes), count=count)


def test_the_fields_that_differ_and_matter_have_the_value_of_each_side():
    """KL is measured here and not subtracted, so its estimator changes no advantage."""
    verl, trl = rlpost.preset("verl", estimator="grpo"), rlpost.preset("trl", estimator="grpo")
    found = sides(("verl", verl), ("trl", trl))["recipe_differences"]
    fields = {one["field"]: one["values"] for one in found}
    assert fields["norm_eps"] == [1e-6, 1e-4]
    assert "kl_estimator" not in fields
    again = rlpost.Recipe(kl_estimator="k3")
    assert sides(("a", rlpost.Recipe()), ("b", again))["recipe_differences"] == []


def test_the_recipes_of_files_are_those_of_their_metadata(pair, tmp_path):
    fields = {one["field"]: one["values"] for one in compared(*pair)["recipe_differences"]}
    assert fields["estimator"] == ["gae", "rloo"]
    assert fields["advantage_clip"] == [0.4, None]
    bare = tmp_path / "bare.parquet"
    pq.write_table(pq.read_table(pair[0]).replace_schema_metadata(None), bare)
    assert compared(pair[0], bare)["recipe_differences"] is None


def test_three_sides_have_a_row_and_a_table_for_each_pair(capsys):
    names = ("grpo", "rloo", "dr_grpo")
    found = sides(*((name, rlpost.Recipe(estimator=name)) for name in names), count=1)
    show(Comparison(found), "table")
    lines = capsys.readouterr().out.splitlines()
    for pair in found["pairs"]:
        opposite = measure(found, "response_opposite_sign", pair["left"], pair["right"])["total"]
        (row,) = [line for line in lines if line.startswith(f"{pair['left']}, {pair['right']} ")]
        assert f"{pair['pearson']['responses']:.4f}" in row.split()
        assert str(opposite) in row.split()
    for left, right in (("grpo", "rloo"), ("grpo", "dr_grpo")):
        assert [x for x in lines if x.startswith(f"Largest differences, {left} - ") and right in x]
    assert lines[-1].startswith("✓ 3 of 3 ")


def test_the_command_line():
    done = run("compare", ARITHMETIC, "--estimator", "grpo", "--estimator", "rloo")
    assert done.code == 0
    lines = done.out.splitlines()
    assert lines[0] == f"rlpost compare · {ARITHMETIC}: grpo, rloo"
    assert "344 of 512" in lines[1]
    assert lines[2] == "why: the recipes differ in estimator"
    assert lines[-1].startswith("✓ 344 of 512")
    alone = run("compare", ARITHMETIC)
    assert (alone.code, alone.out) == (2, "")
    assert "a comparison needs another input" in alone.err
