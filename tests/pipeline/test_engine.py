"""The engine: a chunk that does not fit on the device is split, to the same numbers."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest
import torch
from polars.testing import assert_frame_equal

import rlpost
from rlpost.errors import UnavailableError
from rlpost.pipeline import engine, run

SAMPLE = Path(__file__).parents[2] / "sample_data" / "arithmetic.parquet"
ON_TORCH = rlpost.Options(device="torch:cpu")
RECIPES = [
    rlpost.Recipe(estimator="grpo", kl_coef=0.05),
    rlpost.Recipe(estimator="gae", kl_coef=0.05, whiten_advantages=True),
    rlpost.Recipe(
        estimator="rloo",
        is_weight="segment:normalised",
        is_cap=1.1,
        is_filter=("token:ratio:0.8:1.25", "sequence:ratio:0.5:2"),
    ),
]


def crowded(monkeypatch, most_rows):
    """Make every piece of more rows than this fail as a full GPU makes it fail."""
    decode = engine.Decoder.batch if hasattr(engine, "Decoder") else run.Decoder.batch

    def batch(self, pieces, *rest):
        if sum(piece.table.num_rows for piece in pieces) > most_rows:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return decode(self, pieces, *rest)

    monkeypatch.setattr(run.Decoder, "batch", batch)


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.estimator)
def test_a_piece_that_does_not_fit_is_halved_and_gives_the_same(recipe, tmp_path, monkeypatch):
    whole = rlpost.advantages(SAMPLE, tmp_path / "whole.parquet", recipe, options=ON_TORCH)
    crowded(monkeypatch, 40)
    halved = rlpost.advantages(SAMPLE, tmp_path / "halved.parquet", recipe, options=ON_TORCH)
    assert whole["split_chunks"] == 0
    assert halved["split_chunks"] > 0
    left, right = (pl.read_parquet(tmp_path / f"{name}.parquet") for name in ("whole", "halved"))
    # Blocks of a scan begin elsewhere in half a piece, so its last bit may differ.
    assert_frame_equal(left, right, check_exact=False, rel_tol=1e-6, abs_tol=1e-7)


def test_a_response_that_does_not_fit_alone_is_an_error(tmp_path, monkeypatch):
    crowded(monkeypatch, 0)
    with pytest.raises(UnavailableError, match="row 0: this response does not fit"):
        rlpost.advantages(SAMPLE, tmp_path / "out.parquet", options=ON_TORCH)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("device", ["cpu", "torch:cpu"])
def test_the_summary_names_the_device_as_the_option_does(device, tmp_path):
    options = rlpost.Options(device=device)
    summary = rlpost.advantages(SAMPLE, tmp_path / "out.parquet", options=options)
    assert summary.devices == [device]
    assert rlpost.loss(SAMPLE, options=options).devices == [device]
