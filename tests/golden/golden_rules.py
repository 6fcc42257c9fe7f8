"""From a manifest entry of the golden cases to the recipes that must give the same numbers.

A rule reads an entry's function and config and the input's columns, never names of cases: it gives
runs of rlpost, or a sentence that says what rlpost lacks for this entry.
"""

import re
from fnmatch import fnmatch

import golden_corrections
import golden_losses
import golden_nemo
import golden_openrlhf
import golden_primerl
import golden_roll
import golden_slime
import golden_verl
import pyarrow as pa
from golden_runs import CREDIT, SCALAR, Entry, Runs, replaced, run

BY_COLUMN = {"pg_loss": golden_losses.losses, "is_weight": golden_corrections.weights}


def runs_of(entry: Entry, table) -> Runs:
    for column in entry["columns"]:
        if column in BY_COLUMN:
            rule = BY_COLUMN[column]
            return rule if isinstance(rule, str) else rule(entry, entry["config"], table)
    for peer, function, rule in RULES:
        if entry["peer"] == peer and fnmatch(entry["function"], function):
            return rule if isinstance(rule, str) else rule(entry, entry["config"], table)
    return "no rule for this function"


ALL = {"batch": "all"}  # a golden file is one batch

# --- TRL -----------------------------------------------------------------------------------------

COMPONENTS = ("reward_correctness", "reward_format")


def unscored(rows: str):
    """Nulls for the components that a text says are NaN: `on rows 0,5,10..` is every fifth row."""

    def prepare(table) -> pa.Table:
        columns = {}
        for name, every in zip(COMPONENTS, re.findall(r"rows 0,(\d+)", rows), strict=True):
            values = enumerate(table[name].to_pylist())
            kept = [None if row % int(every) == 0 else value for row, value in values]
            columns[name] = pa.array(kept, pa.float32())
        return replaced(table, **columns)

    return prepare


def trl_advantages(_entry, config, _table) -> Runs:
    options = {}
    if config.get("weights"):
        options["component_weights"] = config["weights"]
        options["reward_components"] = config.get("components", COMPONENTS)
    separate = config.get("multi_objective_aggregation") == "normalize_then_sum"
    return [
        run(
            SCALAR,
            preset="trl",
            prepare=unscored(config["nan_rows"]) if "nan_rows" in config else None,
            estimator="gdpo" if separate else "grpo",
            norm_std=config.get("scale_rewards"),
            numerics=ALL,
            **options,
        )
    ]


# --- open-instruct -------------------------------------------------------------------------------


def openinstruct_advantages(_entry, config, _table) -> Runs:
    standard = config["advantage_normalization_type"] == "standard"
    estimator = "grpo_standard" if standard else "grpo"
    return [run(SCALAR, preset="open-instruct", estimator=estimator, numerics=ALL)]


def openinstruct_gae(_entry, config, _table) -> Runs:
    """Without a mask of tool tokens, they are the policy's like all others."""
    numerics = {} if config.get("mask_tool_use") else {"observations": "policy"}
    options = {"gamma": config["gamma"], "lam": config["lam"], "numerics": numerics}
    return [run(CREDIT, preset="open-instruct", estimator="gae", **options)]


def openinstruct_kl(_entry, _config, _table) -> Runs:
    return [
        run({f"kl{index}": "kl"}, preset="open-instruct", estimator="raw", kl_estimator=kind)
        for index, kind in enumerate(("k1", "k2", "k3", "k4"))
    ]


RULES = [
    *golden_corrections.RULES,
    *golden_roll.RULES,
    *golden_verl.RULES,
    *golden_openrlhf.RULES,
    *golden_nemo.RULES,
    *golden_slime.RULES,
    *golden_primerl.RULES,
    ("trl", "*", trl_advantages),
    ("openinstruct", "open_instruct/data_loader.py*", openinstruct_advantages),
    ("openinstruct", "*.calculate_advantages*", openinstruct_gae),
    ("openinstruct", "*.estimate_kl", openinstruct_kl),
]
