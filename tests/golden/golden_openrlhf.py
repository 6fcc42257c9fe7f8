"""Golden cases of OpenRLHF: the recipe of each advantage estimator and length penalty."""

from golden_runs import CREDIT, Runs, kl_of, run, same

PRESET = "openrlhf"
ALL = {"batch": "all"}  # a golden file is one batch


def advantages(_entry, config, _table) -> Runs:
    return [
        run(
            CREDIT,
            preset=PRESET,
            estimator=config["estimator"],
            gamma=config.get("gamma"),
            lam=config.get("lam", config.get("lambd")),
            reward_clip=config.get("clip"),
            kl_estimator=config.get("kl_estimator"),
            kl_coef=config.get("kl_coef"),
            numerics={**ALL, "whiten_scale": "none" if config.get("nostd") else "std"},
        )
    ]


def lengths(_entry, config, _table) -> Runs:
    penalty = None
    if "overlong_buffer_len" in config:
        buffer, factor = config["overlong_buffer_len"], config["overlong_penalty_factor"]
        penalty = (config["max_new_tokens"], buffer, factor)
    options = {
        "overlong_penalty": penalty,
        "truncation_penalty": config.get("stop_properly_penalty_coef"),
        "numerics": ALL,
    }
    rewards = same("response_level_rewards")
    return [
        run(rewards, preset=PRESET, estimator="raw", **options),
        run(same("advantages"), preset=PRESET, estimator=config["estimator"], **options),
    ]


RULES = [
    ("openrlhf", "*.compute_advantages_and_returns", advantages),
    ("openrlhf", "*.apply_length_penalties", lengths),
    ("openrlhf", "*.compute_approx_kl", kl_of("kl_estimator", PRESET)),
]
