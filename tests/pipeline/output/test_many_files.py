"""Many small files in one run: bytes and summaries do not depend on the workers."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import rlpost
from rlpost.api import Options

FILES, ROWS = 24, 6
MANNER = {"inputs", "outputs", "seconds"}


def write_files(folder):
    rng = np.random.default_rng(5)
    for step in range(FILES):
        lengths = rng.integers(1, 5, ROWS)
        mask = pa.ListArray.from_arrays(
            np.concatenate([[0], lengths.cumsum()]).astype(np.int32),
            pa.array(np.ones(lengths.sum(), np.uint8)),
        )
        columns = {
            "prompt_id": [f"{step}-{row // 3}" for row in range(ROWS)],
            "step": [step] * ROWS,
            "domain": ["math", "code"] * (ROWS // 2),
            "reward": rng.random(ROWS),
            "response_mask": mask,
        }
        pq.write_table(pa.table(columns), folder / f"{step:02d}.parquet")


def test_many_small_files_are_the_same_for_any_workers(tmp_path):
    folder, outs = tmp_path / "in", [tmp_path / "one", tmp_path / "four"]
    folder.mkdir()
    write_files(folder)
    recipe = rlpost.Recipe(estimator="grpo")
    one, four = (
        rlpost.advantages(folder, out, recipe, Options(workers=workers))
        for out, workers in zip(outs, (1, 4), strict=True)
    )
    assert {k: one[k] for k in one.keys() - MANNER} == {k: four[k] for k in four.keys() - MANNER}
    names = [path.name for path in sorted(folder.iterdir())]
    for out in outs:
        assert [path.name for path in sorted(out.iterdir())] == names
    for name in names:
        assert (outs[0] / name).read_bytes() == (outs[1] / name).read_bytes()
    assert [row["step"] for row in one["steps"]] == [*range(FILES)]

    # A file that is a run by itself has the summary that it has among others.
    alone = rlpost.advantages(folder / names[3], tmp_path / "alone.parquet", recipe)
    stored = json.loads(pq.read_metadata(outs[0] / names[3]).metadata[b"rlpost.summary"])
    assert {name: json.loads(json.dumps(alone[name])) for name in stored} == stored
