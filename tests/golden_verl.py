"""Golden cases of verl: the recipe of each advantage function and of its KL penalty."""

import re

from golden_runs import (
    CREDIT,
    Runs,
    kl_of,
    nothing_for_empty,
    run,
    same,
)


def verl_clamps(_kind) -> dict:
    return {"log_ratio_clamp": 20, "log_ratio_clamps": "k3"}


def verl_numerics(entry) -> dict:
    """verl puts rewards on the last token; some cases on the last policy token instead."""
    on_policy = "last mask=1 token" in entry["notes"]
    place = "last_policy_token" if on_policy else "last_token"
    return {"batch": "all", "single": "raw", "terminal_reward": place}


def verl_outcome(estimator, **options):
    def rule(entry, config, _table) -> Runs:
        penalty = verl_kl(config)
        numerics = verl_numerics(entry) | {"kl_credit": "response"}
        if "rloo_vectorized" in entry["function"]:
            numerics["single"] = "zero"
        if "grpo_vectorized" in entry["function"]:
            numerics["norm_floor"] = 1e-3
        on_policy = numerics["terminal_reward"] == "last_policy_token"
        columns = same("advantages") if options.get("whiten_advantages") else CREDIT
        std = "none" if config.get("norm_adv_by_std_in_grpo") is False else None
        return [
            run(
                columns,
                prepare=nothing_for_empty if on_policy else None,
                estimator=estimator,
                numerics={**numerics, "norm_eps": config.get("epsilon") or 1e-6},
                f_norm=config.get("f_norm", 1.0),
                **{**options, **penalty, **({"norm_std": std} if std else {})},
            )
        ]

    return rule


def verl_kl(config) -> dict:
    """Options of a KL penalty, where there is one."""
    if not (config.get("kl_in_reward") or [None])[0]:
        return {}
    kind, coef = config["kl_in_reward"]
    return {"kl_estimator": kind, "kl_coef": coef}


def verl_tokens(estimator):
    def rule(entry, config, _table) -> Runs:
        penalty = verl_kl(config)
        numerics = {**verl_numerics(entry), **verl_clamps(penalty.get("kl_estimator", "kl"))}
        if estimator == "reinforce_pp":
            numerics["observations"] = "restart"
        return [
            run(
                {**CREDIT, **same("token_level_rewards")},
                estimator=estimator,
                gamma=config.get("gamma", 1.0),
                lam=config.get("lam", 1.0),
                whiten_advantages=estimator in ("gae", "reinforce_pp"),
                numerics=numerics,
                **penalty,
            )
        ]

    return rule


def verl_positions(position):
    """The two variants differ in what a position is, and in their default for the tail."""

    def rule(entry, config, _table) -> Runs:
        tail = config.get("handle_zero_tail", position == "policy_token")
        weighed = re.search(r"threshold ([\d.]+)", config.get("rollout_is", ""))
        penalty = verl_kl(config)
        numerics = {
            **verl_numerics(entry),
            **verl_clamps(penalty.get("kl_estimator", "kl")),
            "otb_position": position,
            "otb_lone": "none" if tail else "baseline",
            "otb_eps": config["epsilon"],
        }
        return [
            run(
                {**CREDIT, **same("token_level_rewards")},
                estimator="optimal_token_baseline",
                otb_is_cap=float(weighed[1]) if weighed else None,
                numerics=numerics,
                **penalty,
            )
        ]

    return rule


def verl_penalty(entry, config, _table) -> Runs:
    kind = config["kl_penalty"]
    return [
        run(
            same("token_level_rewards"),
            estimator="reinforce",
            kl_estimator=kind,
            kl_coef=config.get("kl_coef", config.get("init")),
            kl_target=config.get("target"),
            kl_horizon=config.get("horizon", 10000),
            numerics={**verl_numerics(entry), **verl_clamps(kind), "batch": "step"},
        )
    ]


CORE = "verl.trainer.ppo.core_algos.compute_"
VERL_NORM = {"norm_mean": "group", "norm_std": "group"}
VERL_CENTRED = {"norm_mean": "group", "norm_std": "none"}

RULES = [
    ("verl", f"{CORE}grpo_outcome_advantage", verl_outcome("raw", **VERL_NORM)),
    ("verl", f"{CORE}grpo_vectorized_outcome_advantage", verl_outcome("raw", **VERL_NORM)),
    ("verl", f"{CORE}grpo_passk_*", verl_outcome("grpo_passk")),
    ("verl", f"{CORE}rloo_*", verl_outcome("rloo")),
    ("verl", f"{CORE}opo_*", verl_outcome("opo")),
    ("verl", f"{CORE}gpg_*", verl_outcome("gpg")),
    ("verl", f"{CORE}remax_*", verl_tokens("remax")),
    ("verl", f"{CORE}optimal_token_baseline_*", verl_positions("token")),
    ("verl", f"{CORE}multi_turn_optimal_token_baseline_*", verl_positions("policy_token")),
    (
        "verl",
        f"{CORE}reinforce_plus_plus_baseline_*",
        verl_outcome("raw", whiten_advantages=True, **VERL_CENTRED),
    ),
    ("verl", f"{CORE}reinforce_plus_plus_outcome_advantage", verl_tokens("reinforce_pp")),
    ("verl", f"{CORE}gae_advantage_return", verl_tokens("gae")),
    ("verl", "*.kl_penalty", kl_of("kl_penalty", verl_clamps)),
    ("verl", "*.apply_kl_penalty", verl_penalty),
]
