"""Blocks of responses, which tasks exchange."""

import numpy as np
import pytest

from rlpost.distributed.blocks import responses_block
from rlpost.pipeline.data import Responses

pytestmark = pytest.mark.nightly


def test_each_reader_of_a_block_reads_its_rows_alone():
    columns = {
        "reward": np.array([0.5, float("nan"), -1e300], dtype=np.float64),
        "code": np.array([3, 1 << 60, -1]),
        "flag": np.array([True, False, True]),
        "step": np.array([1, 0, 1]),
        "domain": np.zeros(3, np.int64),
    }
    labels = {"step": [1, 2], "domain": ["a"]}
    shared = {"baselines": np.arange(4.0)}
    table = Responses(columns, labels, {"other": object()}, shared)
    block = responses_block(table, [2, 0, 1], {"slots": 7})
    assert block.sizes == [2, 0, 1]
    for place, rows in enumerate([slice(0, 2), slice(2, 2), slice(2, 3)]):
        part = block.responses(place)
        assert (part.labels, part.notes) == (labels, {"slots": 7})
        for name, column in columns.items():
            assert part[name].tobytes() == column[rows].tobytes()
        assert part.shared["baselines"].tolist() == [0, 1, 2, 3]
        steps = [part.cells.steps[part.cells.pairs[cell][0]] for cell in part["cell"]]
        assert steps == [[1, 2][step] for step in columns["step"][rows]]
    assert len(block.responses()) == 3
