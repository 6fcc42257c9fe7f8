"""The sample mask of an input: 0 leaves a response out of statistics and of training."""

import re
from dataclasses import replace

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from runs import run
from strategies import to_table
from summaries import dropped, warnings_of
from test_left_out import close, responses, written

import rlpost
from rlpost.analysis.loss import run as loss_run
from rlpost.analysis.verify import verify
from rlpost.errors import DataError, UsageError

EMIT = ("advantages", "returns", "response_level_rewards", "sample_mask", "kl", "raw_advantages",
        "token_level_rewards", "group_mean", "group_size")  # fmt: skip


def masked(table, flags, name="sample_mask"):
    return table.append_column(name, pa.array(flags))


def test_by_hand_and_what_is_printed(tmp_path):
    source, target = tmp_path / "in.parquet", tmp_path / "out.parquet"
    pq.write_table(masked(to_table(responses()), [1, 0, 1, 1]), source)
    ran = run("advantages", source, target, "--estimator", "dr_grpo")
    assert re.search(r"`sample_mask` of the input +-1 +1 ", ran.err), ran.err
    assert re.search(r"kept +3 +75\.0 %", ran.err), ran.err
    out = pl.read_parquet(target)
    close([x[0] for x in out["advantages"].to_list()], [-5 / 3, 0.0, 1 / 3, 4 / 3])
    assert out["sample_mask"].to_list() == [1, 0, 1, 1]  # the input's own, unchanged
    assert verify([target])["ok"]


@pytest.mark.parametrize("name", ["sample_loss_mask", "loss_multiplier", "final_sample_mask"])
def test_a_mask_by_another_name_becomes_the_sample_mask(name, tmp_path):
    pq.write_table(
        masked(to_table(responses()), [1.0, 0.0, 1.0, 1.0], name), tmp_path / "in.parquet"
    )
    for source, out in (("in", "out"), ("out", "again")):
        recipe = rlpost.Recipe(replace=source == "out")
        rlpost.advantages(tmp_path / f"{source}.parquet", tmp_path / f"{out}.parquet", recipe)
        found = pl.read_parquet(tmp_path / f"{out}.parquet")
        assert found["sample_mask"].to_list() == [True, False, True, True]
        assert found[name].to_list() == [1.0, 0.0, 1.0, 1.0]
        assert verify([tmp_path / f"{out}.parquet"])["ok"]
    first, again = (pl.read_parquet(tmp_path / f"{x}.parquet") for x in ("out", "again"))
    assert first.select(sorted(first.columns)).equals(again.select(sorted(again.columns)))


def lost(summary):
    """How many responses are left out for each reason, and how many each mask drops."""
    facts = summary["facts"].items()
    return {
        name: facts["all"]["total"]
        for name, facts in facts
        if name.startswith(("left_out:", "dropped:"))
    }


def test_the_written_mask_combines_both():
    table = masked(to_table(responses()), [True, False, True, True])
    recipe = rlpost.Recipe(drop_longer=3)
    with pytest.raises(UsageError, match="has a column 'sample_mask' already; --replace"):
        rlpost.enrich(table, recipe)
    got, summary = rlpost.enrich(table, recipe.model_copy(update={"replace": True}))
    assert written(got, "sample_mask") == [True, False, False, False]
    assert lost(summary) == {
        "left_out:sample_mask": 1, "left_out:nonfinite": 0, "dropped:longer": 2}  # fmt: skip
    assert dropped(summary) == 3


def test_a_weight_is_no_mask_and_a_null_is_an_error():
    with pytest.raises(DataError, match=r"row 1: `sample_mask` is 0.25; .*--map sample_mask=none"):
        rlpost.enrich(masked(to_table(responses()), [1.0, 0.25, 1.0, 1.0]))
    with pytest.raises(DataError, match="row 2: `sample_mask` is null"):
        rlpost.enrich(masked(to_table(responses()), [True, False, None, True]))
    recipe = rlpost.Recipe(nonfinite="mask", replace=True)
    _, summary = rlpost.enrich(masked(to_table(responses()), [True, False, None, True]), recipe)
    assert lost(summary) == {"left_out:sample_mask": 1, "left_out:nonfinite": 1}
    assert dropped(summary) == 2
    assert "1 response left out: a number is not finite" in warnings_of(summary)


def test_a_mask_that_leaves_nothing_is_an_error():
    with pytest.raises(DataError, match=r"sample_mask keeps 0; .*--map sample_mask=none"):
        rlpost.enrich(masked(to_table(responses()), [0, 0, 0, 0]))


# A second run on the output of a first one

OWN = {"drop_longer": 4}


def twice(tmp_path, table, first, second):
    """The columns of both outputs, and the summary of the second run."""
    pq.write_table(table, tmp_path / "in.parquet")
    rlpost.advantages(tmp_path / "in.parquet", tmp_path / "one.parquet", rlpost.Recipe(**first))
    recipe = rlpost.Recipe(**second, replace=True)
    summary = rlpost.advantages(tmp_path / "one.parquet", tmp_path / "two.parquet", recipe)
    return *(pl.read_parquet(tmp_path / f"{x}.parquet") for x in ("one", "two")), summary


def test_the_same_recipe_gives_the_same_file_again(tmp_path):
    one, two, summary = twice(tmp_path, to_table(responses()), OWN, OWN)
    assert one["sample_mask"].to_list() == [True, True, True, False]
    assert one.select(sorted(one.columns)).equals(two.select(sorted(two.columns)))
    assert any("--map sample_mask=sample_mask" in text for text in warnings_of(summary))
    assert "sample_mask" not in summary["roles"]
    assert verify([tmp_path / "two.parquet"])["ok"]


def test_masks_that_cannot_be_separated_are_an_error(tmp_path):
    table = masked(to_table(responses()), [True, False, True, True])
    with pytest.raises(UsageError, match=r"--map sample_mask=sample_mask .*--map sample_mask=none"):
        twice(tmp_path, table, {**OWN, "replace": True}, {})
    for column, count in (("sample_mask", 2), ("none", 0)):
        recipe = rlpost.Recipe(replace=True, columns={"sample_mask": column})
        summary = rlpost.advantages(
            tmp_path / "one.parquet", tmp_path / f"{column}.parquet", recipe
        )
        assert dropped(summary) == count
    with pytest.raises(DataError, match=r"--replace replaced it|cannot be separated"):
        verify([tmp_path / "one.parquet"])


@pytest.mark.parametrize("order", [("a", "b"), ("b", "a")])
def test_a_mask_that_a_run_computed_in_some_files_only_is_an_error(tmp_path, order):
    enriched, own = (tmp_path / "in" / f"{name}.parquet" for name in order)
    pq.write_table(to_table(responses()), tmp_path / "one.parquet")
    rlpost.advantages(tmp_path / "one.parquet", enriched, rlpost.Recipe(**OWN))
    pq.write_table(masked(pq.read_table(tmp_path / "one.parquet"), [True, False, True, True]), own)
    options = {"replace": True}
    with pytest.raises(UsageError, match=f"{enriched}.*{own}.*--map sample_mask=none"):
        rlpost.advantages(tmp_path / "in", tmp_path / "out", rlpost.Recipe(**options))
    for column, count in (("sample_mask", 2), ("none", 0)):
        recipe = rlpost.Recipe(**options, columns={"sample_mask": column})
        summary = rlpost.advantages(tmp_path / "in", tmp_path / column, recipe)
        assert dropped(summary) == count


def test_the_loss_uses_the_mask_beside_the_advantages(tmp_path):
    rows = [replace(r, current=[x - 0.1 for x in r.old]) for r in responses()]
    pq.write_table(to_table(rows), tmp_path / "in.parquet")
    rlpost.advantages(tmp_path / "in.parquet", tmp_path / "one.parquet", rlpost.Recipe(**OWN))
    read = loss_run.loss(tmp_path / "one.parquet")
    computed = loss_run.loss(tmp_path / "in.parquet", recipe=rlpost.Recipe(**OWN))
    assert read["facts"] == computed["facts"]
    assert read["facts"]["without_tokens"]["all"]["total"] == 1
    assert read["nonfinite"] == computed["nonfinite"] == 0


# Left-out responses with numbers that are not finite
