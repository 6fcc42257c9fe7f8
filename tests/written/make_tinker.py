"""Write tinker/: a captured run by tinker_cookbook 0.6.1's own exporter and store.

    pip install tinker_cookbook==0.6.1 && python tests/written/make_tinker.py

The instrumented `sample` calls a scripted client in place of the service; the capture, its JSON
lines, its SQLite store and the Arrow schema are the cookbook's. Clocks and identifiers are fixed.
"""

from __future__ import annotations

import itertools
import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pyarrow.parquet as pq
from tinker_cookbook.capture import instrument
from tinker_cookbook.capture.exporter import CaptureExporter, JsonlFileSink
from tinker_cookbook.capture.scope import capture
from tinker_cookbook.capture.store.client import wire_rows_from_sample_record
from tinker_cookbook.capture.store.db import CaptureDB
from tinker_cookbook.capture.store.schema import WIRE_ROWS_COLUMNS, render_arrow_schema
from tinker_cookbook.stores.storage import LocalStorage

FOLDER = Path(__file__).parent / "tinker"
CALLS = [  # iteration, group, trajectory, prompt, answers, why they ended
    (3, 0, 0, [1, 2, 3], [[11, 12]], "stop"),
    (3, 0, 1, [1, 2, 3], [[21]], "stop"),
    (3, 0, 0, [1, 2, 3, 11, 12, 4], [[13, 14]], "length"),  # goes on
    (3, 0, 0, [7, 8], [[15]], "stop"),  # with another history
    (3, 1, 0, [5, 6], [[31, 32]], "stop"),
    (4, 0, 0, [1, 2, 3], [[41]], "stop"),
]


class Prompt:
    def __init__(self, ids: list[int]) -> None:
        self.ids = ids

    def to_ints(self) -> list[int]:
        return self.ids


class Done:
    """A future that is done."""

    def __init__(self, response: object) -> None:
        self.response = response

    def add_done_callback(self, call) -> None:
        call(self)

    def exception(self) -> None:
        return None

    def result(self) -> object:
        return self.response


def main() -> None:
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir()
    clock = itertools.count(1_790_000_000)
    numbers = itertools.count(1)
    instrument.time = SimpleNamespace(time=lambda: float(next(clock)), perf_counter=lambda: 0.0)
    instrument.uuid = SimpleNamespace(uuid4=lambda: next(numbers))
    exporter = CaptureExporter(JsonlFileSink(LocalStorage(FOLDER)))
    instrument._exporter = exporter
    answers = iter(CALLS)

    def sample(*_):
        *_, made, why = next(answers)
        sequences = [
            SimpleNamespace(tokens=ids, logprobs=[-0.25 * (i + 1) for i in range(len(ids))],
                            stop_reason=why)
            for ids in made
        ]  # fmt: skip
        return Done(SimpleNamespace(sequences=sequences))

    instrumented = instrument._make_sample_wrapper(sample)
    client = SimpleNamespace(_sampling_session_id="s1", model_path="tinker://run/weights/000012")
    with capture(run_id="run", run_attempt=1, split="train", purpose="rollout"):
        for iteration, group, trajectory, prompt, *_ in CALLS:
            with capture(iteration=iteration, group_idx=group, traj_idx=trajectory):
                instrumented(client, Prompt(prompt), 1, SimpleNamespace(max_tokens=2))
    exporter.shutdown()
    (FOLDER / "capture" / "sample.jsonl").rename(FOLDER / "sample.jsonl")
    (FOLDER / "capture").rmdir()
    records = [json.loads(x) for x in (FOLDER / "sample.jsonl").read_text().splitlines()]
    store = CaptureDB(FOLDER / "capture.sqlite")
    store.ingest_wire([row for one in records for row in wire_rows_from_sample_record(one)])
    store.ingest_annotations([{"event_id": "e1", "run_id": "run", "kind": "note", "payload": {}}])
    rows = store.query_rows("run")
    store.close()
    schema = render_arrow_schema(WIRE_ROWS_COLUMNS)
    rows = [{**row, "metadata": json.dumps(row["metadata"])} for row in rows]
    pq.write_table(pa.Table.from_pylist(rows, schema), FOLDER / "capture.parquet")
    truth = [
        {"step": call[0], "group": str(call[1]), "trajectory": call[2], "prompt": call[3],
         "tokens": ids, "log_probs": [-0.25 * (i + 1) for i in range(len(ids))], "stop": call[5]}
        for call in CALLS
        for ids in call[4]
    ]  # fmt: skip
    (FOLDER / "truth.jsonl").write_text("".join(json.dumps(one) + "\n" for one in truth))


if __name__ == "__main__":
    main()
