"""Small rollouts, and the command line on them: in this process, or as one of its own."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from rlpost.cli.app import main

PROGRAM = Path(sys.executable).with_name("rlpost")


class Ran(NamedTuple):
    code: int
    out: str
    err: str


def run(*words: object, out: io.StringIO | None = None) -> Ran:
    """`rlpost WORDS` in this process; what `main` does not translate to an exit code is raised."""
    out, err = out or io.StringIO(), io.StringIO()
    argv = ["rlpost", *map(str, words)]
    with mock.patch.object(sys, "argv", argv), redirect_stdout(out), redirect_stderr(err):
        try:
            main()
        except SystemExit as end:
            return Ran(int(end.code or 0), out.getvalue(), err.getvalue())
    return Ran(0, out.getvalue(), err.getvalue())


def rollout(count: int = 12, size: int = 4) -> pa.Table:
    """Groups of `size` responses of 1 to 5 tokens, the second of five an observation."""
    lengths = [1 + i * 7 % 5 for i in range(count)]
    masks = [[int(n < 5 or t != 1) for t in range(n)] for n in lengths]
    old = [[-(1 + (i + t) % 7) / 4 for t in range(n)] for i, n in enumerate(lengths)]
    ref = [[-(1 + (i + 2 * t) % 5) / 4 for t in range(n)] for i, n in enumerate(lengths)]
    floats = pa.list_(pa.float32())
    return pa.table(
        {
            "prompt_id": [f"p{i // size}" for i in range(count)],
            "reward": pa.array([i * 5 % 8 / 8 for i in range(count)], pa.float32()),
            "response_mask": pa.array(masks, pa.list_(pa.uint8())),
            "old_log_probs": pa.array(old, floats),
            "ref_log_probs": pa.array(ref, floats),
        }
    )


def save(table: pa.Table, path: Path, rows: int = 4) -> Path:
    """The table as a Parquet file with row groups of that many rows."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path, row_group_size=rows)
    return path


def strict_json(text: str):
    """JSON without NaN and Infinity, which many readers refuse."""

    def refuse(name):
        raise AssertionError(f"{name} is no JSON")

    return by_measure(json.loads(text, parse_constant=refuse))


def loads(text: str):
    """JSON whose rows of facts are by measure and key, as those of Python."""
    return by_measure(json.loads(text))


def long_rollout(count: int = 400) -> pa.Table:
    """Return some 300 kB of incompressible data."""
    rng = np.random.default_rng(7)
    lengths = rng.integers(20, 160, count)
    lists = [rng.normal(-1, 0.5, n).astype(np.float32) for n in lengths]
    return pa.table(
        {
            "prompt_id": [f"p{i // 4}" for i in range(count)],
            "reward": rng.random(count).astype(np.float32),
            "response_mask": [np.ones(n, np.uint8) for n in lengths],
            "old_log_probs": lists,
            "ref_log_probs": [values + np.float32(0.1) for values in lists],
        }
    )


def start(*words: object, env: dict[str, str] | None = None, **streams):
    """`rlpost WORDS` as a process of its own, without the colour settings of this one."""
    own = {
        name: text for name, text in os.environ.items() if name not in {"NO_COLOR", "FORCE_COLOR"}
    }
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, **streams}
    return subprocess.Popen([PROGRAM, *map(str, words)], env=own | (env or {}), **pipes)


def by_measure(data: Any) -> Any:
    """Return JSON whose rows of `facts` are by measure and key, as those of Python."""
    if isinstance(data, list):
        return [by_measure(part) for part in data]
    if not isinstance(data, dict):
        return data
    data = {key: by_measure(part) for key, part in data.items()}
    rows = data.get("facts")
    if isinstance(rows, list) and all("measure" in row for row in rows):
        data["facts"] = {}
        for row in rows:
            name, by, of = (row.pop(key) for key in ("measure", "by", "of"))
            data["facts"].setdefault(name, {"of": of})[by] = row
    return data
