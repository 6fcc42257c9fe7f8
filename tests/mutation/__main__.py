"""Mutation tests: `python -m tests.mutation {draw,cover,run}`.

`mutants.toml` has some 250 small changes of rlpost, drawn by a seed, each with the number of tests
of README's command that fail on it (`kills`, counted up to MOST). They are the gate for changes
of tests: `run` exits with 1 if a mutant that was killed survives.

    python -m tests.mutation draw --seed 7   adds mutants where a room has too few, drops those
                                             whose line is gone
    python -m tests.mutation cover           runs the suite once, and stores which tests run
                                             which mutant's line
    python -m tests.mutation run [TEXT]      runs these tests on each mutant whose name has TEXT
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import Queue

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(HERE.parent))

from mutation import hits, mutants  # noqa: E402

STORE = ROOT / ".bench" / "mutation"
MOST = 4
"""Tests that kill a mutant are counted up to this number."""
SECONDS = 5.0
"""Tests that run on a mutant take about this long on unchanged code."""
SURVIVOR_SECONDS = 25.0
"""Further tests that run on a mutant that none of them detects."""


def copy_tree(target: Path) -> Path:
    """Copy what git knows and does not ignore."""
    shutil.rmtree(target, ignore_errors=True)
    names = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout.splitlines()  # fmt: skip
    for name in names:
        if (ROOT / name).exists():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target / name)
    return target


def draw(seed: int, without: list[str]) -> None:
    """Drop mutants whose line is gone, and draw those that a room lacks."""
    rows = {key: row for key, row in mutants.load().items() if mutants.of_row(row).find()}
    for mutant in mutants.draw(seed, rows, without):
        row = {name: getattr(mutant, name) for name in ("file", "function", "line", "old", "new")}
        rows[mutant.key] = row | ({"number": mutant.number} if mutant.number else {})
    mutants.save(rows)
    print(f"{len(rows)} mutants")


def cover(arguments: list[str]) -> None:
    """Run the suite on a marked copy of the tree."""
    STORE.mkdir(parents=True, exist_ok=True)
    rows = present()
    tree = copy_tree(STORE / "marked")
    target, report = STORE / "hits", STORE / "seconds.json"
    target.write_text("", encoding="utf-8")
    hits.mark(tree, [mutants.of_row(row) for row in rows.values()], target)
    hits.run_covered(tree, report, arguments or ["--numprocesses", "auto"])
    tests, seconds = hits.read_hits(target, report, len(rows))
    covered = {key: sorted(names) for key, names in zip(rows, tests, strict=True)}
    stored = {"seconds": seconds, "tests": covered}
    (STORE / "cover.json").write_text(json.dumps(stored), encoding="utf-8")
    print(f"{len(seconds)} tests passed; {sum(map(bool, tests))} of {len(rows)} mutants are run")


def present() -> dict[str, dict]:
    """Return the rows of mutants whose line exists."""
    return {key: row for key, row in mutants.load().items() if mutants.of_row(row).find()}


class Runner:
    """Runs mutants, each in one of a few copies of the tree."""

    def __init__(self, jobs: int) -> None:
        if not (STORE / "cover.json").exists():
            raise SystemExit(
                "which tests run which line is not known: python -m tests.mutation cover"
            )
        stored = json.loads((STORE / "cover.json").read_text(encoding="utf-8"))
        self.seconds, self.tests = stored["seconds"], stored["tests"]
        self.trees: Queue[tuple[Path, subprocess.Popen[str]]] = Queue()
        for number in range(jobs):
            tree = copy_tree(STORE / f"job{number}")
            server = subprocess.Popen(
                [sys.executable, str(HERE / "server.py")], cwd=tree, env=hits.environment(tree),
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            )  # fmt: skip
            self.trees.put((tree, server))
        self.killers: dict[str, int] = {}

    def order(self, key: str, row: dict) -> list[str]:
        """Return the tests of a mutant: of its rooms first, then fast ones, few of one function."""
        parts = row["file"].removesuffix(".py").split("/")
        names = self.tests.get(key, [])
        seen: dict[str, int] = {}
        ranks = {}
        for name in sorted(names, key=lambda name: self.seconds[name]):
            function = name.partition("[")[0]
            seen[function] = seen.get(function, 0) + 1
            near = sum(part in name for part in parts) >= min(2, len(parts))
            killed = self.killers.get(function, 0) > 0
            ranks[name] = (not near, not killed, seen[function] // 3, self.seconds[name])
        return sorted(names, key=ranks.__getitem__)

    def run(self, key: str, row: dict) -> list[str]:
        """Return the tests that fail on a mutant, at most MOST."""
        names = self.order(key, row)
        chosen, spent = [], 0.0
        while len(chosen) < len(names) and (spent < SECONDS or not chosen):
            spent += self.seconds[names[len(chosen)]]
            chosen.append(names[len(chosen)])
        failed = self.failures(row, chosen, spent)
        rest = names[len(chosen) :]
        if not failed and rest:
            while sum(self.seconds[name] for name in rest) > SURVIVOR_SECONDS:
                rest = rest[: len(rest) * 3 // 4]
            failed = self.failures(row, rest, sum(self.seconds[name] for name in rest))
        for name in failed:
            function = name.partition("[")[0]
            self.killers[function] = self.killers.get(function, 0) + 1
        return failed

    def failures(self, row: dict, names: list[str], seconds: float) -> list[str]:
        """Run tests on a mutant in a free copy; a run that does not end counts as one failure."""
        if not names:
            return []
        mutant, (tree, server) = mutants.of_row(row), self.trees.get()
        path = tree / "rlpost" / mutant.file
        text = path.read_text(encoding="utf-8")
        chosen, report = tree / "chosen.txt", tree / "report.txt"
        try:
            write(path, mutant.changed(tree))
            chosen.write_text("\n".join(names), encoding="utf-8", errors="surrogateescape")
            arguments = [
                "-q", "-p", "no:cacheprovider", "-n", "0", "-rfE", f"--maxfail={MOST}", "--tb=no",
                "-W", "ignore::pytest.PytestAssertRewriteWarning", f"@{chosen}",
            ]  # fmt: skip
            job = {"report": str(report), "arguments": arguments, "seconds": 6 * seconds + 90}
            server.stdin.write(json.dumps(job) + "\n")
            server.stdin.flush()
            code = int(server.stdout.readline())
        finally:
            write(path, text)
            self.trees.put((tree, server))
        if code == -1:
            return ["does not end"]
        lines = report.read_text(encoding="utf-8", errors="replace").splitlines()
        marks = ("FAILED ", "ERROR ")
        failed = [line.split(" ", 1)[1].split(" - ")[0] for line in lines if line.startswith(marks)]
        if not failed and code < 0:
            return [f"the process ends with {code}"]
        if not failed and code:
            raise RuntimeError(f"pytest ends with {code}: {' '.join(lines[-3:])}")
        return failed


def write(path: Path, text: str) -> None:
    """Write a module, and remove its compiled form, whose time may be the same."""
    for cached in (path.parent / "__pycache__").glob(f"{path.stem}.*.pyc"):
        cached.unlink()
    path.write_text(text, encoding="utf-8")


def run(text: str, jobs: int) -> int:
    """Run mutants, store the counts, print each change, and return the exit code."""
    rows, runner, lost = mutants.load(), Runner(jobs), 0
    here = {key: row for key, row in present().items() if text in key}
    with ThreadPoolExecutor(jobs) as pool:
        results = {key: pool.submit(runner.run, key, row) for key, row in here.items()}
        for number, (key, result) in enumerate(results.items(), 1):
            row = rows[key]
            before = row.get("kills")
            try:
                failed = result.result()
            except RuntimeError as error:
                print(f"{number} {before} -> ? {key}: {error}", flush=True)
                continue
            row["kills"] = len(failed)
            if failed:
                row["killer"] = failed[0].partition("[")[0]
                row.pop("reason", None)
            else:
                row.pop("killer", None)
            is_lost = not failed and bool(before)
            lost += is_lost
            mark = "LOST" if is_lost else "survived" if not failed and "reason" not in row else ""
            print(f"{number} {before} -> {len(failed)} {mark} {key}", flush=True)
            mutants.save(rows)
    counts = [row.get("kills", 0) for row in here.values()]
    alive = sum(
        not count and "reason" not in row for count, row in zip(counts, here.values(), strict=True)
    )
    few = sum(0 < count <= 3 for count in counts)
    print(
        f"{len(counts)} mutants: {sum(c > 0 for c in counts)} killed, {few} by one to three tests,"
        f" {alive} survive, {lost} lost; {len(rows) - len(present())} are gone"
    )
    return int(lost > 0)


def main() -> int:
    """Run a command; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.mutation",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("command", choices=("draw", "cover", "run"))
    parser.add_argument(
        "text",
        nargs="*",
        help="of run: part of a mutant's name; of draw: parts of files to leave out; "
        "of cover: pytest's arguments",
    )
    parser.add_argument("--seed", type=int, default=45)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    options, rest = parser.parse_known_args()
    if options.command == "draw":
        draw(options.seed, options.text)
    elif options.command == "cover":
        cover([*options.text, *rest])
    else:
        return run(" ".join(options.text), options.jobs)
    return 0


if __name__ == "__main__":
    sys.exit(main())
