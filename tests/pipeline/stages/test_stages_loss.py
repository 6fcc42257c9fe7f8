"""Stages of a loss: tokens selected of a batch do not depend on chunks, files and order."""

import numpy as np
import polars as pl
import pyarrow.parquet as pq
import pytest
from loss_runs import TOKENS, dump, of_all, of_measures, save, summary_of, tied
from runs import run

from rlpost.functional import policy_loss
from rlpost.losses import SELECTED
from rlpost.recipe.loss import LossOptions

SELECTING = {
    "kl_cov": {"loss": "kl_cov", "loss_options": {"share": 0.05}},
    "clip_cov": {"loss": "clip_cov", "loss_options": {"share": 0.05, "cov": "0.1:5"}},
}


def words_of(options):
    own = [f"--loss-option={name}={value}" for name, value in options["loss_options"].items()]
    return ["--loss", options["loss"], *own]


@pytest.mark.parametrize("loss", SELECTING.values(), ids=SELECTING)
def test_each_step_selects_as_the_function_does_of_a_batch(tmp_path, loss):
    path, out = save(tied(dump()), tmp_path / "in.parquet"), tmp_path / "out.parquet"
    assert run("loss", path, out, *words_of(loss)).code == 0
    written = pl.from_arrow(pq.read_table(out))
    options = LossOptions(**loss)
    for step in written.partition_by("step"):
        flat = step.select(
            *(pl.col(name).cast(pl.List(pl.Float64)).explode() for name in (*TOKENS, "advantages")),
            pl.col("response_mask").explode().cast(pl.Boolean),
            pl.col("clip_state").explode(),
        ).drop_nulls()
        ends = np.array([0, *step["response_mask"].list.len().cum_sum().to_list()])
        new, old, _, _, advantages, mask, states = (np.array(x.to_numpy()) for x in flat)
        found = policy_loss(new, old, advantages, ends, mask, loss=options)
        assert found.clip.tolist() == states.tolist()
        share = int(0.05 * int(mask.sum()))
        assert 0 < int((states == SELECTED).sum()) <= share
        assert options.loss == "clip_cov" or int((states == SELECTED).sum()) == share


def test_a_sweep_selects_for_each_setting(tmp_path):
    path = save(tied(dump()), tmp_path / "in.parquet")
    sweep = ("--sweep", "loss=ppo,kl_cov,clip_cov", "--sweep", "share=0.01,0.2")
    rows = summary_of(path, *sweep)["settings"]
    assert len(rows) == 5
    assert rows[0]["swept"] == {"loss": "ppo", "share": None}
    for row in rows[1:]:
        name, share = row["options"]["loss"], row["swept"]["share"]
        single = summary_of(path, "--loss", name, "--loss-option", f"share={share}")
        for measure, entry in of_measures(single, "selected").items():
            assert entry == row["facts"][measure]["all"]
        assert single["facts"]["policy_loss"] == row["facts"]["policy_loss"]
    assert of_all(rows[0], "selected", "total") == 0
