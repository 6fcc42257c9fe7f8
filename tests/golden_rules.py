"""From a manifest entry of the golden cases to the recipes that must give the same numbers.

A rule reads an entry's function and config and the input's columns, never names of cases: it gives
runs of rlpost, or a sentence that says what rlpost lacks for this entry.
"""

from fnmatch import fnmatch

import golden_corrections
import golden_nemo
import golden_openrlhf
import golden_primerl
import golden_roll
import golden_slime
import golden_verl
import pyarrow as pa
from golden_runs import CREDIT, SCALAR, Entry, Runs, replaced, run

BY_COLUMN = {"pg_loss": "policy loss", "is_weight": golden_corrections.weights}


def runs_of(entry: Entry, table) -> Runs:
    for column in entry["columns"]:
        if column in BY_COLUMN:
            rule = BY_COLUMN[column]
            return rule if isinstance(rule, str) else rule(entry, entry["config"], table)
    for peer, function, rule in RULES:
        if entry["peer"] == peer and fnmatch(entry["function"], function):
            return rule if isinstance(rule, str) else rule(entry, entry["config"], table)
    return "no rule for this function"


# --- TRL -----------------------------------------------------------------------------------------

COMPONENTS = ("reward_correctness", "reward_format")
MISSING = (5, 10)  # in which rows, counted from 0, a component was not scored


def unscored(table) -> pa.Table:
    columns = {
        name: pa.array(
            [None if row % every == 0 else x for row, x in enumerate(table[name].to_pylist())],
            pa.float32(),
        )
        for name, every in zip(COMPONENTS, MISSING, strict=True)
    }
    return replaced(table, **columns)


def trl_advantages(_entry, config, _table) -> Runs:
    numerics = {"batch": "all", "norm_eps": 1e-4, "missing_components": "skip"}
    options = {"norm_mean": "group", "norm_std": config.get("scale_rewards", "group")}
    if config.get("weights"):
        options["component_weights"] = config["weights"]
        options["reward_components"] = config.get("components", COMPONENTS)
    separate = config.get("multi_objective_aggregation") == "normalize_then_sum"
    return [
        run(
            SCALAR,
            prepare=unscored if "nan_rows" in config else None,
            estimator="gdpo" if separate else "raw",
            numerics={**numerics, "batch_eps": 1e-4},
            **options,
        )
    ]


# --- open-instruct -------------------------------------------------------------------------------


def openinstruct_advantages(_entry, config, _table) -> Runs:
    divided = config["advantage_normalization_type"] == "standard"
    numerics = {"batch": "all", "norm_ddof": 0, "norm_eps": config.get("epsilon", 1e-8)}
    norm = {"norm_mean": "group", "norm_std": "group" if divided else "none"}
    return [run(SCALAR, estimator="raw", numerics=numerics, **norm)]


def openinstruct_gae(_entry, config, _table) -> Runs:
    cut = bool(config.get("mask_tool_use"))
    numerics = {"observations": "cut" if cut else "policy", "terminal_reward": "last_token"}
    options = {"gamma": config["gamma"], "lam": config["lam"]}
    return [run(CREDIT, estimator="gae", numerics=numerics, **options)]


def openinstruct_kl(_entry, _config, _table) -> Runs:
    numerics = {"kl_policy": "current", "kl_clamp": "never"}
    return [
        run({f"kl{index}": "kl"}, estimator="raw", kl_estimator=kind, numerics=numerics)
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
