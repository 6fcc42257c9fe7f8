"""Updates that are killed, beside a trainer that still writes: every file is written once."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from random import Random

import pyarrow.parquet as pq
import pytest
from forked_runs import ForkedRuns

import rlpost

EVERY = int(os.environ.get("RLPOST_EVERY", "11"))
SECONDS = float(os.environ.get("RLPOST_SECONDS", "2.5"))
RUNNING = "--norm-mean running --norm-std running --kl-coef 0.1 --kl-target 0.01 --kl-horizon 9"

TRAINER = """
import json, os, random, sys, time
from pathlib import Path
import numpy as np, pyarrow as pa, pyarrow.parquet as pq
top, steps, pause = Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
draw = random.Random(int(sys.argv[4]))

def slowly(path, data):
    with path.open("wb", buffering=0) as file:
        for begin in range(0, len(data), len(data) // 3 + 1):
            file.write(data[begin : begin + len(data) // 3 + 1])
            time.sleep(pause * draw.random())

for step in range(steps):
    rng = np.random.default_rng(step)
    rows = []
    for row in range(12):
        n = int(rng.integers(1, 6))
        rows.append({"step": step, "prompt_id": f"{step}-{row // 4}",
            "reward": float(rng.integers(3)), "response_mask": [1] * n,
            "old_log_probs": (-rng.random(n)).tolist(), "ref_log_probs": (-rng.random(n)).tolist()})
    path = top / "tables" / f"step_{step:03}.parquet"
    temporary = path.with_name(f".{path.name}.part")
    pq.write_table(pa.Table.from_pylist(rows), temporary)
    if step % 2:
        slowly(path, temporary.read_bytes())
        temporary.unlink()
    else:
        temporary.rename(path)
    lines = [json.dumps({"input": f"q{row // 4}", "output": f"a{row}", "score": rows[row]["reward"],
        "step": step}) for row in range(12)]
    slowly(top / "verl" / f"{step}.jsonl", ("\\n".join(lines) + "\\n").encode())
    time.sleep(pause * draw.random())
"""


@pytest.fixture(scope="module")
def forked_runs():
    one = ForkedRuns()
    yield one
    one.close()


def train(top, steps, pause=0.0, seed=0):
    """Start a trainer that writes a file per step, of tables and of verl's JSONL."""
    for name in ("tables", "verl"):
        (top / name).mkdir(parents=True, exist_ok=True)
    words = [sys.executable, "-c", TRAINER, top, steps, pause, seed]
    return subprocess.Popen([str(word) for word in words])


def command(source, out, state, *more):
    words = RUNNING.split() if source.name == "tables" else ["--estimator", "dr_grpo"]
    return ["advantages", source, out, *words, "--state", state, "-q", *more]


def contents(folder):
    """The rows of each file, without what depends on the run that wrote it."""
    return {path.name: pq.read_table(path) for path in sorted(folder.glob("*.parquet"))}


def state_of(path):
    return {key: x for key, x in json.loads(path.read_text()).items() if key != "step"}


def test_an_update_that_is_killed_at_any_call_counts_every_batch_once(forked_runs, tmp_path):
    assert train(tmp_path, 4).wait() == 0
    source, old, whole = tmp_path / "tables", tmp_path / "old", tmp_path / "whole"
    assert forked_runs.run(*command(source, whole, tmp_path / "whole.json")).code == 0
    later = [source / f"step_{step:03}.parquet" for step in (2, 3)]
    for path in later:
        path.rename(tmp_path / path.name)
    assert forked_runs.run(*command(source, old, tmp_path / "old.json", "--update")).code == 0
    for path in later:
        (tmp_path / path.name).rename(path)
    first = shutil.copytree(old, tmp_path / "count")
    shutil.copy(tmp_path / "old.json", tmp_path / "count.json")
    words = command(source, first, tmp_path / "count.json", "--update")
    calls = forked_runs.run(*words, call=0, fault="kill").calls
    assert calls > 40
    for call in range(1, calls + 1, EVERY):
        out = shutil.copytree(old, tmp_path / f"out{call}")
        state = Path(shutil.copy(tmp_path / "old.json", tmp_path / f"{call}.json"))
        words = command(source, out, state, "--update")
        assert forked_runs.run(*words, call=call, fault="kill").code == -9
        published = {path: path.stat().st_ino for path in out.glob("*.parquet")}
        ended = forked_runs.run(*words)
        assert (ended.code, ended.err) == (0, ""), call
        assert contents(out) == contents(whole), call
        assert state_of(state) == state_of(tmp_path / "whole.json"), call
        assert {path: path.stat().st_ino for path in published} == published, call
        assert sorted(path.name for path in out.iterdir()) == sorted(contents(whole)), call
    assert rlpost.verify(out)["ok"]


@pytest.mark.parametrize("name", ["tables", "verl"])
def test_beside_a_trainer_each_file_is_written_once_though_updates_are_killed(
    forked_runs, tmp_path, name
):
    steps, draw = 10, Random(7)  # noqa: S311 - no secret hangs on it
    source, out, state = tmp_path / name, tmp_path / "out", tmp_path / "state.json"
    trainer = train(tmp_path, steps, pause=SECONDS / steps / 3)
    seen, killed, runs = {}, 0, 0
    while trainer.poll() is None:
        after = draw.uniform(0.0, 0.15) if draw.random() < 0.5 else None
        how = {} if after is None else {"after": after}
        ended = forked_runs.run(*command(source, out, state, "--update"), **how)
        assert ended.code in (0, -9), ended.err
        killed, runs = killed + (ended.code == -9), runs + 1
        for path in out.glob("*.parquet") if out.is_dir() else []:
            facts = path.stat()
            assert seen.setdefault(path.name, (facts.st_ino, facts.st_mtime_ns)) == (
                facts.st_ino,
                facts.st_mtime_ns,
            )
        time.sleep(0.02)
    assert trainer.wait() == 0
    assert killed > 2
    assert runs > 4
    assert forked_runs.run(*command(source, out, state, "--update")).code == 0
    assert forked_runs.run(*command(source, tmp_path / "whole", tmp_path / "w.json")).code == 0
    assert contents(out) == contents(tmp_path / "whole")
    assert len(contents(out)) == steps
    for path in out.glob("*.parquet"):
        assert seen.get(path.name, (path.stat().st_ino,))[0] == path.stat().st_ino
    if name == "tables":
        assert state_of(state) == state_of(tmp_path / "w.json")
