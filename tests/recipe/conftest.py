"""What a command line asks of the run."""

import pytest
from runs import run

from rlpost import api


@pytest.fixture
def asked(monkeypatch):
    """Takes what `api.advantages` is asked for, in its place."""
    calls = []

    def spy(inputs, output, recipe, options):
        calls.append((inputs, output, recipe, options))
        return {}

    monkeypatch.setattr(api, "advantages", spy)

    def ask(*words):
        ran = run("advantages", "in.parquet", "out.parquet", "-q", *words)
        assert ran == (0, "", "")
        return calls[-1]

    return ask
