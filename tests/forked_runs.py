"""Runs of the command line in processes forked from one that has imported everything.

Started anew, a run spends two seconds on imports; forked, it begins at once, so that hundreds can
be killed. Run as a program this is that process: it reads a JSON line for each run, and
prints one.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

from runs import rollout, run, save

from rlpost.cli.main import leave

IMPORTED = (
    "rlpost.cli.commands.compute", "rlpost.pipeline.output.files", "rlpost.pipeline.run",
    "rlpost.render.summary",
    "rlpost.formats.convert", "pandas",  # pyarrow imports it, where it is there
)  # fmt: skip
WATCHED = (
    "open", "pwrite", "copy_file_range", "fsync", "fdatasync", "replace", "unlink", "mkdir",
    "rmdir", "truncate", "scandir",
)  # fmt: skip


class Ended(NamedTuple):
    code: int
    """The exit code; -9 for a process that was killed by signal 9."""
    err: str
    calls: int
    """System calls on files, where they were counted."""


class ForkedRuns:
    """Runs `rlpost WORDS` in forked processes, one after the other.

    Args:
        modules: imported before the fork, besides what all runs need.
    """

    def __init__(self, *modules: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, __file__, *modules],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )

    def run(self, *words: object, **how: object) -> Ended:
        """Run a command.

        Args:
            words: the command line.
            how: `signal` and `after`, seconds: it is sent then; `call` and `fault`: at this call
                it is killed ("kill") or the call fails (an errno) or writes half ("short").
        """
        request = {"words": [*map(str, words)], **how}
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        assert answer, f"the forking process ended with {self._process.wait(30)}"
        return Ended(**json.loads(answer))

    def close(self) -> None:
        """End it."""
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait(30)


def serve() -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)  # which a job of nohup ignores
    for name in (*IMPORTED, *sys.argv[1:]):
        with contextlib.suppress(ImportError):
            import_module(name)
    warm_up()
    with tempfile.TemporaryDirectory() as folder:
        for line in sys.stdin:
            request = json.loads(line)
            answer = run_child(Path(folder), **request)
            sys.stdout.write(json.dumps(answer._asdict()) + "\n")
            sys.stdout.flush()


def warm_up() -> None:
    """Do once what takes longer the first time."""
    with tempfile.TemporaryDirectory() as folder:
        source = save(rollout(), Path(folder) / "in.parquet")
        run("advantages", source, Path(folder) / "out.parquet", "-q", "--workers", "1")


def run_child(folder, words, *, after=None, signal=9, call=None, fault=None) -> Ended:
    """Fork a child that runs a command, and wait until it ends."""
    told, counted = folder / "told", folder / "calls"
    told.touch()
    pid = os.fork()
    if not pid:
        be_child(words, told, counted if call is not None else None, call, fault)
    if after is not None:
        time.sleep(after)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal)
    _, status = os.waitpid(pid, 0)
    calls = 0
    if call is not None and counted.exists():
        calls = int(counted.read_text() or 0)
        counted.unlink()
    err = told.read_text(errors="replace")
    told.unlink()
    return Ended(os.waitstatus_to_exitcode(status), err, calls)


def be_child(words, told, counted, call, fault) -> None:
    """What the child does; it does not return."""
    try:
        atexit._clear()  # what the parent does at its end is not the child's to do
        file = os.open(told, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(file, 1)
        os.dup2(file, 2)
        sys.stdin = Path(os.devnull).open()  # noqa: SIM115
        sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w")
        sys.argv = ["rlpost", *words]
        random.seed(os.getpid())
        if counted is not None:
            watch_calls(counted, call, fault)
        leave()
    except SystemExit as ended:  # a signal at the very beginning or end: as the interpreter does
        atexit._run_exitfuncs()
        os._exit(ended.code)
    except KeyboardInterrupt:
        atexit._run_exitfuncs()
        os._exit(130)
    except BaseException:  # noqa: BLE001 - it is told, as the interpreter would
        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(99)


def watch_calls(counted, at, fault) -> None:
    """Count system calls on files, and let one go wrong."""
    lock, number = threading.Lock(), 0
    own = {name: getattr(os, name) for name in WATCHED}
    note = os.open(counted, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    write, seek = own["pwrite"], os.ftruncate

    def wrapped(name):
        def call(*arguments, **options):
            nonlocal number
            with lock:
                number += 1
                mine = number
                seek(note, 0)
                write(note, str(mine).encode(), 0)
            if mine == at:
                if fault == "kill":
                    os.kill(os.getpid(), signal.SIGKILL)
                elif fault == "short" and name in ("pwrite", "copy_file_range"):
                    return halved(name, own[name], arguments)
                elif fault != "short":
                    raise OSError(fault, os.strerror(fault))
            return own[name](*arguments, **options)

        return call

    for name in WATCHED:
        setattr(os, name, wrapped(name))


def halved(name, call, arguments):
    """Do half of what is asked."""
    if name == "pwrite":
        file, data, at = arguments
        return call(file, memoryview(data)[: (len(data) + 1) // 2], at)
    source, target, size, *places = arguments
    return call(source, target, (size + 1) // 2, *places)


if __name__ == "__main__":
    serve()
