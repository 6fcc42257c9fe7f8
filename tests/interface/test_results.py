"""Results of Python functions: mappings with attributes."""

import pytest

import rlpost


def test_results_are_mappings_with_attributes(enriched):
    path, summary = enriched
    verdict = rlpost.verify(path)
    assert verdict.ok is verdict["ok"] is True
    assert summary.responses == summary["responses"] == 512
    assert {"facts", "to_dict"} <= {*dir(summary)}
    with pytest.raises(AttributeError, match=r"Summary has no 'reponses'; it has .* responses,"):
        summary.reponses  # noqa: B018
