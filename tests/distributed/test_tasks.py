"""Tasks of a distributed run: the rows of a block, and the time that they take."""

import time
from dataclasses import replace

import numpy as np
from distributed_runs import LOCAL

from rlpost.distributed import shards
from rlpost.distributed.blocks import responses_block
from rlpost.pipeline.data import Responses


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


def test_start_up_is_that_of_the_process_in_wall_and_cpu_time(planned):
    began = time.perf_counter() - 5.0
    options = replace(LOCAL, started=began)
    cpu = time.process_time()
    assert cpu > 0.5  # of imports
    shards.shard(planned / "state", 0, 2, options)
    seconds = shards.shard(planned / "state", 1, 2, LOCAL)["seconds"]  # begins with the call
    assert 5.0 < seconds["start_up"] < 9.0
    assert cpu < seconds["cpu"]["start_up"] < seconds["cpu"]["total"]
    assert seconds["cpu"]["start_up"] < 2 * cpu
