"""Runs in tasks, in this process and on Ray: files to divide, and what a local run has, too."""

import json
import pickle
import tempfile
from contextlib import nullcontext
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from unittest import mock

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import rlpost
from rlpost.errors import RlpostError

MANNER = {"outputs", "seconds", "engine"}
"""Entries of a summary that name how it was computed."""
LOCAL = rlpost.Options(chunk_tokens=30, workers=2)
RAY = rlpost.Options(chunk_tokens=30, engine="ray")


def write_files(table, folder, files, **options):
    """The table as files of about the same size; one more has no rows."""
    folder.mkdir(parents=True)
    bounds = [round(table.num_rows * part / files) for part in range(files + 1)]
    bounds.append(table.num_rows)
    for place, (start, stop) in enumerate(pairwise(bounds)):
        part = table.slice(start, stop - start)
        pq.write_table(part, folder / f"part-{place}.parquet", row_group_size=3, **options)


def steps_table(rows=60, step=str):
    """Rows of six steps whose groups lie in several files."""
    rng = np.random.default_rng(3)
    sizes = rng.integers(1, 6, rows)
    offsets = pa.array(np.concatenate([[0], sizes.cumsum()]), pa.int32())

    def tokens(low=-2.0):
        values = pa.array(rng.uniform(low, 0, sizes.sum()), pa.float32())
        return pa.ListArray.from_arrays(offsets, values)

    ones = pa.array(np.ones(sizes.sum()), pa.uint8())
    return pa.table(
        {
            "prompt_id": [f"p{place % 7}" for place in range(rows)],
            "step": [step(5 - place // 3 % 6) for place in range(rows)],
            "domain": [("math", "code", "chat")[place % 7 % 3] for place in range(rows)],
            "reward": rng.integers(0, 3, rows) / 2,
            "response_mask": pa.ListArray.from_arrays(offsets, ones),
            "old_log_probs": tokens(),
            "ref_log_probs": tokens(),
            "infer_log_probs": tokens(),
            "log_probs": tokens(),
            "values": tokens(),
            "sum_pi_squared": tokens(0.0),
            "correctness": rng.integers(0, 2, rows) / 1.0,
            "format": rng.integers(0, 2, rows) / 1.0,
            "reward_baseline": rng.random(rows),
            "trajectory": [f"t{place % 4}" for place in range(rows)],
            "turn": np.arange(rows) // 28,
            "state_id": [f"s{place % 3}" for place in range(rows)],
            "step_score": rng.random(rows),
            "episode_score": rng.random(rows),
        }
    )


def same_files(got, want):
    names = sorted(path.name for path in want.iterdir())
    assert sorted(path.name for path in got.iterdir()) == names
    for name in names:
        assert (got / name).read_bytes() == (want / name).read_bytes(), name


def same_columns(got, want):
    """The new columns; the metadata name the recipe, which is another."""
    names = ["advantages", "returns", "response_level_rewards"]
    for path in sorted(want.iterdir()):
        table = pq.read_table(got / path.name)
        assert table.select(names).equals(pq.read_table(path, columns=names))
    assert len(list(got.iterdir())) == len(list(want.iterdir()))


def facts(summary):
    """The entries that are those of a local run, as text."""
    others = {*MANNER, "bytes"}
    return json.dumps({key: value for key, value in summary.items() if key not in others})


def sent(value):
    """What another process would get."""
    return pickle.loads(pickle.dumps(value))  # noqa: S301


def run_tasks(_purpose, task, items, _options, done):
    """Run tasks in this process."""
    for number, (part, rows) in enumerate(items):
        there, *given = sent((task, part, rows))
        yield sent(there(*given))
        done(number)


def in_tasks(source, output, recipe=None, options=LOCAL):
    """The summary of a run on Ray whose tasks run in this process, as if it had 64 CPUs."""
    from rlpost.distributed import ray  # noqa: PLC0415 - a second to import

    replaced = {"connected": nullcontext, "run_tasks": run_tasks, "slots": lambda *_: 64}
    with mock.patch.multiple(ray, **replaced):
        return rlpost.advantages(source, output, recipe, replace(options, engine="ray"))


def attempt(run):
    """The summary of a run, or its error."""
    try:
        return run()
    except RlpostError as error:
        return type(error), str(error)


def check(table, recipe, files):
    """A run in tasks leaves the bytes that a local run leaves, or fails as it does."""
    with tempfile.TemporaryDirectory() as name:
        top = Path(name)
        write_files(table, top / "in", files)
        want = attempt(lambda: rlpost.advantages(top / "in", top / "local", recipe, LOCAL))
        got = attempt(lambda: in_tasks(top / "in", top / "out", recipe))
        if isinstance(want, tuple):
            assert got == want
            return
        assert facts(got) == facts(want)
        same_files(top / "out", top / "local")


def hidden(top):
    """What is in the output besides files that have their names."""
    out = top / "out"
    names = [str(path.relative_to(out)) for path in out.rglob("*")]
    return sorted(name for name in names if name.startswith("."))


def below(s3, prefix):
    """The keys that begin so."""
    keys = s3.keys()
    return [key for key in keys if key.startswith(prefix)]


KILLER = '''
import os, signal, time
from pathlib import Path
from unittest import mock
FOLDER = Path({folder!r})

def deadly(token_rewards, offsets):
    """The rewards; the first of all workers to get here is killed before it answers."""
    try:
        (FOLDER / "killed").touch(exist_ok=False)
    except FileExistsError:
        return token_rewards
    if {kill}:
        os.kill(os.getpid(), signal.SIGKILL)
    while not (FOLDER / "go").exists():
        time.sleep(0.02)
    return token_rewards

def harmless(token_rewards, offsets):
    """The rewards"""
    return token_rewards
'''


def recipes_of(folder, *, kill):
    """A recipe that kills, or waits, once, in the middle of a pass; and one that does not."""
    path = folder / "own.py"
    path.write_text(KILLER.format(folder=str(folder), kill=kill))
    names = ("deadly", "harmless")
    return [rlpost.Recipe(estimator=f"{path}:{name}", kl_coef=0.1) for name in names]
