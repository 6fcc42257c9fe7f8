"""Golden cases of verl: the recipe of each advantage function and of its KL penalty."""

import re

from golden_runs import (
    CREDIT,
    Runs,
    kl_of,
    kl_target,
    nothing_for_empty,
    run,
    same,
)

PRESET = "verl"


def verl_numerics(entry) -> dict:
    """verl puts rewards on the last token; some cases on the last policy token instead."""
    on_policy = "last mask=1 token" in entry["notes"]
    place = "last_policy_token" if on_policy else "last_token"
    return {"batch": "all", "terminal_reward": place}


def verl_outcome(estimator):
    def rule(entry, config, _table) -> Runs:
        numerics = verl_numerics(entry)
        on_policy = numerics["terminal_reward"] == "last_policy_token"
        return [
            run(
                CREDIT,
                preset=PRESET,
                prepare=nothing_for_empty if on_policy else None,
                estimator=estimator,
                norm_std="none" if config.get("norm_adv_by_std_in_grpo") is False else None,
                f_norm=config.get("f_norm"),
                numerics={**numerics, "norm_eps": config.get("epsilon") or 1e-6},
                **verl_kl(config),
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
        return [
            run(
                {**CREDIT, **same("token_level_rewards")},
                preset=PRESET,
                estimator=estimator,
                gamma=config.get("gamma"),
                lam=config.get("lam"),
                numerics=verl_numerics(entry),
                **verl_kl(config),
            )
        ]

    return rule


def verl_positions(estimator):
    def rule(entry, config, _table) -> Runs:
        weighed = re.search(r"threshold ([\d.]+)", config.get("rollout_is", ""))
        tail = config.get("handle_zero_tail")
        lone = {} if tail is None else {"lone": "none" if tail else "baseline"}
        return [
            run(
                {**CREDIT, **same("token_level_rewards")},
                preset=PRESET,
                estimator=estimator,
                ratio_cap=float(weighed[1]) if weighed else None,
                eps=config["epsilon"],
                numerics=verl_numerics(entry),
                **lone,
                **verl_kl(config),
            )
        ]

    return rule


def verl_penalty(entry, config, _table) -> Runs:
    return [
        run(
            same("token_level_rewards"),
            preset=PRESET,
            estimator="gae",
            kl_estimator=config["kl_penalty"],
            kl_coef=config.get("kl_coef", config.get("init")),
            kl_target=kl_target(config.get("target"), config.get("horizon")),
            numerics={**verl_numerics(entry), "batch": "step"},
        )
    ]


CORE = "verl.trainer.ppo.core_algos.compute_"
OUTCOMES = ("grpo", "grpo_vectorized", "grpo_passk", "rloo", "rloo_vectorized", "opo", "gpg")

RULES = [
    *(("verl", f"{CORE}{name}_outcome_advantage", verl_outcome(name)) for name in OUTCOMES),
    ("verl", f"{CORE}remax_*", verl_tokens("remax")),
    ("verl", f"{CORE}optimal_token_*", verl_positions("optimal_token_baseline")),
    ("verl", f"{CORE}multi_turn_optimal_*", verl_positions("tir_optimal_token_baseline")),
    ("verl", f"{CORE}reinforce_plus_plus_baseline_*", verl_outcome("reinforce_pp_baseline")),
    ("verl", f"{CORE}reinforce_plus_plus_outcome_advantage", verl_tokens("reinforce_pp")),
    ("verl", f"{CORE}gae_advantage_return", verl_tokens("gae")),
    ("verl", "*.kl_penalty", kl_of("kl_penalty", PRESET)),
    ("verl", "*.apply_kl_penalty", verl_penalty),
]
