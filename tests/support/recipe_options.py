"""Options of a recipe as flags, variables and fields of files."""

from __future__ import annotations

from pathlib import Path

from rlpost.recipe.recipe import Filter, Numerics, WeightLevel

OWN = Path(__file__).parent / "own_estimator.py"


# Words, environment and file to Recipe

# field: (words on the command line, the field's value, words that it needs beside it)
CASES = {
    "estimator": ("--estimator rloo", "rloo", ""),
    "gamma": ("--gamma 0.5", 0.5, ""),
    "lam": ("--lam 0.25", 0.25, "--estimator gae"),
    "bootstrap": ("--bootstrap last", "last", "--estimator gae"),
    "scan": ("--scan rollout", "rollout", "--estimator gae"),
    "options": ("--option beta=2", {"beta": 2.0}, f"--estimator {OWN}:scaled"),
    "teachers": ("--teacher large=0.5 --teacher ref=1", {"large": 0.5, "ref": 1.0}, ""),
    "reward_components": ("--reward-components right,form", ("right", "form"), ""),
    "component_weights": (
        "--component-weights 1,0.5",
        (1.0, 0.5),
        "--reward-components right,form",
    ),
    "reward_scale": ("--reward-scale -1 1 0 2", (-1.0, 1.0, 0.0, 2.0), ""),
    "truncation_penalty": ("--truncation-penalty -0.5", -0.5, ""),
    "group_length_penalty": ("--group-length-penalty 0.5 0 0.1", (0.5, 0.0, 0.1), ""),
    "drop_longer": ("--drop-longer 8", 8, ""),
    "drop_difficulty": ("--drop-difficulty 0.2:0.9", (0.2, 0.9), ""),
    "drop_long_errors": ("--drop-long-errors 64", 64, ""),
    "drop_equal_rewards": ("--drop-equal-rewards", True, ""),
    "drop_single": ("--drop-single", True, ""),
    "drop_truncated": ("--drop-truncated", True, ""),
    "mask_before_norm": ("--mask-before-norm", True, "--drop-truncated"),
    "overlong_penalty": ("--overlong-penalty 16 4 0.5", (16, 4, 0.5), ""),
    "norm_mean": ("--norm-mean batch", "batch", ""),
    "norm_std": ("--norm-std none", "none", ""),
    "reward_clip": ("--reward-clip 5", (-5.0, 5.0), ""),
    "kl_coef": ("--kl-coef 0.125", 0.125, ""),
    "kl_estimator": ("--kl-estimator k3", "k3", ""),
    "kl_target": ("--kl-target 0.5:100", (0.5, 100.0), "--kl-coef 0.1"),
    "whiten_rewards": ("--whiten-rewards", True, ""),
    "whiten_advantages": ("--whiten-advantages", True, ""),
    "advantage_clip": ("--advantage-clip 2.5", 2.5, ""),
    "difficulty_weight": ("--difficulty-weight", True, ""),
    "length_weight": ("--length-weight", True, ""),
    "columns": ("--map reward=r --map group=g", {"reward": "r", "group": "g"}, ""),
    "attempts": ("--attempts all", "all", ""),
    "failures": ("--failures keep", "keep", ""),
    "unit": ("--unit rollout", "rollout", ""),
    "rollout_reward": ("--rollout-reward last", "last", "--map rollout=traj"),
    "nonfinite": ("--nonfinite mask", "mask", ""),
    "emit": ("--emit advantages,kl", ("advantages", "kl"), ""),
    "emit_only": ("--emit-only", True, ""),
    "replace": ("--replace", True, ""),
    "pass_threshold": ("--pass-threshold 0.5", 0.5, ""),
    "is_weight": ("--is-weight geometric", WeightLevel("geometric"), ""),
    "is_cap": ("--is-cap 0.5:2", (0.5, 2.0), "--is-weight token"),
    "is_mask": ("--is-mask 0.5:2", (0.5, 2.0), "--is-weight token"),
    "is_filter": (
        "--is-filter sum:ratio:0.5:2 --is-filter max:k3::0.3",
        (Filter("sequence", "ratio", 0.5, 2.0), Filter("max", "k3", high=0.3)),
        "",
    ),
    "is_policy": ("--is-policy current", "current", "--is-weight token"),
    "top_entropy_quantile": ("--top-entropy-quantile 0.2", 0.2, ""),
    "age_decay": ("--age-decay 0.9", 0.9, ""),
    "numerics": ("--numerics single=raw", Numerics(single="raw"), ""),
}
