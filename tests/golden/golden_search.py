"""The search for a recipe on golden cases: files recorded by the frameworks' own code.

`python tests/golden/golden_search.py [PEER] [N]` prints the table of all entries with advantages, or
of every Nth.
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

from rlpost.analysis.replay.rollouts import Maps, read
from rlpost.analysis.replay.search import search
from rlpost.analysis.replay.stages import STAGES
from rlpost.io.parquet.source import TableSource
from rlpost.recipe.presets import SUPERSEDED

FRAMEWORKS = {
    name.partition("@")[0].replace("-", ""): name.partition("@")[0] for name in SUPERSEDED
}
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
    rollouts = read(TableSource(recorded(entry, one)), Maps.of({}), None, 4_000_000)
    return search(rollouts, tolerance=options.pop("tolerance", 1e-4), **options)


def verdict(entry, one, found) -> str:
    """right: the framework and its estimator; tied: among the ties; else reproduced, or wrong."""
    framework = FRAMEWORKS[entry["peer"]]
    named = [found.facts["best"], *found.facts["ties"]]
    if not found.facts["reproduces"]:
        return "wrong"
    estimators = {one.recipe.estimator, one.recipe.estimator_name}

    def right(which) -> bool:
        return which["preset"].partition("@")[0] == framework and (which["estimator"] in estimators)

    if right(named[0]):
        return "right"
    return "tied" if any(map(right, named[1:])) else "other"


def main(peers, every=1) -> None:
    table = defaultdict(list)
    for entry, one in list(entries())[::every]:
        if peers and entry["peer"] not in peers:
            continue
        start = time.process_time()
        try:
            found = searched(entry, one)
        except Exception as error:  # noqa: BLE001 - listed
            table[entry["peer"], one.recipe.estimator_name or one.recipe.estimator].append(
                ("error", 0.0)
            )
            print("ERROR", entry["peer"], entry["case"], repr(error)[:300], flush=True)
            continue
        seconds, came = time.process_time() - start, verdict(entry, one, found)
        table[entry["peer"], one.recipe.estimator_name or one.recipe.estimator].append(
            (came, seconds)
        )
        if came in ("wrong", "other"):
            facts = found.facts
            print(
                f"{came}: {entry['peer']} {entry['what']} {entry['case']} {entry['input']} "
                f"{entry['config']}\n    best {found.named} equal {facts['share_equal']:.3f} "
                f"tried {facts['tried']} {seconds:.1f} s ties {facts['tie_count']}",
                flush=True,
            )
    words = ("right", "tied", "other", "wrong", "error")
    print("peer estimator entries", *words, "median_s")
    for (peer, estimator), rows in sorted(table.items()):
        counts = [sum(came == word for came, _ in rows) for word in words]
        print(peer, estimator, len(rows), *counts, f"{median(s for _, s in rows):.2f}")
    every = [row for rows in table.values() for row in rows]
    counts = [sum(came == word for came, _ in every) for word in words]
    print("all -", len(every), *counts, f"{median(s for _, s in every):.2f}")


if __name__ == "__main__":
    main(
        [one for one in sys.argv[1:] if not one.isdigit()], *map(int, filter(str.isdigit, sys.argv))
    )
