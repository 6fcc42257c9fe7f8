"""Rules for weights and rejection between the rollout engine's policy and the trainer's."""

import math

import numpy as np
import pyarrow as pa
from golden_runs import Runs, replaced, run, same

WEIGHT = same("is_weight")
FINAL = same("final_response_mask")


def between(level, measure, low=None, high=None, where="any") -> str:
    """A filter as it is written; a bound of None is none."""
    bounds = ["" if bound is None else repr(float(bound)) for bound in (low, high)]
    return ":".join([level, measure, *bounds, where])


def cap(floor, cap):
    """The bounds of weights; None without any."""
    return None if floor is cap is None else (floor, cap)


def advantages_given(table) -> pa.Table:
    """With γ = 0 the advantage of a token is its own reward."""
    zeros = pa.array(np.zeros(table.num_rows))
    return replaced(table, reward=zeros, token_rewards=table["adv_in"])


def given(compared, **options):
    """A run whose advantages are the input's own."""
    norm = {"norm_mean": "none", "norm_std": "none"}
    prepare = advantages_given
    return run(compared, prepare=prepare, estimator="reinforce", gamma=0, **norm, **options)


# --- one rule a framework ------------------------------------------------------------------------


def roll(_entry, config, _table) -> Runs:
    if "weight_type" in config:
        options = {"is_weight": config["weight_type"], "is_cap": config["upper_bound"]}
        return [run(WEIGHT, preset="roll", estimator="raw", **options)]
    one = between(config["agg_type"], config["kind"], config["low"], config["high"])
    compared = {"filter_mask": "final_response_mask", **FINAL}
    return [run(compared, preset="roll", estimator="raw", is_filter=[one])]


VERL_LEVELS = {"token": "token", "seq_sum": "sequence", "seq_mean": "geometric", "seq_max": "max"}


def verl_filter(kind, threshold) -> str:
    """Bounds of k1 are ratios of engine over trainer; a single one stands for 1/t and t."""
    level, _, measure = kind.rpartition("_")
    if measure != "k1":
        return between(VERL_LEVELS[level], measure, None, threshold)
    low, _, high = threshold.rpartition("_")
    bounds = (float(low) if low else 1 / float(high), float(high))
    return between(VERL_LEVELS[level], measure, *(math.log(bound) for bound in bounds))


def verl(_entry, config, _table) -> Runs:
    options = {"preset": "verl", "estimator": "raw", "numerics": {"batch": "all"}}
    if config.get("rollout_is"):
        normalised = ":normalised" * config.get("batch_normalize", False)
        weight = f"{config['rollout_is']}{normalised}"
        options |= {"is_weight": weight, "is_cap": config["threshold"]}
    if config.get("rollout_rs"):
        kinds = config["rollout_rs"].split(",")
        thresholds = str(config["rollout_rs_threshold"]).split(",")
        pairs = zip(kinds, thresholds, strict=True)
        options["is_filter"] = [verl_filter(*pair) for pair in pairs]
    return [run({**WEIGHT, **FINAL} if "is_weight" in options else FINAL, **options)]


def trl(_entry, config, _table) -> Runs:
    level, how = config["mode"].split("_")
    low, high = config["clip_min"], config["clip_max"]
    if how == "mask":
        options = {"is_mask": (low or 0.0, math.inf if high is None else high)}
    else:
        options = {"is_cap": cap(low, high)}
    return [run(WEIGHT, preset="trl", estimator="raw", is_weight=level, **options)]


def slime(entry, config, _table) -> Runs:
    low, high = config["tis_clip_low"], config["tis_clip"]
    masks = "icepop" in entry["function"]
    options = {"is_mask": (low, high)} if masks else {"is_cap": cap(low, high)}
    return [run(WEIGHT, preset="slime", estimator="raw", is_weight="token", **options)]


def slime_sequences(_entry, config, _table) -> Runs:
    """Of the current policy against the one that sampled."""
    return [
        given(
            {"filter_mask": "final_response_mask"},
            preset="slime",
            columns={"old_log_probs": "log_probs", "infer_log_probs": "old_log_probs"},
            is_filter=[between("geometric", "k1", None, config["opsm_delta"], "negative")],
        )
    ]


def openinstruct(_entry, config, _table) -> Runs:
    bounds = config["rho_mask_lower_bound"] or None, config["rho_mask_upper_bound"] or None
    options = {
        "is_weight": "geometric" if config["rho_mask_sequence_level"] else "token",
        "is_cap": cap(*(config[f"rho_clamp_{side}_bound"] or None for side in ("lower", "upper"))),
        "preset": "open-instruct",
    }
    if config["rho_mask_tv_divergence"]:
        one = between("geometric", "tv", *bounds, where="diverging")
        return [given(WEIGHT, is_filter=[one], **options)]
    if any(bounds):
        options["is_mask"] = (bounds[0] or 0.0, bounds[1] or math.inf)
    return [run(WEIGHT, estimator="raw", **options)]


def nemo(_entry, config, _table) -> Runs:
    one = between("geometric", "error", None, config["threshold"])
    return [run(same("sample_mask"), preset="nemo-rl", estimator="raw", is_filter=[one])]


PEERS = {"roll": roll, "verl": verl, "trl": trl, "slime": slime, "openinstruct": openinstruct}


def weights(entry, config, table) -> Runs:
    """The rule of entries that have weights, whichever function gave them."""
    if entry["peer"] not in PEERS:
        return "no rule for these weights"
    return PEERS[entry["peer"]](entry, config, table)


RULES = [
    ("roll", "*.compute_train_infer_correction", roll),
    ("verl", "*.rollout_corr_helper.*", verl),
    ("slime", "*.compute_opsm_mask", slime_sequences),
    ("nemo", "*.compute_and_apply_seq_logprob_error_masking", nemo),
]


# --- metrics -------------------------------------------------------------------------------------


def _truncated(fact, _table, recipe):
    """verl counts responses where a weight is a response's, those without policy tokens too."""
    if recipe.is_cap is not None and recipe.is_cap.low > 0:
        return None
    if recipe.is_weight.level == "token":
        return fact["is_truncated"]["mean"] or 0.0
    return _of_all(fact, "is_truncated_responses")


def _of_all(fact, name):
    """The mean over all responses, those without policy tokens too."""
    entry = fact[name]
    return (entry["mean"] or 0.0) * entry["count"] / fact["kept"]["count"]


def _mean(name):
    return lambda fact, *_: fact[name]["mean"] or 0.0


def _rejected_responses(fact, *_):
    return _of_all(fact, "rejected_responses")


def _dropped(fact, _table, recipe):
    name = "rejected" if recipe.is_filter else "is_masked"
    return (fact[name]["mean"] or 0.0) if name in fact else 0.0


def _clipped(fact, _table, recipe):
    """open-instruct counts tokens at the cap among those it masks, too."""
    return None if recipe.is_mask else (fact["is_truncated"]["mean"] or 0.0)


def _mean_weight(fact, _table, recipe):
    return None if recipe.is_filter else fact["is_weight"]["mean"]


def _chi_square(fact, *_):
    """verl's mean is over all responses, those without policy tokens too."""
    return _of_all(fact, "engine_chi2_responses")


METRICS = {
    "rollout_is_ratio_fraction_high": _truncated,
    "rollout_corr/rollout_is_ratio_fraction_high": _truncated,
    "rollout_rs_masked_fraction": _mean("rejected"),
    "rollout_rs_seq_masked_fraction": _rejected_responses,
    "rollout_corr/kl": _mean("engine_k1"),
    "rollout_corr/k3_kl": _mean("engine_k3"),
    "rollout_corr/chi2_token": _mean("engine_chi2"),
    "rollout_corr/chi2_seq": _chi_square,
    "val/rho_drop_frac": _dropped,
    "val/rho_clipfrac": _clipped,
    "val/rho_weight": _mean_weight,
    "num_masked_seqs": lambda fact, *_: fact["rejected_responses"]["total"],
}
