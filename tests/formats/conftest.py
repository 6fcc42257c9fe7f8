"""A dump of NeMo-RL."""

import format_writers as writers
import pytest


@pytest.fixture
def dump(tmp_path):
    return writers.nemo_rl(tmp_path / "in", writers.made())
