"""Results of Python functions: mappings with attributes."""

import shutil

import pytest

import rlpost


def test_results_are_mappings_with_attributes(enriched):
    path, summary = enriched
    verdict = rlpost.verify(path)
    assert verdict.ok is verdict["ok"] is True
    assert summary.responses == summary["responses"] == 512
    assert {"advantage", "to_dict"} <= {*dir(summary)}
    with pytest.raises(AttributeError, match=r"Summary has no 'reponses'; it has .* responses,"):
        summary.reponses  # noqa: B018


def test_the_summary_of_an_update_with_nothing_to_write_has_all_attributes(tmp_path):
    (tmp_path / "in").mkdir()
    shutil.copy("sample_data/arithmetic.parquet", tmp_path / "in")
    options = rlpost.Options(update=True)
    first, second = (
        rlpost.advantages(tmp_path / "in", tmp_path / "out", options=options) for _ in range(2)
    )
    assert (first.update["written"], second.update["written"]) == (1, 0)
    assert first.advantage["max"] > 0
    assert second.advantage is None
