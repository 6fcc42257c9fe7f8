"""Golden cases of ROLL: the recipe of each function of its pipeline."""

import pyarrow.compute as pc
from golden_runs import CREDIT, Runs, kl_target, limit, one_domain, reward_on_last_token, run, same

PRESET = "roll"


def roll_norm(config) -> dict:
    return {
        "norm_mean": config.get("norm_mean_type") or "none",
        "norm_std": config.get("norm_std_type") or "none",
        "reward_clip": config.get("reward_clip"),
    }


def roll_masks(config, table) -> dict:
    low, high = (config.get(f"difficulty_{side}_threshold") for side in ("low", "high"))
    bounds = (0.1 if low is None else low, 0.95 if high is None else high)
    clips = config.get("error_max_len_clip")
    return {
        "drop_longer": limit(table) if config.get("max_len_mask") else None,
        "drop_difficulty": bounds if config.get("difficulty_mask") else None,
        "drop_long_errors": config.get("error_max_len_threshold") if clips else None,
    }


def roll_rewards(_entry, config, _table) -> Runs:
    return [
        run(
            same("response_level_rewards"),
            prepare=one_domain,
            estimator="raw",
            preset=PRESET,
            numerics={"batch": "step"},
            **roll_norm(config),
        )
    ]


def roll_token_rewards(_entry, config, _table) -> Runs:
    clip, added = config.get("reward_clip"), config.get("add_token_level_kl", True)
    return [
        run(
            same("kl", "token_level_rewards"),
            prepare=reward_on_last_token if clip else None,
            estimator="reinforce",
            kl_estimator=config["kl_penalty"],
            kl_coef=config.get("kl_coef", config.get("init_kl_coef", 0.0)) if added else 0.0,
            kl_target=kl_target(config.get("target_kl"), config.get("kl_horizon")),
            reward_clip=clip,
            preset=PRESET,
            numerics={"batch": "step"},
        )
    ]


def roll_advantages(_entry, config, _table) -> Runs:
    if config.get("use_opd"):
        return [roll_distillation(config)]
    return [
        run(
            {**CREDIT, **same("raw_advantages")}
            | ({} if config["whiten_rewards"] else same("token_level_rewards")),
            estimator=config["adv_estimator"],
            gamma=config["gamma"],
            lam=config["lambd"],
            kl_estimator=config["kl_penalty"],
            kl_coef=config["kl_coef"],
            whiten_rewards=config["whiten_rewards"],
            whiten_advantages=config["whiten_advantages"],
            advantage_clip=config["advantage_clip"],
            preset=PRESET,
            numerics={"batch": "step"},
        )
    ]


def roll_distillation(config):
    """The reference is the teacher, alone or beside the rewards."""
    return run(
        same("advantages"),
        estimator="opd" if config["is_pure_opd"] else config["adv_estimator"],
        gamma=config["gamma"],
        teachers={"ref_log_probs": config["opd_kl_coef"]},
        kl_estimator=config["kl_penalty"],
        columns={"old_log_probs": config["student"]},
        preset=PRESET,
    )


def roll_sample_mask(_entry, config, table) -> Runs:
    masks = roll_masks(config, table)
    return [run(same("final_response_mask"), estimator="raw", preset=PRESET, **masks)]


def roll_sample_weight(_entry, config, _table) -> Runs:
    return [
        run(
            same("sample_weight"),
            estimator="raw",
            difficulty_weight=config["difficulty_loss_weight"],
            length_weight=config["length_loss_weight"],
            preset=PRESET,
            numerics={"batch": "all"},
        )
    ]


def roll_chain(_entry, config, table) -> Runs:
    kind, coef = config["kl"] or (config["kl_penalty"], 0.0)
    adaptive = config.get("adaptive") or {}
    # ROLL's own `grpo` differs from its `reinforce` in nothing behind the reward normalisation
    estimator = "gae" if config["adv_estimator"] == "gae" else "reinforce"
    return [
        run(
            {
                **CREDIT,
                **same("response_level_rewards", "token_level_rewards", "final_response_mask"),
            },
            estimator=estimator,
            gamma=config["gamma"],
            lam=config["lambd"],
            kl_estimator=kind,
            kl_coef=coef if config["add_token_level_kl"] else 0.0,
            kl_target=kl_target(adaptive.get("target"), adaptive.get("horizon")),
            whiten_rewards=config["wr"],
            whiten_advantages=config["wa"],
            advantage_clip=config["ac"],
            preset=PRESET,
            **roll_norm(config),
            **roll_masks(config, table),
        )
    ]


def roll_agentic(_entry, config, table) -> Runs:
    keys = {"traj_group_id": "prompt_id", "traj_id": "traj_id", "batch": "domain"}
    norm = roll_norm(config)
    numerics = {
        "batch": "all",
        "single": "normalise" if norm["norm_std"] == "none" else "zero_always",
        "constant": "zero" if norm["norm_std"] == "group" else "divide",
    }
    agentic = "traj_id" in table.column_names and len(pc.unique(table["traj_id"])) > 1
    columns = {"group": keys[config["grouping"]], "reward": "step_score" if agentic else "reward"}
    return [
        run(
            same("response_level_rewards"),
            prepare=one_domain,
            estimator="raw",
            columns=columns,
            numerics=numerics,
            **norm,
        )
    ]


STEPS = {"batch": "all", "single": "zero_always", "constant": "zero"}


def roll_step_returns(_entry, config, _table) -> Runs:
    return [
        run(
            {"step_rewards": "response_level_rewards"},
            estimator="step_reinforce",
            norm_mean="none",
            norm_std="none",
            step_gamma=config["gamma"],
            preset=PRESET,
            numerics=STEPS,
        )
    ]


def roll_step_reinforce(_entry, config, _table) -> Runs:
    return [
        run(
            same("response_level_rewards", "advantages"),
            estimator="step_reinforce",
            step_gamma=config["step_reward_gamma"],
            preset=PRESET,
            numerics=STEPS,
            **roll_norm(config),
        )
    ]


def roll_gigpo(_entry, config, _table) -> Runs:
    """Both parts together, and each alone."""
    episode, step = config["episode_reward_weight"], config["step_reward_weight"]
    parts = {
        "response_level_rewards": (episode, step),
        "episode_rewards_norm": (1.0, 0.0),
        "step_rewards_norm": (0.0, 1.0),
    }
    method = config["method"]
    return [
        run(
            {name: "response_level_rewards", **(CREDIT if weights == (episode, step) else {})},
            estimator="gigpo",
            gamma=config["gamma"],
            step_gamma=config["step_reward_gamma"],
            episode_weight=weights[0],
            step_weight=weights[1],
            norm_mean="none" if method == "identity" else "group",
            norm_std="group" if method == "mean_std" else "none",
            preset=PRESET,
            numerics=STEPS,
        )
        for name, weights in parts.items()
    ]


def roll_agentic_reinforce(_entry, config, _table) -> Runs:
    return [
        run(
            {**CREDIT, **same("token_level_rewards")},
            estimator="agentic_reinforce",
            gamma=config["gamma"],
            kl_estimator=config["kl_penalty"],
            kl_coef=config["kl_coef"],
            whiten_advantages=config.get("whiten_advantages", False),
            preset=PRESET,
            numerics={"batch": "all"},
        )
    ]


PIPELINE = "get_sample_level_mask -> reward_postprocess -> *"
AGENTIC = "roll.pipeline.agentic.utils."
RETURNS = "compute_discounted_returns"

RULES = [
    ("roll", "*.reward_postprocess", roll_rewards),
    ("roll", "*.compute_token_reward", roll_token_rewards),
    ("roll", "*.compute_advantage", roll_advantages),
    ("roll", "*.get_sample_level_mask", roll_sample_mask),
    ("roll", "*.compute_sample_weights", roll_sample_weight),
    ("roll", PIPELINE, roll_chain),
    ("roll", f"{AGENTIC}agentic_reward_norm", roll_agentic),
    ("roll", f"{AGENTIC}{RETURNS}", roll_step_returns),
    ("roll", f"{RETURNS} -> *compute_token_reward*", roll_gigpo),
    ("roll", f"{RETURNS} -> *agentic_compute_advantage", roll_step_reinforce),
    ("roll", f"{AGENTIC}agentic_compute_advantage*", roll_agentic_reinforce),
]
