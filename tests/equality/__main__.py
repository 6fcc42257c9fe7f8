"""Compare all numbers of two commits: `python -m tests.equality OLD [NEW] [--jobs 2] [--break]`.

A fixed set of commands runs on both. Exit codes, JSON and columns of Parquet files have to be
equal, bit for bit; texts and timings may differ. The exit code is 1 where anything differs.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from tests.equality import cases, inputs, trees
from tests.equality.digest import Leaves, differences, digest, fingerprint
from tests.equality.runner import Ended, Tree, run_all

if TYPE_CHECKING:
    from collections.abc import Sequence

SHOWN = 6  # differing paths of a case


class Outcome(NamedTuple):
    """What a case came to on one tree."""

    ended: list[Ended]
    leaves: Leaves


def main() -> int:
    """Run, print a line for each case, and give the exit code."""
    asked = arguments()
    begun = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="rlpost-equality-") as name:
        top = Path(name).resolve()
        inputs.make(top / "inputs", trees.TOP)
        code = (shown_to_fail if asked.breaks else compared)(asked, top)
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
        "--break", dest="breaks", action="store_true",
        help="compare NEW with copies of it whose arithmetic is changed: 0 if that is found",
    )  # fmt: skip
    parser.add_argument("--verbose", action="store_true", help="all differing paths")
    return parser.parse_args()


def compared(asked: argparse.Namespace, top: Path) -> int:
    """Run all cases on both commits; 1 where anything differs."""
    sides = [
        Tree("old", trees.materialise(asked.old, top / "trees" / "old"), top),
        Tree("new", trees.materialise(asked.new, top / "trees" / "new"), top),
    ]
    print(f"old: {trees.named(asked.old)}\nnew: {trees.named(asked.new)}\n")
    chosen = chosen_cases(sides[0], asked.only)
    found = outcomes(chosen, sides, asked.jobs)
    lines = {
        one.name: differences(*(found[side.name, one.name].leaves for side in sides))
        for one in chosen
    }
    wrong = {one.name: unexpected(one, found, sides) for one in chosen}
    table(chosen, found, lines, wrong, asked)
    if asked.out:
        asked.out.write_text(json.dumps(everything(asked, found, lines, wrong), indent=1) + "\n")
    different = sum(map(bool, lines.values()))
    broken = sum(map(bool, wrong.values()))
    print(f"\n{len(chosen)} cases: {len(chosen) - different} equal, {different} different", end="")
    print(f", {broken} with an unexpected exit code" if broken else "")
    return int(bool(different or broken))


def shown_to_fail(asked: argparse.Namespace, top: Path) -> int:
    """Change formulas in copies of NEW, one at a time; 0 if cases differ each time."""
    sides = [Tree("new", trees.materialise(asked.new, top / "trees" / "new"), top)]
    for number, how in enumerate(trees.BREAKS):
        tree = trees.materialise(asked.new, top / "trees" / f"broken-{number}")
        print(f"broken-{number}: {how.name}, in {trees.broken(tree, how)}")
        sides.append(Tree(f"broken-{number}", tree, top))
    chosen = chosen_cases(sides[0], asked.only)
    found = outcomes(chosen, sides, asked.jobs)
    missed = 0
    for side, how in zip(sides[1:], trees.BREAKS, strict=True):
        pair = (sides[0], side)
        lines = {
            one.name: differences(*(found[x.name, one.name].leaves for x in pair)) for one in chosen
        }
        differing = [name for name in lines if lines[name]]
        print(f"\n{how.name}: {len(differing)} of {len(chosen)} cases differ")
        for name in differing:
            print(f"  {name}: {len(lines[name])} differences, as {lines[name][0]}")
        missed += not differing
    print(f"\n{missed} changes of arithmetic were not noticed")
    return int(bool(missed))


def chosen_cases(old: Tree, only: str) -> list[cases.Case]:
    """The cases that run here; those that are left out are printed with the reason."""
    listed = json.loads(old.output("estimators", "--format", "json"))
    chosen = []
    for one in cases.all_cases([row["estimator"] for row in listed]):
        if only not in one.name:
            continue
        if one.needs and importlib.util.find_spec(one.needs) is None:
            print(f"left out: {one.name}: {one.needs} is not installed")
            continue
        chosen.append(one)
    twice = {one.name for one in chosen if [x.name for x in chosen].count(one.name) > 1}
    assert not twice, twice
    return chosen


def outcomes(
    chosen: Sequence[cases.Case], sides: Sequence[Tree], jobs: int
) -> dict[tuple[str, str], Outcome]:
    """What each case came to on each tree, by names of tree and case."""
    found = {}
    for side, one, folder, ended in run_all(chosen, sides, jobs):
        codes, prints = [x.code for x in ended], [x.out for x in ended]
        found[side.name, one.name] = Outcome(ended, digest(folder, codes, prints, side.top))
    return found


def unexpected(one: cases.Case, found: dict, sides: Sequence[Tree]) -> str:
    """What a case that ended with another exit code than it should printed; empty if it did not.

    A command that fails on both trees alike would compare nothing.
    """
    for side in sides:
        ended = found[side.name, one.name].ended
        codes = [x.code for x in ended]
        if codes != [*[0] * (len(codes) - 1), one.code]:
            last = next((x.err for x in ended if x.err.strip()), "").strip()
            return f"{side.name}: exit codes {codes}: {last[-600:]}"
    return ""


def table(chosen, found, lines, wrong, asked) -> None:
    """A line for each case, and the first paths that differ."""
    for one in chosen:
        old = found["old", one.name]
        state = "DIFFERENT" if lines[one.name] else "equal"
        seconds = sum(x.seconds for x in old.ended)
        print(f"{state:9}  {len(old.leaves):6,} values  {seconds:5.2f} s  {one.name}")
        if wrong[one.name]:
            print(f"    unexpected: {wrong[one.name]}")
        shown = lines[one.name] if asked.verbose else lines[one.name][:SHOWN]
        for line in shown:
            print(f"    {line}")
        if len(lines[one.name]) > len(shown):
            print(f"    and {len(lines[one.name]) - len(shown)} more")


def everything(asked, found, lines, wrong) -> dict:
    """All that was found, for --out; what is equal on both trees stands once."""
    rows = []
    for (side, name), outcome in found.items():
        if side == "new" and not lines[name]:
            continue
        rows.append(
            {
                "case": name,
                "tree": side if lines[name] else "both",
                "hash": fingerprint(outcome.leaves),
                "unexpected": wrong[name],
                "differences": lines[name],
                "leaves": outcome.leaves,
            }
        )
    return {"old": asked.old, "new": asked.new, "cases": rows}


if __name__ == "__main__":
    sys.exit(main())
