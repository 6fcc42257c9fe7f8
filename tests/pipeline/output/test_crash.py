"""Crashes: whatever happens to a run, an output is the old file, or absent, or complete.

Real processes are killed at random moments and at every single call that touches a file; disks
run full, memory runs out, inputs change and reads fail.
"""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from random import Random

import pyarrow.parquet as pq
import pytest
from forked_runs import ForkedRuns
from runs import rollout, run, save, start

import rlpost
from rlpost.errors import DataError, ReadWriteError
from rlpost.io import outputs
from rlpost.io.parquet.encode import Encoder
from rlpost.io.parquet.reader import ParquetReader
from rlpost.io.parquet.source import Source
from rlpost.pipeline import run as running

CI = "CI" in os.environ
EVERY = 1 if "RLPOST_KILLS" in os.environ else 3
FILES = 3


def chances(seed):
    """Random moments, the same in every run of the tests."""
    return Random(seed)  # noqa: S311 - no secret hangs on it


@pytest.fixture(scope="module")
def forked_runs():
    one = ForkedRuns()
    yield one
    one.close()


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    """A folder of files whose groups span them, large enough for several pieces."""
    top = tmp_path_factory.mktemp("inputs")
    table = rollout(6_000, 8)
    for index in range(FILES):
        save(table.slice(index * 2_000, 2_000), top / f"{index}.parquet", rows=500)
    return top


@pytest.fixture(scope="module")
def wanted(inputs, tmp_path_factory):
    """What each file is to be, by estimator and name."""
    found = {}
    for estimator in ("grpo", "rloo"):
        out = tmp_path_factory.mktemp(estimator)
        assert run(*command(inputs, out, estimator)).code == 0
        found[estimator] = contents(out)
    return found


def command(inputs, out, estimator="grpo", *words):
    pieces = ("--chunk-tokens", "2000", "--workers", "2")
    return ("advantages", inputs, out, "-q", "--overwrite", "--estimator", estimator, *pieces,
            *words)  # fmt: skip


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def check_intact(out, wanted):
    """Every file that has an output's name is complete; the rest are leftovers, named as such."""
    for name, data in contents(out).items():
        if name.startswith("."):
            assert ".rlpost-" in name, name
        else:
            assert data in [files[name] for files in wanted.values()], f"{name} is torn"


# Killed


@pytest.fixture(scope="module")
def calls(forked_runs, inputs, tmp_path_factory):
    """How many calls that touch files a run makes."""
    out = tmp_path_factory.mktemp("calls")
    ended = forked_runs.run(*command(inputs, out), call=0, fault="kill")
    assert ended.code == 0
    assert ended.calls > 20
    return ended.calls


def test_any_call_that_touches_a_file_may_fail(forked_runs, inputs, wanted, calls, tmp_path):
    """It ends in order then: with exit code 4, or 0 where the call did not matter."""
    failed = 0
    for call in range(1, calls + 1, 4 * EVERY):
        out, fault = tmp_path / str(call), (errno.EIO, errno.ENOSPC)[call % 2]
        ended = forked_runs.run(*command(inputs, out), call=call, fault=fault)
        assert ended.code in (0, 4), ended.err
        assert "Traceback" not in ended.err
        failed += ended.code == 4
        if ended.code:
            assert ended.err.startswith("error: ")
        if out.exists():
            left = contents(out)
            assert ended.code == 4 or left == wanted["grpo"]
            check_intact(out, wanted)
            assert not [name for name in left if name.startswith(".") and call > 3], ended
    assert failed > calls / EVERY / 8


@pytest.mark.nightly
def test_writes_that_take_half_of_what_they_are_given_change_nothing(
    forked_runs, inputs, wanted, calls, tmp_path
):
    for call in range(1, calls + 1, 3 * EVERY):
        ended = forked_runs.run(*command(inputs, tmp_path), call=call, fault="short")
        assert ended.code == 0, ended.err
        assert contents(tmp_path) == wanted["grpo"]


@pytest.mark.nightly
def test_many_runs_on_one_output_at_once_are_safe(inputs, wanted, tmp_path):
    """Each either does all of it or is refused."""
    processes = [start(*command(inputs, tmp_path)) for _ in range(4)]
    codes = []
    for process in processes:
        _, err = process.communicate(timeout=120)
        codes.append(process.returncode)
        assert process.returncode in (0, 4), err
    assert 0 in codes
    assert contents(tmp_path) == wanted["grpo"]


# Inputs that change or fail


@pytest.fixture
def meddling(monkeypatch, tmp_path):
    """Runs over a file to which something is done between the first pass and the last."""
    source = save(rollout(4_000, 8), tmp_path / "in" / "a.parquet", rows=500)
    out = tmp_path / "out.parquet"

    def work(meddle, *, before_first=False):
        usual = running.engine_for

        def meddled(*arguments, **options):
            engine = usual(*arguments, **options)
            settle = engine.responses

            def responses(*arguments):
                if before_first:
                    meddle(source)
                table = settle(*arguments)
                if not before_first:
                    meddle(source)
                return table

            monkeypatch.setattr(engine, "responses", responses)
            return engine

        monkeypatch.setattr(running, "engine_for", meddled)
        with pytest.raises((ReadWriteError, DataError)) as raised:
            rlpost.advantages(source, out, options=rlpost.Options(chunk_tokens=1000))
        assert {path.name for path in tmp_path.iterdir()} == {"in"}
        return str(raised.value)

    return work


def truncated(path):
    os.truncate(path, path.stat().st_size // 3)


def replaced(path):
    save(rollout(4_000, 4), path, rows=500)


def touched(path):
    os.utime(path, ns=(1, 1))


@pytest.mark.parametrize("meddle", [Path.unlink, truncated, replaced, touched])
@pytest.mark.parametrize("before_first", [True, False])
def test_an_input_that_changes_while_it_is_read_is_an_error(meddling, meddle, before_first):
    assert "a.parquet" in meddling(meddle, before_first=before_first)


def test_a_read_that_fails_is_an_error_with_the_files_name(monkeypatch, tmp_path):
    source = save(rollout(4_000, 8), tmp_path / "a.parquet", rows=500)
    usual, asked = ParquetReader.batches, []

    def failing(self, *arguments, **named):
        asked.append(arguments)
        if len(asked) >= 6:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return usual(self, *arguments, **named)

    monkeypatch.setattr(ParquetReader, "batches", failing)
    ran = run("advantages", source, tmp_path / "out.parquet", "--chunk-tokens", "1000", "-q")
    assert ran == (4, "", f"error: {source}: cannot be read: Input/output error\n")
    assert list(tmp_path.iterdir()) == [source]


# Signals


DEAF = """
import signal, sys, time
from pathlib import Path
from rlpost.io import shutdown
from rlpost.io.outputs import OutputFile
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # nohup ignores both
signal.signal(signal.SIGINT, signal.default_int_handler)
shutdown.install_handlers()
staged = OutputFile(Path(sys.argv[1]))
while True:
    try:
        print("begun", flush=True)
        time.sleep(60)
    except BaseException:
        pass
"""


@pytest.mark.parametrize(
    ("number", "code"),
    [
        (signal.SIGTERM, 143),
        pytest.param(signal.SIGINT, 130, marks=pytest.mark.nightly),
        pytest.param(signal.SIGHUP, 129, marks=pytest.mark.nightly),
    ],
)
def test_code_that_swallows_the_interrupt_is_ended_all_the_same(tmp_path, number, code):
    argv = [sys.executable, "-c", DEAF, tmp_path / "o"]
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"begun\n"
        assert len(list(tmp_path.iterdir())) == 1
        process.send_signal(number)
        try:
            process.wait(timeout=30)
        finally:
            process.kill()
    assert process.returncode == code
    assert list(tmp_path.iterdir()) == []


# Threads


def delayed(chance, work):
    def wrapped(*arguments, **options):
        time.sleep(chance.choice((0, 0, 0.001, 0.004)))
        return work(*arguments, **options)

    return wrapped


def delayed_items(chance, work):
    def wrapped(*arguments, **options):
        for item in work(*arguments, **options):
            time.sleep(chance.choice((0, 0, 0.001, 0.004)))
            yield item

    return wrapped


@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.nightly) for seed in range(1, 8))]
)
def test_delays_in_any_thread_change_no_byte(monkeypatch, inputs, wanted, tmp_path, seed):
    chance = chances(seed)
    monkeypatch.setattr(Source, "read_file", delayed_items(chance, Source.read_file))
    monkeypatch.setattr(running.Decoder, "batch", delayed(chance, running.Decoder.batch))
    monkeypatch.setattr(Encoder, "encode", delayed(chance, Encoder.encode))
    monkeypatch.setattr(outputs, "copy_range", delayed(chance, outputs.copy_range))
    monkeypatch.setattr(outputs.OutputFile, "write", delayed(chance, outputs.OutputFile.write))
    monkeypatch.setattr(outputs, "COPY_BYTES", 7_001)
    words = [word if word != "2" else 1 + seed % 4 for word in command(inputs, tmp_path)]
    assert run(*words).code == 0
    assert contents(tmp_path) == wanted["grpo"]
    assert pq.read_metadata(tmp_path / "0.parquet").num_rows == 2_000
