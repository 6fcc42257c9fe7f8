"""Golden cases of slime: the recipe of its reward post-processing and advantage estimators."""

from golden_runs import CREDIT, Runs, kl_of, run, same

PRESET = "slime"
ALL = {"batch": "all"}  # a golden file is one batch
NAMES = {"ppo": "gae", "reinforce_plus_plus": "reinforce"}
NAMES["reinforce_plus_plus_baseline"] = "reinforce_pp_baseline"


def clamps(kind) -> dict:
    """Of two names for one estimator, one is clamped."""
    return {**ALL, "kl_clamp": "k3:10" if kind == "low_var_kl" else "never"}


def norm(config) -> dict:
    """Groups of unequal size make slime normalise over the whole batch."""
    scope = "group" if config["n_samples_per_prompt"] else "batch"
    divided = config.get("grpo_std_normalization", True)
    return {"norm_mean": scope, "norm_std": scope if divided else "none"}


def rewards(_entry, config, _table) -> Runs:
    columns = same("response_level_rewards")
    return [run(columns, preset=PRESET, estimator="raw", numerics=ALL, **norm(config))]


def advantages(_entry, config, _table) -> Runs:
    name, kind = config["advantage_estimator"], config["kl_loss_type"]
    scopes = norm(config) if name in ("grpo", "reinforce_plus_plus_baseline") else {}
    if name == "reinforce_plus_plus_baseline":
        scopes["norm_std"] = "none"
    return [
        run(
            CREDIT,
            preset=PRESET,
            estimator=NAMES.get(name, name),
            gamma=config["gamma"],
            lam=config["lambd"],
            kl_estimator=kind,
            kl_coef=config["kl_coef"] if name != "grpo" else None,
            teachers={"ref_log_probs": config["opd_kl_coef"]} if config["use_opd"] else None,
            whiten_advantages=config["normalize_advantages"],
            numerics=clamps(kind),
            **scopes,
        )
    ]


RULES = [
    ("slime", "*._post_process_rewards", rewards),
    ("slime", "*.compute_advantages_and_returns", advantages),
    ("slime", "*.compute_approx_kl", kl_of("kl_loss_type", PRESET, clamps)),
]
