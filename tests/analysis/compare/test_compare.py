"""`rlpost compare`: its numbers are those of polars and numpy on the same columns."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from runs import run

import rlpost
from rlpost.analysis.compare import matching
from rlpost.analysis.compare.agreement import Agreement, ValueStats, ranks, spearman
from rlpost.analysis.compare.compare import compare_files, compare_recipes
from rlpost.analysis.compare.render import show
from rlpost.cli.commands.compare import variants
from rlpost.errors import DataError, UsageError

SAMPLE = Path(__file__).parents[3] / "sample_data"
ARITHMETIC, CALCULATOR = SAMPLE / "arithmetic.parquet", SAMPLE / "calculator.parquet"


def enriched(path, out, estimator, **options):
    recipe = rlpost.Recipe(estimator=estimator, **options)
    return rlpost.advantages(path, out, recipe)


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    folder = tmp_path_factory.mktemp("compare")
    paths = [folder / "gae.parquet", folder / "rloo.parquet"]
    enriched(CALCULATOR, paths[0], "gae", advantage_clip=0.4)
    enriched(CALCULATOR, paths[1], "rloo", drop_truncated=True)
    return paths


def compared(*paths, count=5, **options):
    return compare_files([str(path) for path in paths], {}, column=None, count=count, **options)


def plain(paths):
    """Means of policy tokens, and the tokens themselves, by polars; NaN if a side drops them."""
    frames = [pl.read_parquet(path).with_row_index() for path in paths]
    kept = pl.col("sample_mask") if "sample_mask" in frames[1].columns else pl.lit(value=True)
    assert "sample_mask" not in frames[0].columns
    tokens = [
        frame.explode("advantages", "response_mask")
        .filter(pl.col("response_mask") == 1)
        .with_columns(
            pl.when(kept if frame is frames[1] else pl.lit(value=True))
            .then(pl.col("advantages").cast(pl.Float64))
            .otherwise(float("nan"))
        )
        for frame in frames
    ]
    means = [one.group_by("index").agg(pl.col("advantages").mean()).sort("index") for one in tokens]
    return (
        [one["advantages"].to_numpy() for one in means],
        [one["advantages"].to_numpy() for one in tokens],
    )


def kept_by_both(left, right):
    both = np.isfinite(left) & np.isfinite(right)
    assert 0 < both.sum() < len(left)
    return left[both], right[both]


# The numbers


def test_pairs_are_what_polars_says(pair):
    found = compared(*pair)
    means, tokens = (kept_by_both(*columns) for columns in plain(pair))
    (facts,) = found["pairs"]
    frame = pl.DataFrame({"a": means[0], "b": means[1]})
    responses = facts["responses"]
    assert responses["count"] == len(frame)
    assert responses["pearson"] == pytest.approx(frame.select(pl.corr("a", "b")).item(), rel=1e-12)
    rank = frame.select(pl.corr("a", "b", method="spearman")).item()
    assert responses["spearman"] == pytest.approx(rank, rel=1e-12)
    assert facts["tokens"]["pearson"] == pytest.approx(np.corrcoef(*tokens)[0, 1], rel=1e-12)
    assert facts["tokens"]["count"] == len(tokens[0])
    for level, (a, b) in (("responses", means), ("tokens", tokens)):
        signs = facts[level]["sign"]
        assert signs["same"] == (np.sign(a) * np.sign(b) > 0).sum()
        assert signs["opposite"] == (np.sign(a) * np.sign(b) < 0).sum()
        assert signs["both_zero"] == ((a == 0) & (b == 0)).sum()
        either = ((a != 0) | (b != 0)).sum()
        assert signs["agreement"] == pytest.approx(signs["same"] / either)
        assert facts[level]["difference"]["max"] == pytest.approx(np.abs(a - b).max())
        assert facts[level]["difference"]["mean"] == pytest.approx(np.abs(a - b).mean())


def test_sides_are_what_polars_says(pair):
    _, tokens = plain(pair)
    found = compared(*pair)
    assert found["population"] == "policy tokens of kept responses"
    for side, every in zip(found["sides"], tokens, strict=True):
        values = every[np.isfinite(every)]
        assert side["advantage"]["mean"] == pytest.approx(values.mean(), rel=1e-9)
        assert side["advantage"]["std"] == pytest.approx(values.std(ddof=1), rel=1e-9)
        assert side["advantage"]["min"] == values.min()
        assert side["advantage"]["max"] == values.max()
        assert side["advantage"]["zeros"] == (values == 0).sum()


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
        drop_zero_variance=True,
        is_filter=("token:ratio:0.8:1.5",),
        emit=("advantages", "final_response_mask"),
    )
    summary = rlpost.advantages(tmp_path / "in.parquet", out, recipe)
    found = compare_recipes([str(out)], [("again", recipe)], {}, column=None, count=3)
    stored, again = (side["advantage"] for side in found["sides"])
    assert stored == again
    kept = int(pl.read_parquet(out)["final_response_mask"].list.sum().sum())
    assert stored["count"] == kept < int(pl.read_parquet(out)["response_mask"].list.sum().sum())
    for name in ("mean", "std", "min", "max"):
        assert stored[name] == pytest.approx(summary["advantage"][name], rel=1e-6)
    assert found["pairs"][0]["tokens"]["identical"] == kept


def test_rates_are_those_of_the_runs(pair, tmp_path):
    summary = enriched(CALCULATOR, tmp_path / "again.parquet", "gae", advantage_clip=0.4)
    clipped, dropped = (side["rates"] for side in compared(*pair)["sides"])
    assert clipped["advantage_clip"]["count"] == summary["advantage_clip"]["count"] > 0
    assert clipped["advantage_clip"]["rate"] == summary["advantage_clip"]["fraction"]
    truncated = pl.read_parquet(CALCULATOR)["finish_reason"] == "length"
    assert dropped["masked_truncated"]["count"] == truncated.sum() > 0
    assert "advantage_clip" not in dropped


def test_the_rows_that_differ_most_are_those(pair):
    means, _ = plain(pair)
    both = np.isfinite(means[0]) & np.isfinite(means[1])
    scaled = [one / np.sqrt(np.mean(np.square(one[both]))) for one in means]
    apart = np.nan_to_num(np.abs(scaled[0] - scaled[1]))
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
    assert facts["most_different"] == []
    assert facts["responses"]["pearson"] == pytest.approx(1)


def test_a_mask_of_one_side_makes_no_row_differ(tmp_path):
    for name, recipe in (
        ("all", rlpost.Recipe()),
        ("varied", rlpost.Recipe(drop_zero_variance=True)),
    ):
        rlpost.advantages(ARITHMETIC, tmp_path / f"{name}.parquet", recipe)
    (facts,) = compared(tmp_path / "all.parquet", tmp_path / "varied.parquet")["pairs"]
    assert facts["tokens"]["identical"] == facts["tokens"]["count"] > 0
    assert facts["most_different"] == []


def test_a_file_equals_itself(pair):
    (facts,) = compared(pair[0], pair[0])["pairs"]
    assert facts["tokens"]["identical"] == facts["tokens"]["count"]
    assert facts["responses"]["spearman"] == facts["responses"]["pearson"] == 1
    assert facts["most_different"] == []


# Matching


def with_ids(path, out, order, row_group_size=100):
    frame = pl.read_parquet(path).with_columns(sample_id=pl.int_range(pl.len()))
    pq.write_table(frame[order].to_arrow(), out, row_group_size=row_group_size)
    return out


def test_rows_in_another_order_are_matched_by_their_keys(pair, tmp_path):
    count = pq.read_metadata(pair[0]).num_rows
    order = np.random.default_rng(3).permutation(count)
    first = with_ids(pair[0], tmp_path / "a.parquet", np.arange(count))
    second = with_ids(pair[1], tmp_path / "b.parquet", order, row_group_size=37)
    found = compared(first, second)
    assert "sample_id" in found["rows"]["matched_by"]
    assert not found["rows"]["by_order_within"]
    straight = compared(*pair)
    assert found["pairs"][0]["responses"] == straight["pairs"][0]["responses"]
    tokens = found["pairs"][0]["tokens"]
    assert tokens["pearson"] == pytest.approx(straight["pairs"][0]["tokens"]["pearson"], rel=1e-12)


@pytest.mark.parametrize("shuffled", [False, True])
def test_rows_without_a_match_are_left_out_and_counted(pair, tmp_path, shuffled):
    count = pq.read_metadata(pair[0]).num_rows
    kept = np.random.default_rng(5).permutation(count)[:300]
    first = with_ids(pair[0], tmp_path / "a.parquet", np.arange(count))
    second = with_ids(pair[1], tmp_path / "b.parquet", kept if shuffled else np.sort(kept))
    found = compared(first, second)
    assert found["rows"]["count"] == 300
    assert list(found["rows"]["left_out"].values()) == [count - 300, 0]
    means, tokens = plain(pair)
    rows = np.sort(kept)
    facts = found["pairs"][0]["responses"]
    a, b = kept_by_both(means[0][rows], means[1][rows])
    assert facts["pearson"] == pytest.approx(np.corrcoef(a, b)[0, 1])
    lengths, mask = (
        pl.read_parquet(pair[0])["response_mask"].list.sum(),
        pl.read_parquet(pair[1])["sample_mask"],
    )
    wanted = sum(lengths[row] for row in rows.tolist() if mask[row])
    assert found["pairs"][0]["tokens"]["count"] == wanted < len(tokens[0])


def test_rows_of_equal_keys_are_matched_by_their_order(tmp_path):
    paths = [tmp_path / "a.parquet", tmp_path / "b.parquet"]
    for path, estimator in zip(paths, ("grpo", "rloo"), strict=True):
        enriched(ARITHMETIC, path, estimator)
    found = compared(*paths)
    assert found["rows"]["matched_by"] == ["batch", "group"]
    assert found["rows"]["by_order_within"]
    assert found["rows"]["count"] == 512


def test_without_keys_position_decides_and_counts_must_agree(tmp_path):
    for name, rows in (("a", 4), ("b", 4), ("c", 5)):
        values = [[float(row), -1.0] for row in range(rows)]
        pq.write_table(pa.table({"advantages": values}), tmp_path / f"{name}.parquet")
    found = compared(tmp_path / "a.parquet", tmp_path / "b.parquet")
    assert found["rows"]["matched_by"] == ["position"]
    with pytest.raises(DataError, match=r"c\.parquet \(5 rows\).*by position"):
        compared(tmp_path / "a.parquet", tmp_path / "c.parquet")


def test_no_row_in_common_is_an_error(tmp_path):
    for name in "ab":
        table = pa.table(
            {"prompt_id": [f"{name}{row}" for row in range(3)], "advantages": [[1.0]] * 3}
        )
        pq.write_table(table, tmp_path / f"{name}.parquet")
    with pytest.raises(DataError, match="no row has the same group"):
        compared(tmp_path / "a.parquet", tmp_path / "b.parquet")


def test_rows_of_unequal_length_count_as_responses_alone(tmp_path):
    lists = {"a": [[1.0, 2.0], [3.0]], "b": [[1.0, 2.0, 6.0], [5.0]]}
    for name, values in lists.items():
        pq.write_table(
            pa.table({"prompt_id": ["x", "y"], "advantages": values}), tmp_path / f"{name}.parquet"
        )
    found = compared(tmp_path / "a.parquet", tmp_path / "b.parquet")
    assert found["rows"]["unequal_lengths"] == 1
    assert found["pairs"][0]["tokens"]["count"] == 1
    assert found["pairs"][0]["responses"]["count"] == 2
    assert found["pairs"][0]["responses"]["difference"]["max"] == 2.0


def test_one_number_a_response_is_compared_with_lists(tmp_path):
    pq.write_table(
        pa.table({"prompt_id": ["x", "y"], "advantages": [[1.0, 1.0], [-2.0]]}),
        tmp_path / "a.parquet",
    )
    pq.write_table(
        pa.table({"prompt_id": ["x", "y"], "advantage": [1.0, -2.0]}), tmp_path / "b.parquet"
    )
    found = compared(tmp_path / "a.parquet", tmp_path / "b.parquet")
    assert found["pairs"][0]["responses"]["identical"] == 2


def test_two_files_of_one_side_are_one_input(pair, tmp_path):
    folder = tmp_path / "parts"
    folder.mkdir()
    table = pq.read_table(pair[1])
    pq.write_table(table.slice(0, 400), folder / "0.parquet")
    pq.write_table(table.slice(400), folder / "1.parquet")
    straight, found = compared(*pair), compared(pair[0], folder)
    assert found["pairs"][0]["responses"] == straight["pairs"][0]["responses"]


# Recipes


def test_recipes_give_what_their_files_would(pair):
    recipes = [
        ("gae", rlpost.Recipe(estimator="gae", advantage_clip=0.4)),
        ("rloo", rlpost.Recipe(estimator="rloo", drop_truncated=True)),
    ]
    found = compare_recipes([str(CALCULATOR)], recipes, {}, column=None, count=5)
    files = compared(*pair)
    for level in ("responses", "tokens"):
        assert found["pairs"][0][level] == files["pairs"][0][level]
    for ours, theirs in zip(found["sides"], files["sides"], strict=True):
        assert ours["advantage"] == theirs["advantage"]
        assert ours["rates"] == theirs["rates"]
    rows = [[row["row"] for row in one["pairs"][0]["most_different"]] for one in (found, files)]
    assert rows[0] == rows[1]


def test_a_single_recipe_is_compared_with_what_the_file_holds(pair):
    recipe = rlpost.Recipe(estimator="gae", advantage_clip=0.4, replace=True)
    found = compare_recipes([str(pair[0])], [("gae", recipe)], {}, column=None, count=5)
    assert found["pairs"][0]["tokens"]["identical"] == found["pairs"][0]["tokens"]["count"]


def test_three_sides_make_three_pairs():
    recipes = [(name, rlpost.Recipe(estimator=name)) for name in ("grpo", "rloo", "dr_grpo")]
    found = compare_recipes([str(ARITHMETIC)], recipes, {}, column=None, count=1)
    pairs = [(pair["left"], pair["right"]) for pair in found["pairs"]]
    assert pairs == [("grpo", "rloo"), ("grpo", "dr_grpo"), ("rloo", "dr_grpo")]
    # within groups of one size, leaving one out scales the centred reward by n / (n - 1)
    assert found["pairs"][2]["responses"]["pearson"] == pytest.approx(1, abs=1e-6)
    assert found["pairs"][2]["most_different"] == []


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
    assert [*variants([], presets, estimators, [])] == names


def test_recipe_files_are_sides(tmp_path):
    for name, clip in (("tight", 0.5), ("loose", 5)):
        (tmp_path / f"{name}.toml").write_text(f'estimator = "rloo"\nadvantage_clip = {clip}\n')
    paths = [tmp_path / "tight.toml", tmp_path / "loose.toml"]
    found = variants(paths, [], [], ["mask=response_mask"])
    clips = {name: recipe.advantage_clip for name, recipe in found.items()}
    assert clips == {"tight": 0.5, "loose": 5}
    assert all(recipe.columns == {"mask": "response_mask"} for recipe in found.values())


def test_too_many_sides_are_refused():
    with pytest.raises(UsageError, match="at most 6"):
        variants([], ["verl", "trl"], ["grpo", "rloo", "dr_grpo", "gpg"], [])


# The pieces


@pytest.mark.parametrize("cuts", [[5], [1, 2, 3], [250, 251, 700]])
def test_sums_do_not_depend_on_the_pieces(cuts):
    rng = np.random.default_rng(0)
    x = rng.standard_normal(1000) + 1e6
    y = 0.3 * x + rng.standard_normal(1000)
    found, spread = Agreement(), ValueStats()
    for a, b in zip(np.split(x, cuts), np.split(y, cuts), strict=True):
        found.add(Agreement.of(a, b))
        spread.add(ValueStats.of(a))
    assert found.pearson == pytest.approx(np.corrcoef(x, y)[0, 1], rel=1e-9)
    assert spread.facts()["std"] == pytest.approx(x.std(ddof=1), rel=1e-9)


def test_nothing_correlates_with_a_constant():
    ones = np.ones(4)
    assert Agreement.of(ones, np.arange(4.0)).pearson is None
    assert spearman(ones, np.arange(4.0)) is None
    assert Agreement.of(np.zeros(0), np.zeros(0)).facts()["sign"]["agreement"] is None


def test_numbers_that_are_not_finite_are_left_out():
    found = Agreement.of(np.array([1.0, np.nan, 2.0]), np.array([1.0, 1.0, np.inf]))
    assert found.count == 1


def test_equal_numbers_share_their_rank():
    values = np.array([3.0, 1.0, 3.0, 2.0])
    assert ranks(values).tolist() == pl.Series(values).rank("average").to_list()


def chunked(values, cuts):
    def pieces():
        for part in np.split(np.arange(len(values)), cuts):
            rows = [values[row] for row in part]
            lengths = np.array([len(row) for row in rows], dtype=np.int64)
            yield matching.ColumnChunk(lengths, np.array([x for row in rows for x in row]))

    return pieces()


def test_streams_are_cut_alike_and_rows_come_in_any_order(monkeypatch):
    monkeypatch.setattr(matching, "CHUNK_TOKENS", 7)
    rng = np.random.default_rng(1)
    values = [rng.standard_normal(n).astype(np.float32).tolist() for n in rng.integers(0, 6, 40)]
    order = rng.permutation(40)
    straight = chunked(values, [3, 3, 20])
    reordered = matching.select_rows(chunked(values, [11]), order, 40)
    back = [[], []]
    for pair in matching.align([straight, reordered]):
        for rows, chunk in zip(back, pair, strict=True):
            rows += [part.tolist() for part in np.split(chunk.values, chunk.lengths.cumsum()[:-1])]
    assert back[0] == values
    assert back[1] == [values[row] for row in order]


def test_ids_may_be_numbers_in_one_file_and_text_in_another():
    inputs = [
        matching.RowKeys("a", 3, {"group": pa.chunked_array([pa.array([1, 2, 3])])}, np.zeros(3)),
        matching.RowKeys("b", 2, {"group": pa.chunked_array([pa.array(["3", "1"])])}, np.zeros(2)),
    ]
    found = matching.match(inputs)
    assert [rows.tolist() for rows in found.rows] == [[0, 2], [1, 0]]


# What is printed


def test_json_is_data_and_markdown_is_tables(pair, capsys):
    found = compared(*pair)
    show(found, "json")
    assert json.loads(capsys.readouterr().out)["pairs"][0]["tokens"] == found["pairs"][0]["tokens"]
    show(found, "markdown")
    text = capsys.readouterr().out
    assert "### Sides: policy tokens of kept responses" in text
    assert "### Agreement of policy tokens of kept responses" in text
    assert str(found["pairs"][0]["most_different"][0]["row"]) in text


def test_piped_tables_are_whole(pair, capsys):
    show(compared(*pair), "table")
    text = capsys.readouterr().out
    assert "…" not in text
    assert "\x1b[" not in text
    assert "matched by step, prompt" in text


def test_the_command_line():
    done = run("compare", ARITHMETIC, "--estimator", "grpo", "--estimator", "rloo")
    assert done.code == 0
    assert "grpo · rloo" in done.out
    alone = run("compare", ARITHMETIC)
    assert (alone.code, alone.out) == (2, "")
    assert "a comparison needs another input" in alone.err
