"""A folder of outputs, to update."""

import pytest
from strategies import to_table
from test_invariance import big
from updates import counts, save, update


@pytest.fixture
def trained(tmp_path):
    """Three files of a step each, and their outputs."""
    top = tmp_path / "in"
    rows = big(60)
    save(to_table(rows), [row.batch for row in rows], top)
    assert counts(update(tmp_path)) == {"new": 3}
    return tmp_path
