"""Golden cases of NeMo-RL: the recipe of each advantage estimator and reward function."""

from golden_runs import CREDIT, SCALAR, Runs, kl_of, no_mask, run, same

WHITENING = {"whiten_ddof": 0, "whiten_floor": "clamp"}
COMPONENTS = "reward_{}"


def clamps(_kind) -> dict:
    return {"log_ratio_clamp": 20, "kl_clamps": "all"}


def norm(config) -> dict:
    scope = "others" if config["use_leave_one_out_baseline"] else "group"
    std = scope if config["normalize_rewards"] else "none"
    return {"norm_mean": scope, "norm_std": std}


def grpo(_entry, config, _table) -> Runs:
    numerics = {"batch": "all", "norm_eps": config["epsilon"]}
    return [run(SCALAR, estimator="raw", numerics=numerics, **norm(config))]


def gdpo(_entry, config, _table) -> Runs:
    return [
        run(
            SCALAR,
            estimator="gdpo",
            reward_components=[COMPONENTS.format(name) for name in config["components"]],
            component_weights=config["reward_weights"],
            numerics={"batch": "all", "batch_eps": 0.0},
            **norm(config),
        )
    ]


def reinforce_pp(_entry, config, _table) -> Runs:
    """No return is accumulated: a token pays for its own KL alone."""
    kind = config["kl_type"] if config["use_kl_in_reward"] else None
    return [
        run(
            same("advantages"),
            estimator="raw",
            norm_mean="group" if config["minus_baseline"] else "none",
            kl_estimator=kind or "k1",
            kl_coef=config["kl_coef"] if kind else 0.0,
            whiten_advantages=True,
            numerics={"batch": "all", **WHITENING, **clamps(kind), "kl_credit": "token"},
        )
    ]


def raw(_entry, config, _table) -> Runs:
    whiten = config["normalize_advantages"]
    numerics = {"batch": "all", **WHITENING}
    return [run(SCALAR, estimator="raw", whiten_advantages=whiten, numerics=numerics)]


def gae(_entry, config, _table) -> Runs:
    kind = config.get("kl_type") or "k1"
    return [
        run(
            CREDIT,
            estimator="gae",
            gamma=config["gae_gamma"],
            lam=config["gae_lambda"],
            lambda_policy=config.get("gae_lambda_policy"),
            lambda_value=config.get("gae_lambda_value"),
            length_adaptive_alpha=config.get("length_adaptive_alpha") or 0.0,
            kl_estimator=kind,
            kl_coef=config["kl_coef"] or 0.0,
            whiten_advantages=config["normalize_advantages"],
            numerics={"batch": "all", **clamps(kind)},
        )
    ]


def opd(_entry, config, _table) -> Runs:
    columns = {"old_log_probs": config["student"]}
    numerics = {"batch": "all", "log_ratio_clamp": "never"}
    teachers = {config["teacher"]: 1.0}
    return [
        run(
            same("advantages"),
            estimator="opd",
            teachers=teachers,
            columns=columns,
            numerics=numerics,
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
            prepare=no_mask,
            estimator="raw",
            overlong_penalty=penalty,
            truncation_penalty=config.get("stop_properly_penalty_coef"),
        )
    ]


def scaling(_entry, config, _table) -> Runs:
    scale = (*config["source"], *config["target"])
    return [run(same("response_level_rewards"), estimator="raw", reward_scale=scale)]


RULES = [
    ("nemo", "*.GRPOAdvantageEstimator", grpo),
    ("nemo", "*.GDPOAdvantageEstimator", gdpo),
    ("nemo", "*.ReinforcePlusPlusAdvantageEstimator", reinforce_pp),
    ("nemo", "*.RawRewardAdvantageEstimator", raw),
    ("nemo", "*.GeneralizedAdvantageEstimator", gae),
    ("nemo", "*.OPDAdvantageEstimator", opd),
    ("nemo", "*.calculate_kl", kl_of("kl_type", clamps)),
    ("nemo", "*.apply_reward_shaping", shaping),
    ("nemo", "*.scale_rewards", scaling),
]
