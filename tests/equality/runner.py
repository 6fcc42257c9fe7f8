"""Runs cases on trees, some at a time, each in a folder of its own."""

from __future__ import annotations

import json
import os
import queue
import re
import shutil
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from tests.equality.cases import old_words
from tests.equality.trees import entry_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tests.equality.cases import Case

HERE = Path(__file__).parent
FRESH = "import importlib, sys; sys.argv[0] = 'rlpost'; importlib.import_module({!r}).{}()"
CALL = "import runpy; runpy.run_path({!r})[{!r}]()"
LONGEST = 600  # seconds of a command in a new process


class Ended(NamedTuple):
    """How a command ended."""

    code: int
    out: str
    err: str
    seconds: float


class Tree:
    """A tree of files, the environment in which its rlpost runs, and its workers."""

    def __init__(
        self, name: str, files: Path, top: Path, device: str = "", *, is_base: bool = False
    ) -> None:
        """Take a tree.

        Args:
            name: what it is called.
            files: its files.
            top: the folder with `inputs` and `harness`; results go below it.
            device: of `--device`; empty for the default of its commands.
            is_base: its options are those of the commit BASE.
        """
        self.is_base = is_base
        self.harness = top / "harness"
        self.name, self.files, self.top = name, files, top / name
        self.entry = entry_of(files)
        self.top.mkdir()
        (top / "tmp").mkdir(exist_ok=True)
        kept = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("RLPOST_", "RAY_"))
        }
        self.env = kept | {
            "PYTHONPATH": str(files), "TMPDIR": str(top / "tmp"), "COLUMNS": "120",
            "NO_COLOR": "1", "TERM": "dumb", "OPENBLAS_NUM_THREADS": "1",
        } | ({"RLPOST_DEVICE": device} if device else {})  # fmt: skip

    def output(self, *words: str) -> str:
        """What a command prints, run by a new process.

        Raises:
            CalledProcessError: it failed.
        """
        typed = old_words([*words]) if self.is_base else words
        done = subprocess.run(
            self.program(typed), env=self.env, check=True, capture_output=True, text=True
        )
        return done.stdout

    def program(self, words: Sequence[str]) -> list[str]:
        """The command line that runs rlpost in a new process, from this tree alone."""
        module, _, name = self.entry.partition(":")
        return [sys.executable, "-P", "-c", FRESH.format(module, name), *words]


class Worker:
    """A process that has imported a tree's rlpost, and forks for each command."""

    def __init__(self, tree: Tree) -> None:
        """Start it."""
        self._tree, self._python = tree, tree.harness / "python_cases.py"
        self._process = subprocess.Popen(
            [sys.executable, "-P", tree.harness / "worker.py", tree.files, tree.entry],
            env=tree.env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    def run(self, one: Case) -> tuple[Path, list[Ended]]:
        """Run the commands of a case, until one fails; gives its folder and how each ended."""
        folder = self._tree.top / "".join(c if c.isalnum() else "-" for c in one.name)
        folder.mkdir()
        steps = one.steps or ((),)
        ended: list[Ended] = []
        for number, words in enumerate(steps):
            files = [folder / f".{kind}-{number}" for kind in ("out", "err")]
            placed = [re.sub("^@", "../../inputs/", word) for word in words]
            placed = old_words(placed) if self._tree.is_base else placed
            begin = self._fresh if one.fresh else self._forked
            begun = time.perf_counter()
            code = begin(one, folder, placed, *files)
            seconds = time.perf_counter() - begun
            out, err = (path.read_text(encoding="utf-8", errors="replace") for path in files)
            ended.append(Ended(code, out, err, seconds))
            if code:
                break
        return folder, ended

    def _forked(self, one: Case, folder: Path, words: list[str], out: Path, err: Path) -> int:
        request = {
            "folder": str(folder), "words": words, "out": str(out), "err": str(err),
            "env": one.env, "function": one.function, "file": str(self._python),
        }  # fmt: skip
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            raise RuntimeError(f"the worker of {self._tree.name} ended: {self._process.wait(30)}")
        return json.loads(answer)["code"]

    def _fresh(self, one: Case, folder: Path, words: list[str], out: Path, err: Path) -> int:
        program = self._tree.program(words)
        if one.function:
            call = CALL.format(str(self._python), one.function)
            program = [sys.executable, "-P", "-c", call]
        with out.open("wb") as stdout, err.open("wb") as stderr:
            done = subprocess.run(
                program, env=self._tree.env | one.env, cwd=folder, check=False,
                stdout=stdout, stderr=stderr, stdin=subprocess.DEVNULL, timeout=LONGEST,
            )  # fmt: skip
        return done.returncode

    def close(self) -> None:
        """End it."""
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait(30)


def copy_harness(top: Path) -> None:
    """Keep what workers load as it is now: it may be edited while they run."""
    (top / "harness").mkdir()
    for name in ("worker.py", "python_cases.py"):
        shutil.copy(HERE / name, top / "harness" / name)


def run_all(
    chosen: Sequence[Case], trees: Sequence[Tree], jobs: int
) -> Iterator[tuple[Tree, Case, Path, list[Ended]]]:
    """Run every case on every tree, with `jobs` processes at a time, in no certain order."""
    done: queue.SimpleQueue = queue.SimpleQueue()
    free = threading.Semaphore(jobs)
    waiting = {tree.name: queue.SimpleQueue() for tree in trees}
    for tree in trees:
        for one in chosen:
            waiting[tree.name].put(one)
    lanes = [trees[at % len(trees)] for at in range(max(jobs, len(trees)))]
    threads = [
        threading.Thread(target=lane, args=(tree, waiting[tree.name], done, free), daemon=True)
        for tree in lanes
    ]
    for thread in threads:
        thread.start()
    left = len(threads)
    try:
        while left:
            found = done.get()
            if isinstance(found, BaseException):
                raise found
            if found is None:
                left -= 1
            else:
                yield found
    finally:  # before the folders that they use are removed
        for queue_of_tree in waiting.values():
            with suppress(queue.Empty):
                while True:
                    queue_of_tree.get_nowait()
        for thread in threads:
            thread.join()


def lane(
    tree: Tree, waiting: queue.SimpleQueue, done: queue.SimpleQueue, free: threading.Semaphore
) -> None:
    """Run the cases that wait for a tree, one after the other; None is the last result."""
    worker = None
    try:
        while True:
            with free:
                one = waiting.get_nowait()
                worker = worker or Worker(tree)
                done.put((tree, one, *worker.run(one)))
    except queue.Empty:
        done.put(None)
    except BaseException as error:  # noqa: BLE001 - it is raised where results are taken
        done.put(error)
    finally:
        if worker is not None:
            worker.close()
