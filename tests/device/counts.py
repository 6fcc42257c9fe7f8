"""Print what runs wait for and transfer: `python -m tests.device.counts [NAME ...] [--stacks]`.

A line for each recipe, on rollouts with and without observations: waits of the host and transfers
to the card of a chunk (most of any chunk, for each pass after the other), bytes per token each way
over all passes, and most bytes per token of a chunk in the card's memory. `--stacks` prints the
lines of code that wait and transfer.
"""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

import rlpost
from tests.device import measure, recipes, shadow
from tests.device.inputs import rollouts

if TYPE_CHECKING:
    from collections.abc import Sequence

LEGEND = """\
waits: of the host for the card; transfers: to the card; the most of any chunk in each pass (0+1+1
has three passes). B/token in, out: bytes to the card and back, over all passes; peak: the most
that a chunk has there. same: whether the results have the same bits as on the CPU.
"""
HEAD = (
    f"{'a chunk of a recipe:':56}    waits  transfers  B/token in  B/token out  peak B/token  same"
)


def main(words: Sequence[str] | None = None) -> int:
    """Run the recipes whose names begin with the arguments; exit 1 if a result is not the CPU's."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    names_help = "the beginning of names of recipes; all of them take about a minute"
    parser.add_argument("names", nargs="*", metavar="NAME", help=names_help)
    parser.add_argument("--stacks", action="store_true", help="print what waits and transfers")
    parser.add_argument(
        "--chunk-tokens", type=int, default=4000, metavar="N", help="tokens of a chunk (4000)"
    )
    asked, every = parser.parse_args(words), recipes.all_recipes()
    for begin in asked.names:
        if not any(name.startswith(begin) for name in every):
            words = dict.fromkeys(name.split()[0] for name in every)
            parser.error(f"no recipe's name begins with {begin!r}; first words: {', '.join(words)}")
    chosen = {
        name: recipe
        for name, recipe in every.items()
        if name.startswith(tuple(asked.names)) or not asked.names
    }
    print(f"{LEGEND}\n{HEAD}")
    same = True
    with shadow.plugged_in():
        for name, recipe in chosen.items():
            for observations in (False, True):
                same &= _line(name, recipe, observations=observations, asked=asked)
    return 0 if same else 1


def _line(name: str, recipe: rlpost.Recipe, *, observations: bool, asked) -> bool:
    """Print a recipe's line; return whether its results are the CPU's."""
    table, options = rollouts(observations=observations), {"chunk_tokens": asked.chunk_tokens}
    expected, summary = rlpost.enrich(table, recipe, rlpost.Options(device="torch:cpu", **options))
    result, ours, run = measure.on_shadow(table, recipe, stacks=asked.stacks, workers=1, **options)
    same = result.equals(expected) and measure.same_results(ours, summary)
    tokens = sum(chunk.tokens for chunk in run.passes[0])
    most = max(chunk.tokens for chunk in run.passes[0])
    waits, sends = (
        "+".join(str(max(getattr(chunk.counts, part) for chunk in one)) for one in run.passes)
        for part in ("waits", "to_device")
    )
    label = name + (", observations" if observations else "")
    counts, equal = run.counts, "yes" if same else "no"
    print(
        f"{label:56}{waits:>9}  {sends:>9}  {counts.to_device_bytes / tokens:10.1f}  "
        f"{counts.to_host_bytes / tokens:11.1f}  {run.peak / most:12.0f}  {equal}"
    )
    for stack, number in run.counts.stacks.most_common():
        print(f"{number:8} x {run.counts.stack_bytes[stack]:8} bytes  {stack}")
    return same


if __name__ == "__main__":
    sys.exit(main())
