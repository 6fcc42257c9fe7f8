"""A dump of NeMo-RL."""

import format_writers as writers
import pyarrow.parquet as pq
import pytest
from exported_rows import rollouts


@pytest.fixture
def dump(tmp_path):
    return writers.nemo_rl(tmp_path / "in", writers.made())


@pytest.fixture
def source(tmp_path):
    pq.write_table(rollouts(), tmp_path / "in.parquet", row_group_size=3)
    return tmp_path / "in.parquet"
