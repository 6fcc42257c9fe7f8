"""Golden cases of verl: the recipe of each advantage function and of its KL penalty."""

from golden_runs import (
    CREDIT,
    Runs,
    clamps,
    has_gaps,
    has_singles,
    kl_of,
    nothing_for_empty,
    run,
    same,
)


def verl_clamps(kind) -> dict:
    return clamps(kind, inside=20, outside=10) if kind in ("k3", "low_var_kl") else clamps(kind)


def verl_numerics(entry) -> dict:
    """verl puts rewards on the last token; some cases on the last policy token instead."""
    on_policy = "last mask=1 token" in entry["notes"]
    place = "last_policy_token" if on_policy else "last_token"
    return {"batch": "all", "single": "raw", "terminal_reward": place}


def verl_outcome(estimator, **options):
    def rule(entry, config, table) -> Runs:
        if (config.get("kl_in_reward") or [None])[0]:
            return "KL inside the reward before the group normalisation"
        if estimator == "rloo" and "vectorized" not in entry["function"] and has_singles(table):
            return "numerics: single=raw does not reach rloo"
        numerics = verl_numerics(entry)
        on_policy = numerics["terminal_reward"] == "last_policy_token"
        columns = same("advantages") if options.get("whiten_advantages") else CREDIT
        std = "none" if config.get("norm_adv_by_std_in_grpo") is False else None
        return [
            run(
                columns,
                prepare=nothing_for_empty if on_policy else None,
                estimator=estimator,
                numerics={**numerics, "norm_eps": config.get("epsilon") or 1e-6},
                **{**options, **({"norm_std": std} if std else {})},
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
    def rule(entry, config, table) -> Runs:
        if estimator == "reinforce_pp" and has_gaps(table):
            return "numerics: observations=restart, returns that end at an observation"
        penalty = verl_kl(config)
        numerics = {**verl_numerics(entry), **verl_clamps(penalty.get("kl_estimator", "kl"))}
        return [
            run(
                {**CREDIT, **same("token_level_rewards")},
                estimator=estimator,
                gamma=config["gamma"],
                lam=config.get("lam", 1.0),
                whiten_advantages=True,
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
    ("verl", f"{CORE}grpo_passk_*", "estimator grpo_passk"),
    ("verl", f"{CORE}rloo_*", verl_outcome("rloo")),
    ("verl", f"{CORE}opo_*", "estimator opo"),
    ("verl", f"{CORE}gpg_*", "estimator gpg"),
    ("verl", f"{CORE}remax_*", "estimator remax"),
    ("verl", f"{CORE}*optimal_token_baseline_*", "estimator optimal_token_baseline"),
    (
        "verl",
        f"{CORE}reinforce_plus_plus_baseline_*",
        verl_outcome("raw", whiten_advantages=True, **VERL_CENTRED),
    ),
    ("verl", f"{CORE}reinforce_plus_plus_outcome_advantage", verl_tokens("reinforce_pp")),
    ("verl", f"{CORE}gae_advantage_return", verl_tokens("gae")),
    ("verl", "*.kl_penalty", kl_of("kl_penalty", verl_clamps)),
    ("verl", "*.apply_kl_penalty", verl_penalty),
    ("verl", "*.rollout_corr_helper.*", "off-policy correction"),
]
