"""What the benchmarks run: rlpost's commands and their peers, each a whole process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

PEERS, INPUTS = (Path(__file__).with_name(name) for name in ("baselines.py", "inputs.py"))
KL = ("--kl-coef", "0.05")
GRPO, GAE = ("--estimator", "grpo"), ("--estimator", "gae")
WHITENED = (*GAE, *KL, "--whiten-advantages")
PER_RESPONSE = (*GRPO, "--emit", "response_advantage")
JSON = ("--quiet", "--summary-json", "-")


class Measured(NamedTuple):
    """One run of a process."""

    seconds: float
    cpu: float
    """Seconds of user and system time of all its threads."""
    peak_mb: float
    work: float | None = None
    """Seconds without start-up, if the process prints them."""


@dataclass(frozen=True)
class Case:
    """A command that is measured."""

    name: str
    words: tuple[str, ...]
    """Of rlpost's command line, or the name of a peer in `baselines.py`. `{...}` names a file."""
    of: str = "copy"
    """The case that it is compared with."""
    most: float | None = None
    """The largest ratio of times that meets the target."""
    group: str = "commands"
    peer: bool = False

    @property
    def without_start_up(self) -> bool:
        """Whether start-up is left out of the ratio."""
        return self.group in ("small", "training")


def _advantages(name: str, *words: str, most: float | None = None) -> Case:
    return Case(name, ("advantages", "{input}", "{out}", *JSON, *words), most=most)


def _peer(name: str, source: str = "{input}", group: str = "commands") -> Case:
    return Case(name, (name.replace(" ", "_"), source, "{out}"), group=group, peer=True)


CASES = (
    _peer("copy"),
    _advantages("grpo", *GRPO, most=0.25),
    _advantages("grpo + KL", *GRPO, *KL, most=0.30),
    _advantages("gae + KL + whitening", *WHITENED, most=0.42),
    _advantages("grpo, response_advantage", *PER_RESPONSE, most=0.16),
    _advantages("grpo --emit-only", *GRPO, "--emit-only"),
    Case("inspect", ("inspect", "{input}"), most=0.18),
    Case("compare files", ("compare", "{grpo}", "{gae}"), most=0.25),
    Case("compare recipes", ("compare", "{input}", *GRPO, *GAE), most=0.42),
    Case("verify", ("verify", "{gae}"), most=0.30),
    Case("loss", ("loss", "{gae}", "--map", "log_probs=infer_log_probs"), most=0.40),
    Case("report", ("report", "{gae}", "{out}"), most=0.40),
    _peer("cp"),
    _peer("polars"),
    _peer("duckdb groups"),
    _peer("pandas statistics"),
    _peer("copy files", "{files}", "small"),
    _peer("copy row groups", "{row_groups}", "small"),
    Case(
        "1,000 files",
        ("advantages", "{files}", "{out}", *JSON, *GRPO),
        "copy files",
        1.3,
        "small",
    ),
    Case(
        "5,000 row groups",
        ("advantages", "{row_groups}", "{out}", *JSON, *GRPO),
        "copy row groups",
        1.2,
        "small",
    ),
    Case("5,000 steps", ("advantages", "{steps}", "{out}", *JSON, *GRPO), "", 0.2, "small"),
    _peer("arrow loop", "{gae}", "training"),
    *(
        replace(_peer(name, "{gae}", "training"), of="arrow loop", most=most)
        for name, most in (
            ("load packed", 1.33),
            ("load padded", 2.5),
        )
    ),
    Case("convert, first MB", ("convert", "{short_jsonl}", "{out}"), "", group="convert"),
    Case("convert", ("convert", "{jsonl}", "{out}"), "", group="convert"),
)


_SUFFIX = {"jsonl": ".jsonl", "short_jsonl": ".jsonl"}


class Files:
    """The inputs of the cases, each written when a case first names it."""

    def __init__(self, folder: Path, responses: int) -> None:
        self.folder = folder
        self._responses = responses

    def path(self, name: str) -> Path:
        """Return an input's path."""
        path = self.folder / (name if name == "files" else f"{name}{_SUFFIX.get(name, '.parquet')}")
        if not path.exists():
            self._write(name, path)
            os.sync()  # otherwise writing the input to disk would slow down what is measured
        return path

    def _write(self, name: str, path: Path) -> None:
        if name in ("grpo", "gae"):
            words = ("--estimator", name, *(KL if name == "gae" else ()))
            argv = [program(), "advantages", str(self.path("input")), str(path), "--quiet", *words]
            subprocess.run(argv, check=True)
            return
        kind, count = {
            "input": ("rollouts", self._responses),
            "files": ("files", 1000),
            "row_groups": ("row_groups", 5000),
            "steps": ("steps", 5000),
            "jsonl": ("jsonl", max(64, self._responses // 8)),
            "short_jsonl": ("jsonl", 64),
        }[name]
        write_input(kind, path, count)


def write_input(kind: str, path: Path, count: int) -> None:
    """Write an input in a process of its own, so that this one stays small.

    A child begins with the memory of its parent, which then is the least peak that it can have.
    """
    argv = [sys.executable, str(INPUTS), str(path), "--kind", kind, "--count", str(count)]
    subprocess.run(argv, check=True)


def program() -> str:
    """Return the path of the program that is measured, by default of this environment."""
    return os.environ.get("RLPOST", str(Path(sys.executable).with_name("rlpost")))


def run(case: Case, files: Files) -> Measured:
    """Run a case once.

    Raises:
        RuntimeError: the process failed.
    """
    out = files.folder / "out"
    subprocess.run(["rm", "-rf", str(out)], check=True)
    paths = {
        word: str(out if word == "{out}" else files.path(word.strip("{}")))
        for word in case.words
        if word.startswith("{")
    }
    first = [sys.executable, str(PEERS)] if case.peer else [program()]
    return timed([*first, *(paths.get(word, word) for word in case.words)])


def timed(argv: list[str]) -> Measured:
    """Run a process and measure it.

    Raises:
        RuntimeError: the process failed.
    """
    # Python caches compiled modules, as in a normal installation, whatever the shell has set.
    env = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    start = time.perf_counter()
    process = subprocess.Popen(argv, env=env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert process.stdout is not None
    printed = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - start
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f"{argv} failed with {process.returncode}")
    cpu = usage.ru_utime + usage.ru_stime
    return Measured(seconds, cpu, usage.ru_maxrss / 1000, _work(printed))


def _work(printed: bytes) -> float | None:
    """Return the seconds without start-up, from a summary in JSON."""
    if not printed.startswith(b"{"):
        return None
    seconds = json.loads(printed).get("seconds", {})
    return seconds["total"] - seconds["start_up"] if "total" in seconds else None
