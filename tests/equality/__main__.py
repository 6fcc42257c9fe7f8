"""Compare all numbers of two commits: `python -m tests.equality OLD [NEW] [--device NAME]`.

A fixed set of commands runs on both. Exit codes, JSON and columns of Parquet files have to be
equal, bit for bit; texts and timings may differ. The exit code is 1 where anything differs. Of a
commit whose JSON has other names (`cases.BASE`), the exit codes and columns alone are compared.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import re
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from tests.equality import cases, inputs, trees
from tests.equality.digest import COLUMN, ROUNDED, Leaves, differences, digest, fingerprint, general
from tests.equality.runner import Ended, Tree, copy_harness, run_all

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

SHOWN = 6  # differing paths of a case
MOST = 40  # paths of the overview
FOLLOWS = re.compile(r"bytes$")
"""Paths of what depends on all bits of a column."""


ON_DEVICES = (r"bytes\.to_\w+$", r"\.device$")
"""Paths that differ between devices: bytes that are copied, and seconds that they compute."""

NOT_COLUMNS = (rf"^(?!exit code|\S+\.parquet{COLUMN})",)
"""Paths that are not compared with a commit whose JSON has other names."""


class Outcome(NamedTuple):
    """What a case came to on one tree."""

    ended: list[Ended]
    leaves: Leaves


class Row(NamedTuple):
    """A case on both trees."""

    name: str
    old: Outcome
    new: Outcome
    wrong: str
    """What an unexpected exit code came with."""

    differing: dict[str, str]
    """What differs, by path."""

    @property
    def rounded(self) -> bool:
        """Whether only the last bits of numbers differ, and what is made of these bits."""
        texts = self.differing.items()
        return all(text.endswith(ROUNDED) or FOLLOWS.search(path) for path, text in texts)


def main() -> int:
    """Run, print a line for each case, and give the exit code."""
    asked = arguments()
    begun = time.perf_counter()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # the temporary folder is removed
    with tempfile.TemporaryDirectory(prefix="rlpost-equality-") as name:
        top = Path(name).resolve()
        inputs.make(top / "inputs", trees.TOP)
        copy_harness(top)
        code = compared(asked, top)
    print(f"{time.perf_counter() - begun:.0f} s")
    return code


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.equality", description=__doc__)
    parser.add_argument("old", metavar="OLD", nargs="?", default="HEAD", help="a commit")
    parser.add_argument(
        "new", metavar="NEW", nargs="?", default=trees.WORKING, help="a commit; the working tree"
    )
    parser.add_argument("--jobs", type=int, default=2, help="commands at a time")
    parser.add_argument("--out", type=Path, help="a JSON file for everything that was found")
    parser.add_argument("--only", default="", help="cases with this in their names")
    parser.add_argument(
        "--device", default="", help="where NEW computes, such as torch:cpu; its own default"
    )
    parser.add_argument("--verbose", action="store_true", help="all differing paths")
    return parser.parse_args()


def compared(asked: argparse.Namespace, top: Path) -> int:
    """Run all cases on both commits; 1 where anything differs."""
    sides = [
        Tree(
            "old", trees.materialise(asked.old, top / "trees" / "old"), top,
            is_base=trees.is_base(asked.old),
        ),
        Tree("new", trees.materialise(asked.new, top / "trees" / "new"), top, asked.device),
    ]  # fmt: skip
    print(f"old: {trees.named(asked.old)}\nnew: {trees.named(asked.new)}\n")
    chosen = chosen_cases(sides, asked.only)
    found: dict[tuple[str, str], Outcome] = {}
    rows: list[Row] = []
    for side, one, outcome in outcomes(chosen, sides, asked.jobs):
        found[side.name, one.name] = outcome
        pair = [found.get((side.name, one.name)) for side in sides]
        if all(pair) and (
            not sides[0].is_base or any(f".parquet{COLUMN}" in path for path in pair[0].leaves)
        ):
            ignored = [*(ON_DEVICES if asked.device else ()), *(NOT_COLUMNS * sides[0].is_base)]
            rows.append(row_of(one, *pair, ignored))
            show(rows[-1], SHOWN if not asked.verbose else None)
    if asked.out:
        asked.out.write_text(json.dumps(everything(asked, rows), indent=1) + "\n")
    if not rows:
        raise SystemExit(f"no case has {asked.only!r} in its name")
    overview([[p for p, text in x.differing.items() if not text.endswith(ROUNDED)] for x in rows])
    different = sum(bool(row.differing) for row in rows)
    rounded = sum(bool(row.differing) and row.rounded for row in rows)
    broken = sum(bool(row.wrong) for row in rows)
    print(f"\n{len(rows)} cases: {len(rows) - different} equal, {different} different", end="")
    print(f" ({rounded} of them by rounding alone)" if rounded else "", end="")
    print(f", {broken} with an unexpected exit code" if broken else "")
    return int(bool(different or broken))


def row_of(one: cases.Case, old: Outcome, new: Outcome, more: Sequence[str] = ()) -> Row:
    """A case with what differs."""
    ignored = re.compile("|".join((*one.ignored, *more)) or "(?!)")
    leaves = [
        {path: value for path, value in x.leaves.items() if not ignored.search(path)}
        for x in (old, new)
    ]
    return Row(one.name, old, new, unexpected(one, old, new), differences(*leaves))


def overview(paths: Sequence[Iterable[str]]) -> None:
    """In how many cases each path differs, the most frequent first."""
    counts = Counter(path for some in paths for path in {general(one) for one in some})
    if counts:
        print("\ncases in which a path differs by more than rounding, whatever the file:")
    for path, count in counts.most_common(MOST):
        print(f"{count:6}  {path}")
    if len(counts) > MOST:
        print(f"        and {len(counts) - MOST} more paths")


def chosen_cases(sides: Sequence[Tree], only: str) -> list[cases.Case]:
    """The cases that run here; those that are left out are printed with the reason."""
    rows = json.loads(sides[0].output("list", "estimators", "--format", "json"))
    listed = [row["estimator"] for row in rows]
    if gaps := without_case(sides[1], listed):
        tables = "NUMERICS, LOSSES, PRESETS or ESTIMATORS in tests/equality/cases.py"
        print(f"no case has {', '.join(gaps)}: add a row to {tables}")
    chosen = []
    for one in cases.all_cases(listed):
        if only not in one.name:
            continue
        if one.needs and importlib.util.find_spec(one.needs) is None:
            print(f"left out: {one.name}: {one.needs} is not installed")
            continue
        chosen.append(one)
    twice = [name for name, count in Counter(one.name for one in chosen).items() if count > 1]
    assert not twice, twice
    return chosen


def names_of(tree: Tree) -> set[str]:
    """The estimators, losses, numerics and presets of a tree."""
    schema = json.loads(tree.output("config", "schema"))
    names = {*schema["$defs"]["Numerics"]["properties"]}
    for kinds, kind in (("estimators", "estimator"), ("losses", "loss"), ("presets", "preset")):
        names |= {row[kind] for row in json.loads(tree.output("list", kinds, "--format", "json"))}
    return names


def without_case(new: Tree, estimators: Sequence[str]) -> list[str]:
    """What the new tree has and no case tries: estimators, losses, numerics, presets."""
    tried = [
        *estimators,
        *cases.LOSSES.split(),
        *cases.PRESETS,
        *(row[0] for row in cases.NUMERICS),
    ]
    for names in (*cases.PRESETS.values(), *cases.PRESET_LOSSES.values()):
        tried += names.split()
    return sorted(names_of(new) - {*tried, *cases.LEFT_OUT})


def outcomes(
    chosen: Sequence[cases.Case], sides: Sequence[Tree], jobs: int
) -> Iterator[tuple[Tree, cases.Case, Outcome]]:
    """What each case came to on each tree, in no certain order."""
    for side, one, folder, ended in run_all(chosen, sides, jobs):
        codes, prints = [x.code for x in ended], [x.out for x in ended]
        yield side, one, Outcome(ended, digest(folder, codes, prints, side.top))
        shutil.rmtree(folder)


def unexpected(one: cases.Case, *outcomes: Outcome) -> str:
    """What a case that ended with another exit code than it should printed; empty if it did not.

    A command that fails on both trees alike would compare nothing.
    """
    for outcome in outcomes:
        codes = [x.code for x in outcome.ended]
        if codes != [*[0] * (max(len(one.steps), 1) - 1), one.code]:
            return f"exit codes {codes}: {outcome.ended[-1].err.strip()[-600:]}"
    return ""


def show(row: Row, most: int | None) -> None:
    """A line for a case, and the first paths that differ."""
    state = ("rounding" if row.rounded else "DIFFERENT") if row.differing else "equal"
    seconds = sum(x.seconds for x in row.old.ended)
    if state == "rounding" and most is not None:
        most = 1
    print(f"{state:9}  {len(row.old.leaves):6,} values  {seconds:5.2f} s  {row.name}")
    if row.wrong:
        print(f"    unexpected: {row.wrong}")
    for path, text in islice(row.differing.items(), most):
        print(f"    {path}: {text}")
    if most is not None and len(row.differing) > most:
        print(f"    and {len(row.differing) - most} more")
    sys.stdout.flush()


def everything(asked: argparse.Namespace, rows: Sequence[Row]) -> dict:
    """All that was found, for --out; what is equal on both trees stands once."""
    found = [
        {
            "case": row.name,
            "unexpected": row.wrong,
            "differences": row.differing,
            "old": fingerprint(row.old.leaves),
            "new": fingerprint(row.new.leaves),
            "old_values": row.old.leaves,
            **({"new_values": row.new.leaves} if row.differing else {}),
        }
        for row in rows
    ]
    return {"old": asked.old, "new": asked.new, "cases": found}


if __name__ == "__main__":
    sys.exit(main())
