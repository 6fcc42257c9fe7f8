"""From a manifest entry of the golden cases to the recipes that must give the same numbers.

A rule reads an entry's function and config and the input's columns, never names of cases: it gives
runs of rlpost, or a sentence that says what rlpost lacks for this entry.
"""

import math
from fnmatch import fnmatch

import golden_roll
import golden_verl
from golden_runs import (
    CREDIT,
    NEVER,
    Entry,
    Runs,
    clamps,
    has_empty,
    has_observations,
    kl_of,
    no_mask,
    replaced,
    run,
    same,
)

CORRECTION = "off-policy correction"
POPULATION = "numerics: whitening without Bessel's correction"
COMPONENTS = "weighted reward components"


SCALAR = {"advantage_scalar": "advantages"}
BY_COLUMN = {"pg_loss": "policy loss", "is_weight": CORRECTION}


def runs_of(entry: Entry, table) -> Runs:
    for column in entry["columns"]:
        if column in BY_COLUMN:
            return BY_COLUMN[column]
    for peer, function, rule in RULES:
        if entry["peer"] == peer and fnmatch(entry["function"], function):
            return rule if isinstance(rule, str) else rule(entry, entry["config"], table)
    return "no rule for this function"


# --- OpenRLHF ------------------------------------------------------------------------------------


def openrlhf_clamps(kind) -> dict:
    return clamps(kind, outside=10)


def openrlhf_advantages(_entry, config, _table) -> Runs:
    estimator, kind = config["estimator"], config.get("kl_estimator", "k1")
    numerics = {"batch": "all", "observations": "states", "norm_eps": 1e-9, "single": "normalise"}
    numerics |= openrlhf_clamps(kind)
    coef = config.get("kl_coef", 0.0)
    if estimator in ("gae", "reinforce", "reinforce_baseline"):
        return POPULATION
    if estimator == "rloo" and coef:
        return "norm_mean of the group's others, with KL behind it"
    if estimator == "rloo":
        return [run(CREDIT, estimator="rloo", numerics={"batch": "all"})]
    std = "group" if estimator == "group_norm" else "none"
    norm = {"norm_mean": "group", "norm_std": std}
    options = {"kl_estimator": kind, "kl_coef": coef, "numerics": numerics}
    return [run(CREDIT, estimator="reinforce", **norm, **options)]


def openrlhf_lengths(_entry, config, _table) -> Runs:
    if "stop_properly_penalty_coef" in config:
        return "reward shaping for truncated responses"
    penalty = [config["max_new_tokens"], config["overlong_buffer_len"]]
    return [
        run(
            same("response_level_rewards", "advantages"),
            prepare=no_mask,
            estimator="rloo",
            overlong_penalty=(*penalty, config["overlong_penalty_factor"]),
            numerics={"batch": "all"},
        )
    ]


# --- NeMo-RL -------------------------------------------------------------------------------------


def nemo_clamps(kind) -> dict:
    return clamps(kind, inside=20, outside=10)


def nemo_grpo(_entry, config, _table) -> Runs:
    others, divided = config["use_leave_one_out_baseline"], config["normalize_rewards"]
    if others and divided:
        return "norm_mean and norm_std of the group's others"
    estimator = "rloo" if others else "grpo" if divided else "dr_grpo"
    numerics = {"batch": "all", "norm_eps": config["epsilon"]}
    return [run(SCALAR, estimator=estimator, numerics=numerics)]


def nemo_raw(_entry, config, _table) -> Runs:
    if config["normalize_advantages"]:
        return POPULATION
    return [run(SCALAR, estimator="raw", numerics={"batch": "all"})]


def nemo_gae(_entry, config, _table) -> Runs:
    lambdas = ("gae_lambda_value", "gae_lambda_policy", "length_adaptive_alpha")
    if any(config.get(name) for name in lambdas):
        return "estimator gae: λ of its own for policy and value"
    kind = config.get("kl_type") or "k1"
    return [
        run(
            CREDIT,
            estimator="gae",
            gamma=config["gae_gamma"],
            lam=config["gae_lambda"],
            kl_estimator=kind,
            kl_coef=config["kl_coef"] or 0.0,
            whiten_advantages=config["normalize_advantages"],
            numerics={"batch": "all", **nemo_clamps(kind)},
        )
    ]


def nemo_shaping(_entry, config, _table) -> Runs:
    if "stop_properly_penalty_coef" in config:
        return "reward shaping for truncated responses"
    length, buffer = config["max_response_length"], config["overlong_buffer_length"]
    penalty = (length, buffer, config["overlong_buffer_penalty"])
    columns = same("response_level_rewards")
    return [run(columns, prepare=no_mask, estimator="raw", overlong_penalty=penalty)]


# --- TRL, open-instruct --------------------------------------------------------------------------


def trl_advantages(_entry, config, _table) -> Runs:
    if config.get("components") or config.get("weights"):
        return COMPONENTS
    numerics = {"batch": "all", "norm_eps": 1e-4}
    norm = {"norm_mean": "group", "norm_std": config["scale_rewards"]}
    return [run(SCALAR, estimator="raw", numerics=numerics, **norm)]


def openinstruct_advantages(_entry, config, _table) -> Runs:
    if config["advantage_normalization_type"] != "centered":
        return "numerics: reward normalisation without Bessel's correction"
    return [run(SCALAR, estimator="dr_grpo", numerics={"batch": "all"})]


def openinstruct_gae(_entry, config, table) -> Runs:
    if config.get("mask_tool_use") and has_observations(table):
        return "numerics: observations=cut, a scan that ends at an observation"
    options = {"gamma": config["gamma"], "lam": config["lam"]}
    return [run(CREDIT, prepare=no_mask, estimator="gae", **options)]


def openinstruct_kl(_entry, _config, table) -> Runs:
    """Of the current policy against the reference; the fourth needs current against old."""

    def current(old):
        return replaced(old, old_log_probs=table["log_probs"])

    numerics = {"log_ratio_clamp": 40, "kl_clamp": NEVER}
    return [
        run({f"kl{index}": "kl"}, prepare=current, estimator="raw", kl_estimator=kind, **options)
        for index, kind in enumerate(("k1", "k2", "k3"))
        for options in [{"numerics": numerics}]
    ]


# --- slime, prime-rl -----------------------------------------------------------------------------


def slime_clamps(kind) -> dict:
    return clamps(kind, outside=10 if kind == "low_var_kl" else math.inf)


def slime_norm(config) -> dict:
    """Groups of unequal size make slime normalise over the whole batch."""
    scope = "group" if config["n_samples_per_prompt"] else "batch"
    divided = config.get("grpo_std_normalization", True)
    return {"norm_mean": scope, "norm_std": scope if divided else "none"}


SLIME = {"batch": "all", "single": "normalise"}


def slime_rewards(_entry, config, _table) -> Runs:
    columns = same("response_level_rewards")
    return [run(columns, estimator="raw", numerics=SLIME, **slime_norm(config))]


def slime_advantages(_entry, config, table) -> Runs:
    estimator, kind = config["advantage_estimator"], config["kl_loss_type"]
    whiten = config["normalize_advantages"]
    if config["use_opd"]:
        return "estimator opd"
    if estimator == "grpo":
        norm = slime_norm(config)
        return [run(CREDIT, estimator="raw", whiten_advantages=whiten, numerics=SLIME, **norm)]
    if estimator == "reinforce_plus_plus_baseline":
        return "numerics: KL taken from each token's advantage without return-to-go"
    ignored = estimator == "ppo"
    if ignored and whiten and has_observations(table):
        return "numerics: observations as policy tokens in scans, but not in whitening"
    return [
        run(
            CREDIT,
            prepare=no_mask if ignored else None,
            estimator="gae" if ignored else "reinforce",
            gamma=config["gamma"],
            lam=config["lambd"],
            kl_estimator=kind,
            kl_coef=config["kl_coef"],
            whiten_advantages=whiten,
            numerics={**SLIME, **slime_clamps(kind), "observations": "states"},
        )
    ]


def primerl_grpo(_entry, config, table) -> Runs:
    if config.get("length_penalty"):
        return "reward shaping by length within the group"
    if has_empty(table):
        return "numerics: responses without policy tokens left out of their group"
    return [run(same("advantages"), estimator="dr_grpo", numerics={"batch": "all"})]


RULES = [
    *golden_roll.RULES,
    *golden_verl.RULES,
    ("openrlhf", "*.compute_advantages_and_returns", openrlhf_advantages),
    ("openrlhf", "*.apply_length_penalties", openrlhf_lengths),
    ("openrlhf", "*.compute_approx_kl", kl_of("kl_estimator", openrlhf_clamps)),
    ("nemo", "*.GRPOAdvantageEstimator", nemo_grpo),
    ("nemo", "*.GDPOAdvantageEstimator", "estimator gdpo"),
    ("nemo", "*.ReinforcePlusPlusAdvantageEstimator", POPULATION),
    ("nemo", "*.RawRewardAdvantageEstimator", nemo_raw),
    ("nemo", "*.GeneralizedAdvantageEstimator", nemo_gae),
    ("nemo", "*.OPDAdvantageEstimator", "estimator opd"),
    ("nemo", "*.calculate_kl", kl_of("kl_type", nemo_clamps)),
    ("nemo", "*.apply_reward_shaping", nemo_shaping),
    ("nemo", "*.scale_rewards", "reward scaling"),
    ("nemo", "*.compute_and_apply_seq_logprob_error_masking", CORRECTION),
    ("trl", "*", trl_advantages),
    ("openinstruct", "open_instruct/data_loader.py*", openinstruct_advantages),
    ("openinstruct", "*.calculate_advantages*", openinstruct_gae),
    ("openinstruct", "*.estimate_kl", openinstruct_kl),
    ("slime", "*._post_process_rewards", slime_rewards),
    ("slime", "*.compute_advantages_and_returns", slime_advantages),
    ("slime", "*.compute_approx_kl", kl_of("kl_loss_type", slime_clamps)),
    ("slime", "*.compute_opsm_mask", CORRECTION),
    ("primerl", "*.GRPOAlgorithm.score_group", primerl_grpo),
    ("primerl", "*.HierarchicalGRPOAlgorithm.score_group", "estimator hierarchical_grpo"),
    ("primerl", "*.MaxRLAlgorithm.score_group", "estimator max_rl"),
    ("primerl", "*.RAEAlgorithm.score_group", "estimator rae"),
]
