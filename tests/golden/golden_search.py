"""The search for a recipe on golden cases: files recorded by the frameworks' own code.

`python tests/golden/golden_search.py [PEER] [N]` prints a table: all entries with advantages, or
every Nth.
"""

import sys
import time
from collections import defaultdict
from statistics import median

import numpy as np
import pyarrow as pa
from golden_cases import CASES
from golden_rules import runs_of
from golden_runs import Run
from test_golden import defect_of

from rlpost.analysis.replay.candidates import base_recipe
from rlpost.analysis.replay.input_columns import NamedColumns
from rlpost.analysis.replay.rollouts import RolloutReader
from rlpost.analysis.replay.search import search
from rlpost.analysis.replay.stages import STAGES
from rlpost.io.parquet.source import TableSource
from rlpost.recipe.presets import PRESETS

FRAMEWORKS = {name.replace("-", ""): name for name in PRESETS}
FRAMEWORKS["nemo"] = "nemo-rl"


def entries():
    """Entries with advantages, and the run that gives their numbers."""
    for entry in CASES.entries:
        if not entry["expected"] or defect_of(entry):
            continue
        runs = runs_of(entry, CASES.table(entry["input"]))
        for one in runs if isinstance(runs, list) else []:
            if isinstance(one, Run) and "advantages" in one.columns.values():
                yield entry, one


def recorded(entry, one) -> pa.Table:
    """The input with the framework's numbers as recorded columns."""
    table, expected = one.prepare(CASES.table(entry["input"])), CASES.expected(entry)
    drop = [name for name in table.column_names if name in STAGES]
    table = table.drop_columns(drop)
    for name, stage in one.columns.items():
        if name not in expected or stage in table.column_names:
            continue
        column = expected[name]
        if column.level == "tokens":
            array = pa.array(column.rows, pa.list_(pa.float32()))
        else:
            flat = np.array([np.nan if row is None else row[0] for row in column.rows])
            array = pa.array(flat, pa.float32(), from_pandas=True)
        table = table.append_column(stage, array)
    return table


def searched(entry, one, **options):
    rollouts = RolloutReader.of(
        TableSource(recorded(entry, one)), NamedColumns.of({}), None, 4_000_000
    ).rollouts(0)
    return search(rollouts, tolerance=options.pop("tolerance", 1e-4), **options)


def verdict(entry, one, found) -> str:
    """right: the framework and its estimator; same: with the same numbers; else other, or wrong."""
    framework = FRAMEWORKS[entry["peer"]]
    named = [found.facts["best"], *found.facts["same_numbers"]]
    if not found.facts["reproduces"]:
        return "wrong"
    own = [entry["config"].get(key) for key in ("adv_estimator", "advantage_estimator")]
    estimators = {one.recipe.estimator, one.recipe.estimator_name, *own}

    def right(which) -> bool:
        name = base_recipe(which["preset"], which["estimator"]).estimator
        own = which["preset"] == framework
        return own and bool({which["estimator"], name} & estimators)

    if right(named[0]):
        return "right"
    return "same" if any(map(right, named[1:])) else "other"


def listed(entry, one, found, came, seconds) -> list[str]:
    """Lines about an entry whose framework is not named."""
    if came not in ("wrong", "other"):
        return []
    facts = found.facts
    equal, tried, others = facts["share_equal"], facts["tried"], len(facts["same_numbers"])
    return [
        f"{came}: {entry['peer']} {entry['what']} {entry['case']} {entry['config']}",
        f"    {found.named}: {equal:.3f} equal, {tried} tried, {seconds:.1f} s, {others} others",
        f"    true {one.recipe.estimator} of {FRAMEWORKS[entry['peer']]}",
    ]


def main(peers, every=1) -> None:
    table = defaultdict(list)
    for entry, one in list(entries())[::every]:
        if peers and entry["peer"] not in peers:
            continue
        start = time.process_time()
        found = searched(entry, one)
        seconds, came = time.process_time() - start, verdict(entry, one, found)
        name = one.recipe.estimator_name or one.recipe.estimator
        table[entry["peer"], name].append((came, seconds))
        put(*listed(entry, one, found, came, seconds))
    words = ("right", "same", "other", "wrong")
    put(" ".join(("peer estimator entries", *words, "median_s", "largest_s")))
    table["all", "all"] = [row for rows in table.values() for row in rows]
    for (peer, estimator), rows in table.items():
        counts = [sum(came == word for came, _ in rows) for word in words]
        times = [seconds for _, seconds in rows]
        put(f"{peer} {estimator} {len(rows)} {counts} {median(times):.2f} {max(times):.2f}")


def put(*lines) -> None:
    for line in lines:
        sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    names, numbers = [], []
    for argument in sys.argv[1:]:
        (numbers if argument.isdigit() else names).append(argument)
    main(names, *map(int, numbers))
