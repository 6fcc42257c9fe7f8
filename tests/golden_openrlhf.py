"""Golden cases of OpenRLHF: the recipe of each advantage estimator and length penalty."""

from golden_runs import CREDIT, Runs, kl_of, no_mask, run, same

NUMERICS = {
    "batch": "all",
    "norm_eps": 1e-9,
    "single": "normalise",
    "observations": "zero_states",
    "clip_stages": "response",
    "whiten_ddof": 0,
    "whiten_floor": "clamp",
    "log_ratio_clamp": "never",
    "kl_clamps": "all",
}
NORMS = {
    "rloo": ("others", "none"),
    "reinforce_baseline": ("group", "none"),
    "dr_grpo": ("group", "none"),
    "group_norm": ("group", "group"),
}
UNDISCOUNTED = (*NORMS,)
WHITENED = ("gae", "reinforce", "reinforce_baseline")


def clamps(_kind) -> dict:
    return {"log_ratio_clamp": "never", "kl_clamps": "all"}


def advantages(_entry, config, _table) -> Runs:
    estimator = config["estimator"]
    mean, std = NORMS.get(estimator, ("none", "none"))
    low, high = config.get("clip") or (None, None)
    return [
        run(
            CREDIT,
            estimator="gae" if estimator == "gae" else "reinforce",
            gamma=1.0 if estimator in UNDISCOUNTED else config["gamma"],
            lam=config.get("lam", config.get("lambd", 1.0)),
            norm_mean=mean,
            norm_std=std,
            reward_clip=high,
            reward_clip_low=low,
            kl_estimator=config.get("kl_estimator", "k1"),
            kl_coef=config.get("kl_coef", 0.0),
            whiten_advantages=estimator in WHITENED,
            numerics={**NUMERICS, "whiten_scale": "none" if config.get("nostd") else "std"},
        )
    ]


def lengths(_entry, config, _table) -> Runs:
    """The framework counts all tokens of a row, and its own RLOO follows."""
    penalty = None
    if "overlong_buffer_len" in config:
        buffer, factor = config["overlong_buffer_len"], config["overlong_penalty_factor"]
        penalty = (config["max_new_tokens"], buffer, factor)
    return [
        run(
            same("response_level_rewards"),
            prepare=no_mask,
            estimator="raw",
            overlong_penalty=penalty,
            truncation_penalty=config.get("stop_properly_penalty_coef"),
            numerics={"batch": "all", "penalty_length": "row", "penalty_floor": "factor"},
        ),
        run(
            same("advantages"),
            estimator="rloo",
            overlong_penalty=penalty,
            truncation_penalty=config.get("stop_properly_penalty_coef"),
            numerics={"batch": "all", "penalty_length": "row", "penalty_floor": "factor"},
        ),
    ]


RULES = [
    ("openrlhf", "*.compute_advantages_and_returns", advantages),
    ("openrlhf", "*.apply_length_penalties", lengths),
    ("openrlhf", "*.compute_approx_kl", kl_of("kl_estimator", clamps)),
]
