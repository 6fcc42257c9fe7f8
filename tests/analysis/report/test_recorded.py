"""Recorded columns on a page: compared with the recipe of the file, and of the options."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest

import rlpost
from rlpost.analysis.inspect.facts import inspect
from rlpost.analysis.report.recorded import recorded, section
from rlpost.analysis.report.run import report
from rlpost.display.reporter import SilentReporter
from rlpost.errors import DataError
from rlpost.io.parquet.inputs import find_inputs
from rlpost.io.parquet.source import Source
from rlpost.recipe.named import NamedByUser

SAMPLE = Path(__file__).parents[3] / "sample_data"


def test_recorded_numbers_are_compared_with_the_recipe_of_the_file(data):
    """`advantage_clip` and `drop_difficulty` are in the metadata, and in no preset."""
    (section,) = [one for one in data["sections"] if one["name"] == "replay"]
    verdict = section["tiles"][0]
    assert (verdict["value"], verdict["note"]) == (
        "Reproduced", "4 of 4 recorded stages equal within 0.0001",
    )  # fmt: skip
    assert "metadata" in section["lines"][1]


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
    assert f"`rlpost replay {path}`" in without.lines[-1]
    assert [row[1] for row in without.tables[0].rows] == [*emit]
    other = gae.model_copy(update={"lam": 0.5})
    found, shown = rlpost.replay(path, other), section_of(other, "--preset verl --set lam=0.5")
    assert [(one.label, one.value) for one in shown.tiles[:2]] == [
        ("Verdict", "Differs"), ("First stage that differs", "advantages"),
    ]  # fmt: skip
    stages = shown.tables[0]
    assert [row[:2] for row in stages.rows] == [(x["title"], x["verdict"]) for x in found.stages]
    assert "--set lam" in shown.lines[0]
    with pytest.raises(DataError, match="no recorded column"):
        report([str(SAMPLE / "arithmetic.parquet")], tmp_path / "page.html", recipe=gae)
