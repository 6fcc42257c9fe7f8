"""Recorded columns on a page: compared with the recipe of the file, and of the options."""

from __future__ import annotations

import re
from pathlib import Path

import pyarrow.parquet as pq
import pytest

import rlpost
from rlpost.analysis.inspect.facts import inspect
from rlpost.analysis.report.recorded import recorded, section
from rlpost.display.reporter import SilentReporter
from rlpost.errors import DataError
from rlpost.io.parquet.inputs import find_inputs
from rlpost.io.parquet.source import Source
from rlpost.recipe.named import NamedByUser

SAMPLE = Path(__file__).parents[3] / "sample_data"


def test_recorded_numbers_are_compared_with_the_recipe_of_the_file(made):
    """`advantage_clip` and `drop_difficulty` are in the metadata, and in no preset."""
    (section,) = re.findall('<section id="replay">.*?</section>', made[1].read_text(), re.DOTALL)
    assert "rlpost-ok rlpost-verdict" in section
    assert "computed by the recipe in the metadata" in section


def test_recorded_numbers_are_compared_with_the_recipe_of_the_options(tmp_path):
    table = pq.read_table(SAMPLE / "arithmetic.parquet").slice(0, 128)
    emit = ("kl", "token_level_rewards", "advantages")
    gae = rlpost.preset("verl", estimator="gae", emit=emit)
    path = str(tmp_path / "in.parquet")
    pq.write_table(rlpost.enrich(table, gae)[0].replace_schema_metadata(), path)
    facts, source = inspect([path]), Source(find_inputs([path]))

    def section_of(recipe, named):
        return section(
            recorded(source, {}, recipe or NamedByUser(), named, SilentReporter()), facts
        )

    without = section_of(None, "")
    assert f"`rlpost replay {path}`" in without.page.lines[-1]
    assert [row[1] for row in without.page.parts[0].rows] == [*emit]
    other = gae.model_copy(update={"lam": 0.5})
    found, shown = rlpost.replay(path, other), section_of(other, "--preset verl --set lam=0.5")
    printed = found.page()
    assert (shown.page.verdict, shown.page.verdict.severity) == (printed.verdict, "error")
    assert [row[0] for row in shown.page.parts[0].rows] == [
        stage["title"] for stage in found.stages
    ]
    assert any("--set lam" in line for line in shown.page.lines)
    with pytest.raises(DataError, match="no recorded column"):
        rlpost.report([str(SAMPLE / "arithmetic.parquet")], tmp_path / "page.html", recipe=gae)
