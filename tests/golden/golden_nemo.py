"""Golden cases of NeMo-RL: the recipe of each advantage estimator and reward function."""

from golden_runs import CREDIT, SCALAR, Runs, kl_of, run, same

PRESET = "nemo-rl"
ALL = {"batch": "all"}  # a golden file is one batch


def norm(config) -> dict:
    scope = "others" if config["use_leave_one_out_baseline"] else "group"
    std = scope if config["normalize_rewards"] else "none"
    return {"norm_mean": scope, "norm_std": std}


def grpo(_entry, config, _table) -> Runs:
    numerics = {**ALL, "norm_eps": config["epsilon"]}
    return [run(SCALAR, preset=PRESET, estimator="grpo", numerics=numerics, **norm(config))]


def gdpo(_entry, config, _table) -> Runs:
    return [
        run(
            SCALAR,
            preset=PRESET,
            estimator="gdpo",
            reward_components=[f"reward_{name}" for name in config["components"]],
            component_weights=config["reward_weights"],
            numerics=ALL,
            **norm(config),
        )
    ]


def reinforce_pp(_entry, config, _table) -> Runs:
    """No return is accumulated: a token pays for its own KL alone."""
    kind = config["kl_type"] if config["use_kl_in_reward"] else None
    return [
        run(
            same("advantages"),
            preset=PRESET,
            estimator="reinforce_pp",
            norm_mean="group" if config["minus_baseline"] else "none",
            kl_estimator=kind,
            kl_coef=config["kl_coef"] if kind else 0.0,
            numerics=ALL,
        )
    ]


def raw(_entry, config, _table) -> Runs:
    whiten = config["normalize_advantages"]
    return [run(SCALAR, preset=PRESET, estimator="raw", whiten_advantages=whiten, numerics=ALL)]


def gae(_entry, config, _table) -> Runs:
    return [
        run(
            CREDIT,
            preset=PRESET,
            estimator="gae",
            gamma=config["gae_gamma"],
            lam=config["gae_lambda"],
            lambda_policy=config.get("gae_lambda_policy"),
            lambda_value=config.get("gae_lambda_value"),
            length_adaptive_alpha=config.get("length_adaptive_alpha"),
            kl_estimator=config.get("kl_type"),
            kl_coef=config["kl_coef"],
            whiten_advantages=config["normalize_advantages"],
            numerics=ALL,
        )
    ]


def opd(_entry, config, _table) -> Runs:
    return [
        run(
            same("advantages"),
            preset=PRESET,
            estimator="opd",
            teachers={config["teacher"]: 1.0},
            columns={"old_log_probs": config["student"]},
            numerics=ALL,
        )
    ]


def shaping(_entry, config, _table) -> Runs:
    penalty = None
    if "overlong_buffer_length" in config:
        length, buffer = config["max_response_length"], config["overlong_buffer_length"]
        penalty = (length, buffer, config["overlong_buffer_penalty"])
    return [
        run(
            same("response_level_rewards"),
            preset=PRESET,
            estimator="raw",
            overlong_penalty=penalty,
            truncation_penalty=config.get("stop_properly_penalty_coef"),
        )
    ]


def scaling(_entry, config, _table) -> Runs:
    scale = (*config["source"], *config["target"])
    return [run(same("response_level_rewards"), preset=PRESET, estimator="raw", reward_scale=scale)]


RULES = [
    ("nemo", "*.GRPOAdvantageEstimator", grpo),
    ("nemo", "*.GDPOAdvantageEstimator", gdpo),
    ("nemo", "*.ReinforcePlusPlusAdvantageEstimator", reinforce_pp),
    ("nemo", "*.RawRewardAdvantageEstimator", raw),
    ("nemo", "*.GeneralizedAdvantageEstimator", gae),
    ("nemo", "*.OPDAdvantageEstimator", opd),
    ("nemo", "*.calculate_kl", kl_of("kl_type", PRESET)),
    ("nemo", "*.apply_reward_shaping", shaping),
    ("nemo", "*.scale_rewards", scaling),
]
