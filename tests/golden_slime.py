"""Golden cases of slime: the recipe of its reward post-processing and advantage estimators."""

from golden_runs import CREDIT, Runs, kl_of, run, same


def clamps(kind) -> dict:
    """Of two names for one estimator, one is clamped."""
    clamp = 10 if kind == "low_var_kl" else "never"
    return {"log_ratio_clamp": "never", "kl_clamp": clamp}


def norm(config) -> dict:
    """Groups of unequal size make slime normalise over the whole batch."""
    scope = "group" if config["n_samples_per_prompt"] else "batch"
    divided = config.get("grpo_std_normalization", True)
    return {"norm_mean": scope, "norm_std": scope if divided else "none"}


SLIME = {"batch": "all", "single": "normalise"}
# What each estimator is, and whether its rewards are normalised and centred only.
ESTIMATORS = {"ppo": "gae", "grpo": "raw", "reinforce_plus_plus_baseline": "raw"}
OBSERVATIONS = {"ppo": "policy"}


def rewards(_entry, config, _table) -> Runs:
    columns = same("response_level_rewards")
    return [run(columns, estimator="raw", numerics=SLIME, **norm(config))]


def advantages(_entry, config, _table) -> Runs:
    name, kind = config["advantage_estimator"], config["kl_loss_type"]
    scopes = {"norm_mean": "none", "norm_std": "none"}
    if ESTIMATORS.get(name) == "raw":
        scopes = norm(config)
    if name == "reinforce_plus_plus_baseline":
        scopes["norm_std"] = "none"
    numerics = {
        **SLIME,
        **clamps(kind),
        "observations": "policy" if name == "ppo" else "states",
        "terminal_reward": "last_token" if name == "ppo" else "last_policy_token",
        "kl_credit": "token" if name == "reinforce_plus_plus_baseline" else "return",
    }
    return [
        run(
            CREDIT,
            estimator=ESTIMATORS.get(name, "reinforce"),
            gamma=config["gamma"],
            lam=config["lambd"],
            kl_estimator=kind,
            kl_coef=config["kl_coef"] if name != "grpo" else 0.0,
            teachers={"ref_log_probs": config["opd_kl_coef"]} if config["use_opd"] else {},
            whiten_advantages=config["normalize_advantages"],
            numerics=numerics,
            **scopes,
        )
    ]


RULES = [
    ("slime", "*._post_process_rewards", rewards),
    ("slime", "*.compute_advantages_and_returns", advantages),
    ("slime", "*.compute_approx_kl", kl_of("kl_loss_type", clamps)),
]
