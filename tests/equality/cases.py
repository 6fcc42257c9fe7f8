"""The commands that run on both trees; only what users can call, so that they outlast any move."""

from __future__ import annotations

import re
import shlex
import tempfile
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

ALWAYS = (
    "advantages,returns,response_level_rewards,raw_advantages,token_level_rewards,"
    "final_response_mask,group_mean,group_std,group_size,group_pass_rate"
)
"""Columns that every recipe can write."""


BASE = "5e0d738"
"""The commit whose options `OLD_WORDS` has."""
# How BASE writes what these cases have: pattern and replacement of a command line, in this order.
OLD_WORDS: tuple[tuple[str, str | Callable[[re.Match[str]], str]], ...] = (
    (r"^list (estimators|presets) ", r"\1 "),
    (r"^list dumps ", "convert --list "),
    (r"^(export .*rows.jsonl .*)", r"\1 --lossy"),
    (r"^config diff ", "presets diff "),
    (r"^compare .*", lambda line: line[0].replace(" --config ", " --recipe ")),
    (r"--failures mask", "--failures drop --numerics failed=count"),
    (r"--drop-longer ", "--max-len-mask --max-response-length "),
    (
        r"--drop-difficulty (\S+):(\S+)",
        r"--difficulty-mask --difficulty-low \1 --difficulty-high \2",
    ),
    (r"--drop-long-errors ", "--error-max-len-clip "),
    (r"--drop-equal-rewards", "--drop-zero-variance"),
    (r"--reward-clip=(\S+):(\S+)", r"--reward-clip \2 --reward-clip-low \1"),
    (r"(log_ratio|kl)_clamp=([\d.]+)(?= |$)", r"\1_clamp=\2 --numerics \1_clamps=all"),
    (r"(log_ratio|kl)_clamp=k3:(\S+)", r"\1_clamp=\2 --numerics \1_clamps=k3"),
    (r"is_clamp=token:(\S+)", r"is_clamp=\1 --numerics is_clamp_at=token"),
    (r"--is-cap ([\d.]+):(\S+)", r"--is-cap \2 --is-floor \1"),
    (r"--is-mask ([\d.]+):(\S+)", r"--is-mask \1 \2"),
    (r"--is-weight (\w+):normalised", r"--is-weight \1 --is-normalise"),
    (
        r"(--is-filter \S+):(negative|diverging) (--is-filter \S+):\2",
        r"\1 \3 --is-filter-where \2",
    ),
    (r"--kl-target (\S+):(\S+)", r"--kl-target \1 --kl-horizon \2"),
    (r"--pg-clip (\S+):(\S+)", r"--pg-clip-low \1 --pg-clip-high \2"),
    (r"--loss-option weight=(\S+):(\S+)", r"--tis-low \1 --tis-high \2"),
    (r"--loss-option (prob|kl)_mask=(\S+):(\S+)", r"--\1-mask-low \2 --\1-mask-high \3"),
    (r"--loss-option cov=(\S+):(\S+)", r"--cov-low \1 --cov-high \2"),
    (r"--loss-option mask_clipped=true", "--cispo-mask"),
    (r"--loss-option ratio_cap=", "--ratio-cap "),
    (r"--loss-option (positive|negative)=", r"--topr-\1 "),
    (r"--loss-option tau=", "--kimi-tau "),
    (r"--loss-option tau_(pos|neg)=", r"--sapo-tau-\1 "),
    (r"--loss-option prob_mask=", "--prob-mask "),
    (r"--loss-option square_coef=", "--square-coef "),
    (r"--loss-option weight_cap=", "--tis-high "),
    (r"--loss-option beta=", "--dro-beta "),
    (r"--loss-option (share|seed)=", r"--cov-\1 "),
    (r"--loss-option coef=", "--kl-cov-coef "),
    (r"--loss-option (k|lambda)_(pos|neg)=", r"--vespo-\1-\2 "),
    (r"--option ratio_cap=", "--otb-is-cap "),
    (r"--option (rho|c)_cap=", r"--vtrace-\1-cap "),
    *(
        (rf"--option {name}=", f"--{name.replace('_', '-')} ")
        for name in (
            "lambda_policy",
            "lambda_value",
            "length_adaptive_alpha",
            "step_gamma",
            "episode_weight",
            "step_weight",
            "f_norm",
            "ema_decay",
            "episode_domains",
        )
    ),
    *(
        (rf"--option {new}=", f"--numerics {old}=")
        for new, old in (
            ("batch_over", "gdpo_batch"),
            ("order", "rae_order"),
            ("floor", "gar_floor"),
            ("cap", "gar_cap"),
            ("position", "otb_position"),
            ("lone", "otb_lone"),
            ("eps", "otb_eps"),
            *(
                (name, name)
                for name in (
                    "batch_eps",
                    "episodes",
                    "states",
                    "segment_reward",
                    "turn_value",
                    "turn_baseline",
                )
            ),
        )
    ),
)


def old_words(words: list[str]) -> list[str]:
    """The words of a command as BASE understands them."""
    line = shlex.join(words)
    for pattern, text in OLD_WORDS:
        line = re.sub(pattern, text, line)
    return shlex.split(line)


# The size of a file that rlpost wrote: its metadata holds texts and timings.
SIZES = (r"\.input(\.files\[\d+\])?\.bytes$",)


@dataclass(frozen=True)
class Case:
    """Commands that run one after the other in a folder of their own."""

    name: str
    steps: tuple[tuple[str, ...], ...] = ()
    """Words of each command behind `rlpost`; `@NAME` is an input."""
    code: int = 0
    """The exit code of the last command; those before it end with 0."""
    function: str = ""
    """A function of `python_cases` in the place of commands."""
    fresh: bool = False
    """In new processes, as users start them, instead of forks of one that has imported torch."""
    env: dict[str, str] = field(default_factory=dict)
    ignored: tuple[str, ...] = ()
    """Patterns of paths that are not compared."""
    needs: str = ""
    """A module without which the case is left out."""


def case(name: str, *lines: str, **how: object) -> Case:
    """A case from its command lines."""
    return Case(name, tuple(tuple(shlex.split(line)) for line in lines), **how)


def advantages(name: str, source: str, options: str = "", *more: str, **how: object) -> Case:
    """`rlpost advantages` on one input, with a summary."""
    line = f"advantages @{source} out.parquet -q --summary-json summary.json {options}"
    return case(name, line, *more, **how)


# Estimators: what each needs beside its name. One that is not here runs without options.
ESTIMATORS = {
    "gae": "--gamma 0.98 --lam 0.9",
    "gdpo": "--reward-components reward_correctness,reward_format --component-weights 1,0.5 "
    "--unit row",
    "hierarchical_grpo": "--option episode_domains=env",
    "opd": "--teacher ref_log_probs=1.0 --teacher infer_log_probs=0.25",
    "optimal_token_baseline": "--option ratio_cap=2",
    "gigpo": "--option step_gamma=0.95 --option step_weight=0.7",
    "step_reinforce": "--option step_gamma=0.95",
    "reinforce": "--gamma 0.99",
    "agentic_reinforce": "--gamma 0.95",
    "gpg": "--option f_norm=2",
    "rae": "--option ema_decay=0.8",
    "vtrace": "--gamma 0.98 --option rho_cap=0.9 --option c_cap=0.8",
    "turn_gae": "--gamma 0.98 --lam 0.9",
    "mt_grpo": "--option step_gamma=0.95 --option step_weight=0.7",
}
SOURCES = dict.fromkeys(("gigpo", "step_reinforce"), "agentic") | dict.fromkeys(
    ("mt_grpo", "turn_credit", "gar"), "turns"
)
"""Inputs of estimators that need columns which others do not have."""
# The estimators that a preset sets anything for, and one more that it does not.
PRESETS = {
    "nemo-rl": "grpo gdpo reinforce_plus_plus raw_reward gae opd rloo",
    "open-instruct": "grpo centered standard grpo_standard raw",
    "openrlhf": "gae reinforce reinforce_baseline rloo dr_grpo group_norm flash_reinforce",
    "prime-rl": "grpo rae raw",
    "roll": "grpo gae agentic_reinforce gigpo step_reinforce reinforce",
    "slime": "grpo reinforce_plus_plus_baseline gae reinforce_plus_plus",
    "trl": "grpo dr_grpo",
    "verl": "grpo grpo_vectorized rloo_vectorized gae reinforce_pp remax optimal_token_baseline "
    "tir_optimal_token_baseline gpg opo",
}
PRESET_LOSSES = {
    "open-instruct": "ppo cispo", "openrlhf": "ppo gspo", "prime-rl": "dppo",
    "roll": "ppo cispo", "slime": "ppo cispo", "nemo-rl": "ppo",
    "trl": "grpo bnpo dapo dr_grpo gspo luspo sapo cispo vespo",
    "verl": "ppo vanilla gspo cispo geo_mean sapo gpg dppo_tv dppo_kl dro clip_cov kl_cov",
}  # fmt: skip
LOSSES = (
    "ppo pg gspo cispo tis topr kimi15 geo_mean sapo gpg dppo ipo ref_kl dppo_tv dppo_kl dro "
    "clip_cov kl_cov vespo mask_pg rollout_is real fipo oreal kimi_k2"
)
LOSS_OPTIONS = {
    "ppo": "--pg-clip 0.1 --dual-clip 3",
    "gspo": "--pg-clip 0.01:0.02 --loss-option ratio_cap=5",
    "cispo": "--pg-clip 0.2:0.3 --loss-option mask_clipped=true",
    "topr": "--loss-option positive=0.5 --loss-option negative=0.8",
    "tis": "--loss-option weight=0.5:1.2",
    "kimi15": "--loss-option tau=0.3",
    "sapo": "--loss-option tau_pos=2 --loss-option tau_neg=3",
    "dppo": "--loss-option prob_mask=0.05:0.1 --loss-option square_coef=0.01",
    "ipo": "--loss-option prob_mask=0.05",
    "geo_mean": "--pg-clip 0.05",
    "ref_kl": "--loss-option prob_mask=0.05",
    "dppo_tv": "--loss-option prob_mask=0.05 --loss-option weight_cap=1.2",
    "dppo_kl": "--loss-option kl_mask=0.01:0.02",
    "dro": "--loss-option beta=0.4",
    "clip_cov": "--loss-option share=0.05 --loss-option cov=0.1:5 --loss-option seed=3",
    "kl_cov": "--loss-option share=0.05 --loss-option coef=0.3",
    "vespo": "--loss-option k_pos=1 --loss-option lambda_neg=0.5",
}
GAE = "--estimator gae --kl-coef 0.1 --whiten-advantages"
MASKED = "--estimator grpo --kl-coef 0.1 --kl-estimator k3 --reward-clip 0.8"
K1 = "--estimator gae --kl-coef 0.1 --kl-estimator k1"
WEIGHED = "--is-weight sequence --is-cap 2"
BATCH = "--norm-mean batch --norm-std batch"
DEVIATION = "--norm-mean none --norm-std group"
OTB = "--estimator optimal_token_baseline"
# Values of numerics, an input and a recipe in which each of them matters.
NUMERICS = (
    ("batch", "step_domain all", "steps", f"{GAE} {BATCH}"),
    ("outcome", "response", "multiturn", MASKED),
    ("process_rewards", "response token", "rich", ""),
    ("penalty_length", "row", "multiturn", "--overlong-penalty 20 10 1"),
    ("penalty_floor", "factor", "multiturn", "--overlong-penalty 8 4 1"),
    ("norm_eps", "0.1", "ragged_groups", ""),
    ("norm_ddof", "0", "multiturn", ""),
    ("norm_floor", "0.6", "multiturn", ""),
    ("single", "raw normalise", "ragged_groups", DEVIATION),
    ("single", "zero_always", "ragged_groups", BATCH),
    ("constant", "divide", "arithmetic", "--norm-mean batch --norm-std group"),
    ("empty", "leave_out", "odd", ""),
    ("missing_components", "skip", "incomplete", f"--estimator gdpo {ESTIMATORS['gdpo']}"),
    ("clip_stages", "response", "multiturn", MASKED),
    ("log_ratio_clamp", "0.1 never", "wild", K1),
    ("log_ratio_clamp", "k3:40", "wild", K1),
    ("kl_clamp", "k3:0.01 never", "wild", f"{MASKED} --numerics log_ratio_clamp=20"),
    ("kl_clamp", "10", "wild", K1),
    ("kl_policy", "current", "multiturn", MASKED),
    ("kl_credit", "token response none", "multiturn", GAE),
    ("terminal_reward", "last_token", "multiturn", GAE),
    ("observations", "states zero_states policy restart cut", "multiturn", f"{GAE} --gamma 0.9"),
    ("whiten_eps", "0.1", "multiturn", GAE),
    ("whiten_floor", "clamp", "multiturn", f"{GAE} --numerics whiten_eps=0.5"),
    ("whiten_ddof", "0", "multiturn", GAE),
    ("whiten_scale", "none", "multiturn", GAE),
    ("correction", "first", "wild", f"{GAE} --is-filter token:k1:-0.3:0.3"),
    ("is_clamp", "0.05 never", "wild", WEIGHED),
    ("is_clamp", "token:0.05", "multiturn", WEIGHED),
    ("is_filter_clamp", "0.05", "wild", "--is-filter token:k1::20"),
    ("is_filter_clamp", "never", "wild", "--is-filter token:k1::60"),
    ("is_observations", "one ratio", "multiturn", "--is-weight token --is-cap 2"),
)
# Options of estimators likewise.
OPTIONS = (
    ("segment_reward", "last", "multiturn", "--estimator agentic_reinforce --kl-coef 0.1"),
    ("batch_eps", "0.1", "agentic", f"--estimator gdpo {ESTIMATORS['gdpo']}"),
    ("position", "policy_token", "multiturn", OTB),
    ("lone", "none", "ragged_groups", OTB),
    ("eps", "0.1", "multiturn", OTB),
    ("episodes", "row", "agentic", "--estimator gigpo"),
    ("states", "batch", "agentic", "--estimator gigpo"),
    ("order", "group", "shuffled", "--estimator rae"),
    ("batch_over", "tokens", "agentic", f"--estimator gdpo {ESTIMATORS['gdpo']}"),
    ("turn_value", "last", "multiturn", "--estimator turn_gae"),
    ("turn_baseline", "reward", "turns", "--estimator mt_grpo"),
    ("floor", "0.2", "turns", "--estimator gar"),
    ("cap", "1.1", "turns", "--estimator gar"),
)
LEFT_OUT = {"default": "the name of rlpost's own numbers, which most cases have"}
MASKS = {
    "max length": ("steps", "--drop-longer 24"),
    "difficulty": ("steps", "--drop-difficulty 0.2:0.9"),
    "error length": ("basic", "--drop-long-errors 20"),
    "equal rewards": ("arithmetic", "--drop-equal-rewards"),
    "truncated": ("steps", "--drop-truncated"),
    "before norm": ("calculator", "--drop-truncated --drop-equal-rewards --mask-before-norm"),
    "several": (
        "steps",
        "--drop-truncated --drop-difficulty 0.1:0.95 --drop-longer 24",
    ),
}
REWARDS = {
    "components": "--reward-components reward_correctness,reward_format --component-weights 1,0.3",
    "scale": "--reward-scale 0 1 -1 1",
    "truncation factor": "--truncation-penalty 0.5",
    "truncation reward": "--truncation-penalty -0.5",
    "group length": "--group-length-penalty 0.2 0 0",
    "overlong": "--overlong-penalty 20 10 1",
    "clip": "--reward-clip 0.7",
    "clip of two sides": "--reward-clip=-0.2:0.7",
    "whitened": "--whiten-rewards --kl-coef 0.1",
}


def all_cases(estimators: list[str]) -> list[Case]:
    """All cases.

    Args:
        estimators: the names that the old tree lists.
    """
    return [
        *of_estimators(estimators), *of_presets(), *of_recipes(), *of_corrections(),
        *of_numerics(), *of_inputs(), *of_losses(), *of_reading(), *of_replays(), *of_dumps(),
        *of_exports(), *of_lists(), *of_python(),
        *of_ray(),
    ]  # fmt: skip


def of_estimators(names: list[str]) -> list[Case]:
    made = []
    for name in names:
        options = f"--estimator {name} {ESTIMATORS.get(name, '')}"
        every = f"--emit {ALWAYS},kl,is_weight --is-weight token --is-cap 2"
        made += [
            advantages(
                f"estimator {name}", f"{SOURCES.get(name, 'agentic')}.parquet", f"{options} {every}"
            ),
            advantages(
                f"estimator {name} with KL, whitening, clip, weights",
                f"{SOURCES.get(name, 'steps')}.parquet",
                f"{options} --kl-coef 0.1 --kl-estimator k2 --whiten-advantages "
                f"--advantage-clip 1 --length-weight --emit {ALWAYS},sample_weight,kl",
            ),
        ]
    for source in ("basic", "extreme", "multiturn", "ragged_groups", "rich", "odd"):
        made += [
            advantages(f"{name} on {source}", f"{source}.parquet", f"--estimator {name} {extra}")
            for name, extra in (("grpo", ""), ("gae", "--kl-coef 0.05"), ("rloo", ""))
        ]
    made += [
        advantages("gae with two lambdas", "steps.parquet", "--estimator gae "
                   "--option lambda_policy=0.9 --option lambda_value=0.99"),
        advantages("gae with adaptive lambda", "steps.parquet", "--estimator gae "
                   "--option length_adaptive_alpha=0.2"),
        advantages("gae with values behind truncated ends", "rich.parquet", "--estimator gae "
                   "--gamma 0.9 --bootstrap last"),
        advantages("opd with teachers of its own", "rich.parquet", "--estimator opd "
                   "--teacher teacher_a=1 --teacher teacher_b=0.5 --kl-estimator k3"),
        advantages("teachers beside rewards", "rich.parquet", "--estimator grpo "
                   "--teacher teacher_a=0.3"),
        advantages("own estimator", "basic.parquet", "--estimator ../../inputs/own.py:midrange"),
    ]  # fmt: skip
    return made


def of_presets() -> list[Case]:
    made = []
    for preset, names in PRESETS.items():
        for name in names.split():
            options = ESTIMATORS.get(name, "") if name in ("gdpo", "opd") else ""
            agentic = name in ("gigpo", "step_reinforce", "agentic_reinforce")
            made.append(
                advantages(
                    f"preset {preset} {name}",
                    "agentic.parquet" if agentic else "steps.parquet",
                    f"--preset {preset} --estimator {name} {options} --kl-coef 0.05 "
                    f"--drop-truncated --is-weight token --is-cap 3 "
                    f"--emit {ALWAYS},kl,sample_mask,is_weight",
                )
            )
        made.append(case(f"config of {preset}", f"config show --preset {preset} --format json"))
        made.append(
            case(
                f"preset {preset} as TOML",
                f"presets show {preset}",
                f"presets diff {preset} default --format json",
            )
        )
    return made


def of_recipes() -> list[Case]:
    made = [
        advantages(
            f"sample mask {name}", f"{source}.parquet", f"{options} --emit {ALWAYS},sample_mask"
        )
        for name, (source, options) in MASKS.items()
    ]
    made += [
        advantages(f"rewards {name}", "steps.parquet", f"{options} --emit {ALWAYS}")
        for name, options in REWARDS.items()
    ]
    made += [
        advantages(
            f"norm of {mean} mean, {std} std", "steps.parquet",
            f"--norm-mean {mean} --norm-std {std} --emit {ALWAYS}",
        )
        for mean in ("batch", "group", "others", "running", "none")
        for std in ("batch", "group", "running", "none")
        if mean != "others" or std in ("group", "none")
    ]  # fmt: skip
    made += [
        advantages(
            f"KL {name}", "arithmetic.parquet",
            f"--kl-coef 0.05 --kl-estimator {name} --estimator gae --emit advantages,returns,kl",
        )
        for name in ("k1", "abs", "k2", "k3", "k4")
    ]  # fmt: skip
    step = "advantages @steps.parquet {0}.parquet --norm-mean running --norm-std running"
    line = f"{step} --state state.json -q --summary-json {{0}}.json"
    made += [
        advantages("adaptive KL", "arithmetic.parquet", "--kl-coef 0.1 "
                   "--kl-target 0.01:1000 --emit advantages,kl,token_level_rewards"),
        case("running norm kept over calls", line.format("first"), line.format("second")),
        advantages("weights", "arithmetic.parquet", "--difficulty-weight --length-weight"),
        advantages("rollout id without a rule", "rich.parquet", "--map rollout=pair", code=3),
        *(
            advantages(
                f"rollout {rule}", "rich.parquet", f"--map rollout=pair --rollout-reward {rule}"
            )
            for rule in ("last", "sum", "mean")
        ),
        advantages("process rewards", "rich.parquet", "--numerics process_rewards=token"),
        advantages("emit only", "steps.parquet", "--emit-only"),
        advantages("pass threshold", "steps.parquet", "--pass-threshold 0.4 "
                   "--emit group_pass_rate,group_size"),
        advantages("recipe of a file", "steps.parquet", "--config ../../inputs/gae.toml"),
        advantages("recipe of a file with a preset", "steps.parquet",
                   "--config ../../inputs/verl.toml"),
        advantages("recipe of variables", "steps.parquet", env={
            "RLPOST_ESTIMATOR": "gae", "RLPOST_KL_COEF": "0.1", "RLPOST_EMIT": "advantages,kl"}),
        case("config of variables", "config show --estimator gae --format json",
             env={"RLPOST_KL_COEF": "0.1"}),
        advantages("replace", "steps.parquet", "", "advantages out.parquet again.parquet -q "
                   "--estimator rloo --replace --summary-json again.json"),
        advantages("small chunks", "arithmetic.parquet", f"{GAE} --chunk-tokens 500 --workers 2"),
    ]  # fmt: skip
    return made


def of_corrections() -> list[Case]:
    made = []
    for level in ("token", "segment", "geometric", "sequence"):
        for name, bound in (
            ("cap", "--is-cap 1.05"), ("cap and floor", "--is-cap 0.95:1.05"),
            ("mask", "--is-mask 0.9:1.1"), ("normalised", "--is-cap 1.05"),
        ):  # fmt: skip
            weight = level + ":normalised" * (name == "normalised")
            options = f"--is-weight {weight} {bound} --emit advantages,is_weight"
            made.append(advantages(f"weight {level} {name}", "steps.parquet", options))
    for level in ("token", "segment", "geometric", "sequence", "max"):
        for measure in ("ratio", "diff", "k1", "k2", "k3", "tv", "error"):
            low, high = {"ratio": ("0.9", "1.1"), "error": ("", "1.2")}.get(measure, ("", "0.05"))
            if level == "sequence" and measure in ("tv", "error"):  # sums over all tokens
                low, high = "", {"tv": "1", "error": "12"}[measure]
            options = f"--is-filter {level}:{measure}:{low}:{high}"
            emit = "--emit advantages,final_response_mask"
            made.append(
                advantages(f"filter {level} {measure}", "steps.parquet", f"{options} {emit}")
            )
    made += [
        advantages(
            f"filter of {where} tokens", "multiturn.parquet",
            f"--is-filter token:ratio:0.9:1.1{where} --is-filter max:k3::0.05{where} "
            f"--is-weight token --is-cap 2 --emit advantages,is_weight,final_response_mask",
        )
        for where in ("", ":negative", ":diverging")
    ]  # fmt: skip
    return made


def of_ray() -> list[Case]:
    # Sockets of Ray need short paths.
    env = {"RAY_USAGE_STATS_ENABLED": "0", "TMPDIR": tempfile.gettempdir()}
    how = {"fresh": True, "needs": "ray", "env": env}
    line = f"advantages @parts out --engine ray {GAE} --summary-json summary.json -q"
    return [
        case("Ray: files", line, **how),
        Case("Ray: a dataset", function="ray_dataset", **how),
    ]


def of_numerics() -> list[Case]:
    return [
        advantages(
            f"{table} {name}={value}", f"{source}.parquet",
            f"{options} --{table} {name}={value} --emit {ALWAYS}"
            + ",is_weight" * ("--is-weight" in options),
        )
        for table, rows in (("numerics", NUMERICS), ("option", OPTIONS))
        for name, values, source, options in rows
        for value in values.split()
    ]  # fmt: skip


def of_inputs() -> list[Case]:
    several = "-q --summary-json summary.json --estimator gae --kl-coef 0.1 --whiten-advantages"
    return [
        advantages("rows in another order", "shuffled.parquet", GAE),
        advantages("large lists of doubles", "large_lists.parquet", GAE),
        advantages("fixed-size lists", "fixed_lists.parquet", f"{GAE} --map mask=mask"),
        advantages("columns by --map", "foreign.parquet", "--map reward=score --map group=uid "
                   "--map mask=loss_mask --map batch=epoch"),
        advantages("no batch", "steps.parquet", "--map batch=none --estimator reinforce_pp"),
        advantages("numbers that are none, masked", "nonfinite.parquet",
                   f"{GAE} --nonfinite mask --emit advantages,returns,raw_advantages,sample_mask"),
        advantages("failed responses that statistics count", "failing.parquet",
                   "--attempts all --failures mask"),
        advantages("failed responses that count", "failing.parquet",
                   "--attempts all --failures keep"),
        advantages("failed responses of reward 0", "failing.parquet",
                   "--attempts all --failures zero"),
        advantages("the newest attempt", "failing.parquet", "--attempts newest"),
        advantages("numbers that are none, refused", "nonfinite.parquet", "", code=3),
        case("several files to a folder",
             f"advantages @parts/part-0.parquet @parts/part-1.parquet out {several}"),
        case("a folder", f"advantages @parts out {several}", "verify out --format json"),
        case("partitions", f"advantages @hive out {several}"),
        case("a glob", f"advantages '@parts/part-[12].parquet' out {several}"),
        advantages("KL and whitening beside the output", "steps.parquet", GAE),
        case("columns of responses alone", "advantages @steps.parquet out.parquet -q --emit "
             "response_advantage,response_level_rewards --summary-json summary.json"),
        case("the passes", "advantages @steps.parquet out.parquet --plan"),
        case("calculator with all", "advantages @calculator.parquet out.parquet -q --estimator gae "
             "--kl-coef 0.05 --whiten-advantages --length-weight --drop-truncated --is-weight "
             "token --is-cap 2 --summary-json summary.json", "verify out.parquet --format json",
             "inspect out.parquet --format json", ignored=SIZES),
        case("a missing column", "advantages @arithmetic.parquet out.parquet --estimator gigpo",
             code=3),
        case("a missing file", "advantages @absent.parquet out.parquet", code=4),
        case("a wrong option", "advantages @arithmetic.parquet out.parquet --estimator none",
             code=2),
        case("new processes: grpo", "advantages @arithmetic.parquet out.parquet --estimator grpo "
             "--summary-json -", fresh=True),
        case("new processes: gae", f"advantages @calculator.parquet out.parquet {GAE} "
             "--summary-json -", "verify out.parquet --format json", fresh=True),
        case("new processes: loss", "loss @arithmetic.parquet --format json", fresh=True),
    ]  # fmt: skip


def of_losses() -> list[Case]:
    made = []
    for name in LOSSES.split():
        line = f"loss @arithmetic.parquet --loss {name} --kl-loss-coef 0.1 --format json"
        made.append(case(f"loss {name}", line))
        if name in LOSS_OPTIONS:
            out = f"loss @steps.parquet out.parquet -q --loss {name} {LOSS_OPTIONS[name]}"
            made.append(
                case(f"loss {name} with options, to a file", f"{out} --summary-json summary.json")
            )
    for preset, names in PRESET_LOSSES.items():
        for name in names.split():
            line = f"loss @steps.parquet out.parquet --preset {preset} --loss {name} --format json"
            line = f"{line} --kl-loss-coef 0.01"
            made.append(case(f"loss {name} of {preset}", line))
    for how, more in (
        ("token-mean", ""), ("seq-mean-token-sum", ""), ("seq-mean-token-mean", "--agg-rows all"),
        ("seq-mean-token-sum-norm", ""),
        ("seq-mean-token-sum-norm", "--agg-length 100 --agg-norm rows"),
    ):  # fmt: skip
        line = f"loss @calculator.parquet --aggregation {how} {more} --format json"
        made.append(case(f"loss by {how} {more}".strip(), line))
    for name in ("k1", "abs", "k2", "k3", "k4"):
        line = f"loss @steps.parquet --kl-loss-coef 0.2 --kl-loss-estimator {name} --format json"
        made.append(case(f"KL loss {name}", f"{line} --kl-loss-ratio"))
    enriched = "advantages @steps.parquet in.parquet -q --estimator gae --length-weight"
    made += [
        case("loss of an enriched file", f"{enriched} --drop-truncated --is-weight token "
             "--is-cap 2 --is-filter token:ratio:0.8:1.25 "
             "--emit advantages,sample_mask,sample_weight,is_weight,final_response_mask",
             "loss in.parquet --map mask=final_response_mask --format json"),
        case("loss of made advantages", "loss @steps.parquet out.parquet --estimator gae "
             "--kl-coef 0.1 --whiten-advantages --drop-truncated --format json"),
        case("loss by the engine", "loss @calculator.parquet --behaviour infer --format json"),
        case("loss of numbers that are none", "loss @nonfinite.parquet --nonfinite mask "
             "--format json"),
        case("loss of a recipe file", "loss @steps.parquet --config ../../inputs/gae.toml "
             "--format json"),
        case("sweep of losses", "loss @arithmetic.parquet --sweep loss=ppo,gspo,cispo "
             "--sweep pg_clip=0.1,0.2 --format json"),
        case("sweep of aggregations", "loss @calculator.parquet --format json --sweep "
             "aggregation=token-mean,seq-mean-token-sum,seq-mean-token-mean"),
        case("sweep of clips", "loss @steps.parquet --sweep dual_clip=never,2,3 "
             "--sweep pg_clip=0.1,0.3 --format json"),
    ]  # fmt: skip
    return made


def of_reading() -> list[Case]:
    sources = (
        "arithmetic calculator basic agentic steps extreme multiturn ragged_groups rich nonfinite "
        "shuffled large_lists odd parts hive"
    )
    folders = ("parts", "hive")
    made = []
    for name in sources.split():
        file = name if name in folders else f"{name}.parquet"
        made.append(case(f"inspect {name}", f"inspect @{file} --format json"))
    for name in ("arithmetic", "calculator", "steps", "agentic", "nonfinite"):
        file = f"@{name}.parquet"
        made.append(
            case(f"report {name}", f"report {file} report.html -q --examples 3 --seed 7")
        )  # fmt: skip
    made += [
        case("report of an enriched file", f"advantages @arithmetic.parquet in.parquet -q {GAE}",
             "report in.parquet report.html -q"),
        case("inspect with a map", "inspect @calculator.parquet --fail-on warning --format json "
             "--map infer_log_probs=old_log_probs", code=1),
        case("inspect foreign names", "inspect @foreign.parquet --format json --map reward=score "
             "--map group=uid --map mask=loss_mask --map batch=epoch --pass-threshold 0.5"),
        case("inspect an enriched file", f"advantages @steps.parquet in.parquet -q {GAE}",
             "inspect in.parquet --format json",
             "inspect in.parquet --top advantage -n 2 --format json", ignored=SIZES),
        case("responses", "inspect @arithmetic.parquet --prompt arithmetic-20 --format json",
             "inspect @calculator.parquet --row 300 --format json",
             "inspect @arithmetic.parquet --top kl -n 3 --format json",
             "inspect @arithmetic.parquet --worst --format json"),
        case("compare estimators", "compare @arithmetic.parquet --estimator grpo --estimator rloo "
             "--estimator dr_grpo --format json"),
        case("compare presets", "compare @calculator.parquet --preset verl --preset trl "
             "--preset openrlhf --estimator grpo --format json"),
        case("compare recipes", "compare @steps.parquet --config ../../inputs/gae.toml "
             "--config ../../inputs/verl.toml --format json -n 9"),
        case("compare scans", "compare @arithmetic.parquet --estimator gae --estimator reinforce "
             "--format json"),
        case("compare a folder", "compare @parts --estimator grpo --estimator opo --format json"),
        case("compare files", "advantages @steps.parquet a.parquet -q --estimator gae",
             "advantages @steps.parquet b.parquet -q --estimator grpo --kl-coef 0.1",
             "advantages @steps.parquet c.parquet -q --estimator rloo",
             "compare a.parquet b.parquet c.parquet --format json",
             "compare a.parquet --config ../../inputs/gae.toml --format json"),
        case("verify what was centred", "advantages @steps.parquet in.parquet -q --norm-std none",
             "verify in.parquet --format json"),
        case("verify what was corrected", "advantages @steps.parquet in.parquet -q --is-weight "
             "token --is-cap 1.1 --is-filter sequence:k3::0.1 --difficulty-weight",
             "verify in.parquet --format json"),
    ]  # fmt: skip
    return made


def of_replays() -> list[Case]:
    emit = "--emit advantages,returns,token_level_rewards,response_level_rewards,kl"
    made = []
    for source, recipe, other in (
        ("steps", "--preset verl --estimator grpo", "--preset trl --estimator grpo"),
        ("arithmetic", "--preset openrlhf --estimator reinforce --kl-coef 0.05", "--kl-coef 0.1"),
        ("multiturn", f"--preset default {MASKED}", "--kl-estimator k2"),
    ):
        record = f"advantages @{source}.parquet in.parquet -q {recipe} {emit}"
        replay = f"replay in.parquet --format json {recipe}"
        made += [
            case(f"replay {recipe} on {source}", record, replay),
            case(f"replay {recipe} with {other}", record, f"{replay} {other}", code=1),
        ]
    enriched = f"advantages @steps.parquet in.parquet -q {GAE} {emit}"
    return [
        *made,
        case("replay with a search", enriched, f"replay in.parquet --format json {GAE}"),
    ]  # fmt: skip


def of_dumps() -> list[Case]:
    convert = "convert @dumps/{} out.parquet --format json {}"
    made = [
        case(f"convert {name}", convert.format(name, options))
        for name, options in {
            "nemo_rl": "", "nemo_dynamic": "--group-size 4", "slime_rollout/rollout_data": "",
            "slime_train/train_data": "",
            "prime_rl_traces/traces": "", "prime_rl_tokens/token_exports": "",
            "roll_rollout": "", "roll_agentic": "", "open_instruct": "", "roll_board": "",
            "trl": "", "ms_swift": "", "verl": "",
            "mine.jsonl": "--from jsonl --map reward=scores.total "
            "--map group=task.id",
        }.items()
    ]  # fmt: skip
    made += [
        case("convert to a folder", "convert @dumps/verl out --format json"),
        case("advantages of a dump", "advantages @dumps/nemo_rl out.parquet -q --preset nemo-rl "
             "--estimator grpo --summary-json summary.json"),
        case("loss of a dump", "loss @dumps/nemo_rl --map log_probs=old_log_probs "
             "--map old_log_probs=infer_log_probs --format json"),
        case("inspect a dump that was converted", "convert @dumps/slime_train/train_data "
             "in.parquet -q", "inspect in.parquet --format json", ignored=SIZES),
    ]  # fmt: skip
    return made


def of_exports() -> list[Case]:
    export = "export in.parquet {} --to {} -q --summary-json export.json"
    return [
        case("export jsonl", f"advantages @arithmetic.parquet in.parquet -q {GAE} --drop-truncated "
             "--emit advantages,returns,sample_mask",
             export.format("rows.jsonl", "jsonl"),
             "convert rows.jsonl back.parquet --from jsonl --format json"),
        case("export numbers that are none", "export @nonfinite.parquet rows.jsonl --to jsonl "
             "-q --summary-json export.json"),
        case("export slime", "convert @dumps/slime_train/train_data dump.parquet -q",
             "advantages dump.parquet in.parquet -q --emit advantages,returns",
             export.format("samples", "slime"), "convert samples back.parquet --format json"),
    ]  # fmt: skip


def of_lists() -> list[Case]:
    return [
        case("what exists", "list estimators --format json", "list presets --format json",
             "config schema", "list dumps --format json", "config show --format json",
             "config diff verl trl --format json"),
    ]  # fmt: skip


def of_python() -> list[Case]:
    from tests.equality import python_cases

    return [Case(f"Python: {name}", function=name) for name in python_cases.NAMES]
