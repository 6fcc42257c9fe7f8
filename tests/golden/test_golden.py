"""rlpost gives the numbers that the frameworks' own code gave (see `golden/README.md`).

`RLPOST_GOLDEN_DIR` names another directory of cases. Every entry of its manifest is matched, or
listed as a framework's defect, or skipped for what rlpost lacks; the counts are printed.
"""

import json
import tomllib
from collections import Counter
from fnmatch import fnmatch
from pathlib import Path

import numpy as np
import pytest
from golden_cases import CASES, OWN, column_of
from golden_loss_runs import LossRun, loss_differences
from golden_metrics import metrics_of
from golden_rules import runs_of
from golden_runs import NO_MASKS, Run, has_gaps, masks

from rlpost import Options, enrich
from rlpost.errors import DataError

RTOL, ATOL = 1e-4, 1e-5
FLOAT32 = 1e-6  # what sums of large rewards and values lose, of their size
DEFECTS = tomllib.loads((Path(__file__).parent / "golden_defects.toml").read_text("utf-8"))
PEERS = sorted({entry["peer"] for entry in CASES.entries})
# What the input of a defect must hold.
INPUTS = {"any": lambda _: True, "gaps": has_gaps}
# No fewer of the project's own cases are matched than were once.
FLOOR = {
    "nemo": 170,
    "openinstruct": 49,
    "openrlhf": 121,
    "primerl": 39,
    "roll": 275,
    "slime": 83,
    "trl": 70,
    "verl": 203,
}
COVERED = 0.97  # of the project's own cases, at least: matched, or shown to be a defect


def defect_of(entry) -> str | None:
    for defect in DEFECTS["entry"]:
        texts = ("peer", "function", "error", "notes")
        same_texts = all(fnmatch(entry[name] or "", defect.get(name, "*")) for name in texts)
        holds = INPUTS[defect.get("input", "any")]
        same_keys = all(key in entry["config"] for key in defect.get("config", []))
        if same_texts and same_keys and holds(CASES.table(entry["input"])):
            return defect["reason"]
    return None


class Rows:
    """What is known of an entry's rows, to judge differences by."""

    def __init__(self, entry, table, expected) -> None:
        self.mask = masks(table)
        self.kept = self.mask
        if "final_response_mask" in expected:
            self.kept = [row > 0 for row in expected["final_response_mask"].rows]
        elif "sample_mask" in expected:
            flags = expected["sample_mask"].rows
            self.kept = [row & (flag > 0) for row, flag in zip(self.mask, flags, strict=True)]
        self.nan_single = any(defect["peer"] == entry["peer"] for defect in DEFECTS["rows"])
        keys, values = table["prompt_id"].to_pylist(), table["reward"].to_pylist()
        groups: dict[str, list[float]] = {}
        for key, value in zip(keys, values, strict=True):
            groups.setdefault(key, []).append(value)
        self.own = values
        self.group = [groups[key] for key in keys]
        critic = column_of(table["values"]).rows if "values" in table.column_names else [[0.0]]
        sizes = [np.abs(row).max(initial=0.0) for row in critic]
        self.size = np.maximum(np.abs(values), sizes)

    def tokens(self, name, row):
        """Which tokens of a row count; nothing is promised of dropped ones before advantages."""
        if name in ("final_response_mask", "sample_mask", "is_weight"):
            return np.ones_like(self.mask[row])
        return self.mask[row] if name == "advantages" else self.kept[row]

    def slack(self, row, recipe) -> float:
        """How far float32 may stray in a group of equal rewards.

        Their mean may miss them by a rounding, which is then divided by ε and no deviation. The
        deviation of equal others is a rounding, too, where float32 cannot hold their square.
        """
        group, own = self.group[row], np.float32(self.own[row])
        others = {np.float32(value) for value in group} - {own}
        alone = group.count(self.own[row]) == 1 and len(group) > 2
        if recipe.norm_std == "others" and len(others) == 1 and alone:
            (other,) = others
            return np.finfo(float).max if float(other) ** 2 != float(other * other) else 0.0
        divided = recipe.norm_std in ("group", "others") or recipe.estimator == "grpo"
        if not divided or len(group) == 1 or len(set(group)) > 1:
            return 0.0
        return min(1.2, 2e-7 * abs(group[0]) / recipe.numerics.norm_eps)

    def difference(self, name, row, recipe, theirs, ours):
        """Expected and written numbers of a row where they are not equal."""
        if theirs is None:
            return None
        chosen = self.tokens(name, row)
        ours = ours[chosen] if len(ours) == len(chosen) else ours
        theirs = theirs[chosen] if len(theirs) == len(chosen) else theirs
        if self.nan_single and len(self.group[row]) == 1 and np.isnan(theirs).all():
            return None
        atol = ATOL + FLOAT32 * self.size[row] + self.slack(row, recipe)
        wrong = ~np.isclose(ours, theirs, rtol=RTOL, atol=atol)
        return (theirs[wrong][:3], ours[wrong][:3]) if wrong.any() else None


def column_differences(name, recipe, theirs, ours, rows) -> list[str]:
    bad = []
    for row, (expected, written) in enumerate(zip(theirs.rows, ours.rows, strict=True)):
        if theirs.level == "rows" and ours.level == "tokens":
            written = written[rows.mask[row]][:1]  # noqa: PLW2901 - one number for all tokens
            expected = expected[: len(written)]  # noqa: PLW2901
        difference = rows.difference(name, row, recipe, expected, written)
        bad += [(row, *difference)] if difference else []
    if not bad:
        return []
    row, expected, written = bad[0]
    return [f"{name}: {len(bad)} rows, first {row}: expected {expected}, came {written}"]


def outcome(one, table, options):
    """What a run writes, its summary, and its state; None where it leaves no response."""
    options.state.unlink(missing_ok=True)
    try:
        recipe = one.recipe.model_copy(update={"replace": True})
        written, summary = enrich(table, recipe, options)
    except DataError as error:
        if not str(error).startswith("no response is left"):
            raise
        return None
    moments = json.loads(options.state.read_text())["running"]
    return written, summary, moments


def run_differences(entry, one, options) -> list[str]:
    given = CASES.table(entry["input"])
    if isinstance(one, LossRun):
        return loss_differences(entry, one, given, CASES.expected(entry))
    table, expected = one.prepare(given), CASES.expected(entry)
    rows = Rows(entry, given, expected)
    came, found = outcome(one, table, options), []
    if came is None:  # rlpost stops where a framework goes on to train on nothing
        if any(kept.any() for kept in rows.kept):
            return ["no response is left"]
        columns = {name: name for name in one.columns if name == "response_level_rewards"}
        one = Run(one.recipe.model_copy(update=NO_MASKS), columns)
        written, _, _ = outcome(one, table, options)
    else:
        written, summary, moments = came
        metrics = metrics_of(entry, one, table, summary, moments)
        found = [
            f"metric {name}: expected {theirs}, came {ours}"
            for name, (theirs, ours) in metrics.items()
            if not np.isclose(ours, theirs, rtol=RTOL, atol=ATOL)
        ]
    compared = [name for name in one.columns if name in expected]
    if not compared and came is not None:
        found.append(f"no column to compare among {list(expected)}")
    for name in compared:
        ours = column_of(written[one.columns[name]])
        found += column_differences(name, one.recipe, expected[name], ours, rows)
    return found


def named(entry) -> str:
    return f"{entry['peer']} {entry.get('what')} {entry.get('case')}"


@pytest.mark.parametrize("peer", PEERS)
def test_numbers_by_torch_of(peer, tmp_path):
    """Every third case by what computes on devices."""
    options, entries = Options("torch:cpu", state=tmp_path / "state.json"), CASES.entries
    wrong = []
    for entry in [entry for entry in entries if entry["peer"] == peer][::3]:
        runs = runs_of(entry, CASES.table(entry["input"])) if defect_of(entry) is None else []
        for one in () if isinstance(runs, str) else runs:
            wrong += [f"{named(entry)}: {line}" for line in run_differences(entry, one, options)]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("peer", PEERS)
def test_numbers_of(peer, tmp_path, capsys):
    options = Options("cpu", state=tmp_path / "state.json")
    matched, defects, skipped, wrong = 0, Counter(), Counter(), []
    for entry in (entry for entry in CASES.entries if entry["peer"] == peer):
        defect = defect_of(entry)
        runs = runs_of(entry, CASES.table(entry["input"])) if defect is None else []
        if defect:
            defects[defect] += 1
        elif isinstance(runs, str):
            skipped[runs] += 1
        else:
            found = [line for one in runs for line in run_differences(entry, one, options)]
            matched += not found
            wrong += [f"{named(entry)}: {line}" for line in found]
    lines = [f"golden cases of {peer}: {matched} matched"]
    lines += [f"  defect {count}: {reason}" for reason, count in sorted(defects.items())]
    lines += [f"  skipped {count}: {reason}" for reason, count in sorted(skipped.items())]
    with capsys.disabled():
        print("", *lines, sep="\n")  # noqa: T201 - the report is for whoever runs the tests
    assert not wrong, "\n".join([f"{len(wrong)} differences", *wrong])
    if CASES.path == OWN:
        assert matched >= FLOOR.get(peer, 0)
        found = matched + defects.total()
        assert found >= COVERED * (found + skipped.total())
