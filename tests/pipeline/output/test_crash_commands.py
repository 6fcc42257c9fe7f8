"""Every command that writes: killed at any call that touches a file, an output is old or complete.

`RLPOST_KILLS=100` kills so many processes of each command.
"""

from __future__ import annotations

import json
import os
import signal
import zlib
from itertools import cycle, islice
from random import Random

import polars as pl
import pytest
from forked_runs import ForkedRuns
from runs import run

SAMPLE = "sample_data/arithmetic.parquet"
LOSS = ("--map", "log_probs=ref_log_probs", "-q")
COMMANDS = {
    "advantages": ("advantages", "{top}/in{n}", "{out}", "-q", "--state", "{out}/state.json",
                   "--estimator", "raw", "--norm-mean", "running"),
    "loss": ("loss", "{top}/{n}.parquet", "{out}/loss.parquet", *LOSS),
    "loss of a folder": ("loss", "{top}/in{n}", "{out}", *LOSS),
    "convert": ("convert", "{top}/{n}.jsonl", "{out}/converted.parquet", "-q"),
    "export to jsonl": ("export", "{top}/{n}.parquet", "{out}/rows.jsonl", "--to", "jsonl", "-q"),
    "export to slime": ("export", "{top}/{n}.parquet", "{out}", "--to", "slime", "-q"),
    "report": ("report", "{top}/{n}.parquet", "{out}/report.html", "-q"),
}  # fmt: skip
AT_NIGHT = (
    "export to slime",
    "report",
    "loss of a folder",
)  # processes that import torch
KILLS = int(os.environ.get("RLPOST_KILLS", "2"))


@pytest.fixture(scope="module")
def forked_runs():
    one = ForkedRuns()
    yield one
    one.close()


@pytest.fixture(scope="module")
def top(tmp_path_factory):
    """Two versions of each input."""
    top = tmp_path_factory.mktemp("inputs")
    rows = pl.read_parquet(SAMPLE)
    for n, estimator in enumerate(("grpo", "rloo")):
        words = ("advantages", SAMPLE, top / f"{n}.parquet", "-q", "--estimator", estimator)
        assert run(*words).code == 0
        (top / f"in{n}").mkdir()
        for step, part in rows.partition_by("step", as_dict=True).items():
            scaled = part.with_columns(pl.col("reward") * (n + 1))
            scaled.write_parquet(top / f"in{n}/{step[0]}.parquet")
        records = [
            {"input": f"q{i // 4}", "output": f"a{i}", "score": (i + n) % 3, "step": i // 40}
            for i in range(200)
        ]
        text = "".join(json.dumps(record) + "\n" for record in records)
        (top / f"{n}.jsonl").write_text(text)
    return top


def contents(folder):
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.nightly if n in AT_NIGHT else ()) for n in COMMANDS]
)
def test_a_command_that_is_killed_leaves_each_output_old_or_complete(
    forked_runs, top, tmp_path, name
):
    def words(number, out):
        fields = {"top": top, "n": number, "out": out}
        return [*(word.format(**fields) for word in COMMANDS[name]), "--overwrite"]

    wanted, calls = [], []
    for number in (0, 1):
        own = tmp_path / f"wanted{number}"
        own.mkdir()
        assert run(*words(number, own)).code == 0
        wanted.append(contents(own))
        (tmp_path / f"count{number}").mkdir()
        ended = forked_runs.run(*words(number, tmp_path / f"count{number}"), call=0, fault="kill")
        assert (ended.code, contents(tmp_path / f"count{number}")) == (0, wanted[-1]), ended.err
        calls.append(ended.calls)
    assert wanted[0].keys() == wanted[1].keys()
    assert wanted[0] != wanted[1]
    out, killed = tmp_path / "out", 0
    out.mkdir()
    chance = Random(zlib.crc32(name.encode()))  # noqa: S311 - no secret hangs on it
    for number in islice(cycle((0, 1)), KILLS):
        call = chance.randrange(1, calls[number] + 1)
        ended = forked_runs.run(*words(number, out), call=call, fault="kill")
        assert ended.code in (0, -signal.SIGKILL), (call, ended.err)
        killed += ended.code != 0
        for file, data in contents(out).items():
            if file.rpartition("/")[2].startswith("."):
                assert ".rlpost-" in file, file
            elif name != "advantages" or file != "state.json":
                assert data in [files[file] for files in wanted], (file, call)
    assert killed >= KILLS / 2
    (out / "state.json").unlink(missing_ok=True)
    assert forked_runs.run(*words(0, out)).code == 0
    assert contents(out) == wanted[0]
