"""Hypothesis strategies for rollouts, and their layout as Arrow tables.

Hypothesis decides the shape (groups, lengths, masks, kinds of reward); token values come from a
seeded generator, which keeps examples quick to draw. Token values are ones that float16 holds, and
rewards and other scalars ones that float32 holds, so no table layout rounds them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache, partial
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from hypothesis import strategies as st
from reference import Response

from rlpost.io.arrow import dtype_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

COMPONENTS = ("correctness", "format")
STATES = ("s0", "s1", "s2")

TOKEN_COLUMNS: dict[str, str] = {
    "old_log_probs": "old",
    "ref_log_probs": "ref",
    "infer_log_probs": "infer",
    "log_probs": "current",
    "values": "values",
    "token_rewards": "token_rewards",
    "sum_pi_squared": "sum_pi_squared",
}
SCALAR_COLUMNS: dict[str, tuple[str, pa.DataType]] = {
    "prompt_id": ("group", pa.string()),
    "reward": ("reward", pa.float32()),
    "step": ("batch", pa.int64()),
    "domain": ("domain", pa.string()),
    "difficulty": ("difficulty", pa.float32()),
    "reward_baseline": ("reward_baseline", pa.float32()),
    "next_value": ("next_value", pa.float32()),
    "finish_reason": ("finish_reason", pa.string()),
    "failure": ("failure", pa.string()),
    "trajectory": ("traj_id", pa.string()),  # no name of a role: rows count unless it is mapped
    "turn": ("turn", pa.int64()),
    "state_id": ("state_id", pa.string()),
    "step_score": ("step_score", pa.float32()),
    "episode_score": ("episode_score", pa.float32()),
    "turn_reward": ("turn_reward", pa.float32()),
    "win_rate": ("win_rate", pa.float32()),
    "hack": ("hack", pa.bool_()),
}
NULLABLE = ("turn_reward", "win_rate")


# Masks and rewards

MASKS: dict[str, Callable[[int, np.random.Generator], np.ndarray]] = {
    "ones": lambda n, _: np.ones(n),
    "gaps": lambda n, rng: rng.random(n) < 0.6,
    "turns": lambda n, rng: (np.arange(n) + rng.integers(4)) // 3 % 2 == 0,
    "leading zeros": lambda n, rng: np.arange(n) >= rng.integers(n + 1),
    "trailing zeros": lambda n, rng: np.arange(n) < rng.integers(n + 1),
    "zeros": lambda n, _: np.zeros(n),
}

_FINE = st.floats(-4, 4, width=32)
_EXTREME = st.sampled_from([-1e8, -1e-8, 0.0, 1e-8, 1.0, 1e8])

# Strategies are made once: Hypothesis validates each one that it has not met.


@cache
def rewards(kind: str, size: int) -> st.SearchStrategy[list[float]]:
    """The rewards of one group; `near` differ in their last bits only."""
    several = {
        "binary": st.sampled_from([0.0, 1.0]),
        "real": _FINE,
        "near": st.sampled_from([0.7, 0.70001]),
        "extreme": _EXTREME,
    }
    if kind == "constant":
        return _FINE.map(lambda x: [_single(x)] * size)
    return st.lists(several[kind].map(_single), min_size=size, max_size=size)


def _single(x: float) -> float:
    return float(np.float32(x))


def _halves(xs: np.ndarray) -> list[float]:
    """The nearest float16 values."""
    return xs.clip(-6e4, 6e4).astype(np.float16).astype(np.float64).tolist()


def _log_probs(rng: np.random.Generator, n: int, *, extreme: bool) -> np.ndarray:
    usual = -rng.exponential(0.8, n)
    odd = rng.choice([0.0, -1e-6, -17.0, -60.0, -300.0], n)
    return np.where(rng.random(n) < 0.3, odd, usual) if extreme else usual


def _token_columns(rng: np.random.Generator, n: int, *, extreme: bool) -> dict[str, list[float]]:
    """All token columns of one response; the four policies differ a little, or wildly."""
    old = _log_probs(rng, n, extreme=extreme)
    width = 0.3 if not extreme else rng.choice([0.01, 30.0])
    near = {k: np.minimum(old + rng.normal(0, width, n), 0) for k in ("ref", "infer", "current")}
    pi = np.exp(old)
    return {
        "old": _halves(old),
        **{name: _halves(xs) for name, xs in near.items()},
        "values": _halves(rng.normal(0, 1000 if extreme else 1, n)),
        "token_rewards": _halves(rng.choice([0, 0, 0, 0.5, -0.25], n)),
        "sum_pi_squared": _halves(pi**2 + (1 - pi) ** 2 * rng.random(n)),
    }


# Rollouts


_MASKS = st.sampled_from(["ones", "ones", *MASKS])
_SEEDS = st.integers(0, 2**32 - 1)
_up_to = cache(partial(st.integers, 1))
_one_of = cache(st.sampled_from)


# Mostly few tokens; but also around the 16 of a block of the scan, and more than its 16 blocks.
LENGTHS = (*2 * (0, 1, 1, *range(2, 13), 15, 16, 17, 33), 261)
_lengths = cache(lambda most: st.sampled_from([n for n in LENGTHS if n <= most]))


def response(draw: st.DrawFn, reward: float, max_tokens: int, *, extreme: bool) -> Response:
    """One response with every role filled; its group, batch and turn are the caller's."""
    n = draw(_lengths(max_tokens))
    mask = draw(_MASKS)
    rng = np.random.default_rng(draw(_SEEDS))
    difficulty, baseline, step, episode, ahead = (_single(x) for x in rng.normal(0.5, 0.5, 5))
    return Response(
        group="",
        reward=reward,
        mask=MASKS[mask](n, rng).astype(int).tolist(),
        **_token_columns(rng, n, extreme=extreme),
        teachers={"large": _halves(_log_probs(rng, n, extreme=extreme))},
        components={name: float(rng.integers(3)) / 2 for name in COMPONENTS},
        difficulty=difficulty,
        reward_baseline=baseline,
        next_value=ahead,
        finish_reason=str(rng.choice(["stop", "length"])),
        state_id=str(rng.choice(STATES)),
        step_score=step,
        episode_score=episode,
        turn_reward=float(rng.integers(4)) / 4 if rng.random() < 0.8 else None,
        win_rate=float(rng.integers(5)) / 4 if rng.random() < 0.8 else None,
        hack=bool(rng.random() < 0.2),
    )


def group_of(
    draw: st.DrawFn, *, max_group_size: int, max_tokens: int, extreme: bool
) -> list[Response]:
    """One group; its rows are turns of trajectories, whose rows share an episode score."""
    size = draw(_up_to(max_group_size))
    kinds = ("binary", "real", "constant", "near", *(["extreme"] if extreme else []))
    drawn = draw(rewards(draw(_one_of(kinds)), size))
    turns = draw(_up_to(3))
    rows: list[Response] = []
    for i, reward in enumerate(drawn):
        row = response(draw, reward, max_tokens, extreme=extreme)
        episode = rows[i - i % turns].episode_score if i % turns else row.episode_score
        row = replace(row, traj_id=f"t{i // turns}", turn=i % turns, episode_score=episode)
        rows.append(row)
    return rows


@cache
@st.composite
def rollouts(
    draw: st.DrawFn,
    *,
    max_groups: int = 4,
    max_group_size: int = 6,
    max_tokens: int = 261,
    max_batches: int = 3,
    domains: Sequence[str] = ("math", "code"),
    extreme: bool = False,
) -> list[Response]:
    """Groups of 1..max_group_size over some batches, in file order or interleaved at random.

    The same prompt may appear in several batches, as several groups. A group has one domain.
    """
    rows: list[Response] = []
    for batch in range(draw(_up_to(max_batches))):
        for prompt in range(draw(_up_to(max_groups))):
            domain = draw(_one_of((*domains,)))
            members = group_of(
                draw, max_group_size=max_group_size, max_tokens=max_tokens, extreme=extreme
            )
            rows += [
                replace(
                    r,
                    group=f"p{prompt}",
                    batch=batch,
                    domain=domain,
                    traj_id=f"{batch}-{r.traj_id}",  # a rollout is of one batch
                )
                for r in members
            ]
    if draw(st.booleans()):
        rng = np.random.default_rng(draw(_SEEDS))
        rows = [rows[i] for i in rng.permutation(len(rows))]
    return rows


# Recipes

ESTIMATORS = (
    "grpo", "reinforce", "reinforce_pp", "reinforce_pp_baseline", "gae", "raw", "dr_grpo", "rloo",
    "remax", "opo", "gpg", "grpo_passk", "max_rl", "gdpo", "hierarchical_grpo", "agentic_reinforce",
    "step_reinforce", "gigpo", "mt_grpo", "turn_credit", "turn_gae", "gar",
)  # fmt: skip
# What an estimator cannot do without.
BY_TRAJECTORY = {"columns": {"rollout": "trajectory"}}
ESSENTIALS: dict[str, dict[str, object]] = {
    "gdpo": {"reward_components": COMPONENTS, "component_weights": (1.0, 0.5)},
    "hierarchical_grpo": {"options": {"episode_domains": ["math"]}},
    "opd": {"teachers": {"ref_log_probs": 0.5}},
    "gigpo": BY_TRAJECTORY,
    "step_reinforce": BY_TRAJECTORY,
    "mt_grpo": {**BY_TRAJECTORY, "rollout_reward": "sum"},
    "turn_credit": {**BY_TRAJECTORY, "rollout_reward": "mean"},
}
# These normalise by themselves, within groups.
SELF_NORMALISED = ("gdpo", "grpo_passk", "gigpo", "mt_grpo")

JOINING = ("mt_grpo", "turn_credit")
OF_RESPONSES = (
    "kl_target", "drop_difficulty", "drop_equal_rewards", "drop_single", "drop_truncated",
    "drop_longer", "drop_long_errors", "mask_before_norm", "difficulty_weight", "length_weight",
    "overlong_penalty",
)  # fmt: skip
"""What counts rollouts where rows are joined; the references here count rows."""

# Mean and deviation of reward normalisation. Left out are pairs where equal rewards are far from
# the mean that is taken from them: they would be divided by next to nothing.
SCOPES = (
    ("batch", "batch"), ("group", "batch"), ("group", "running"), ("running", "running"),
    *((mean, std) for mean in ("batch", "group", "running", "none") for std in ("group", "none")),
)  # fmt: skip


@cache
def recipes(
    estimators: Sequence[str] = ESTIMATORS, *, gammas: Sequence[float] = (1.0, 0.9, 0.0)
) -> st.SearchStrategy[dict[str, object]]:
    """The fields of a recipe, of stages 1 to 10, that differ from the defaults.

    Bounds are ones that no mean of a few rewards is next to, so that no comparison hangs on
    the last bit of a sum.
    """
    often, on = st.sampled_from([False, False, True]), st.sampled_from([True])
    numerics = {
        "norm_eps": st.sampled_from([1e-6, 1e-4]),
        "whiten_eps": st.sampled_from([1e-8, 1e-5]),
        "log_ratio_clamp": st.sampled_from([40.0, 0.5]),
        "batch": st.sampled_from(["step", "step_domain", "all"]),
    }
    masks = st.fixed_dictionaries(
        {},
        optional={
            "drop_longer": st.sampled_from([1, 3, 8]),
            "drop_difficulty": st.tuples(
                st.sampled_from([0.1, 0.3]), st.sampled_from([0.72, 0.95])
            ),
            "drop_long_errors": st.sampled_from([1, 4, 9]),
            "drop_equal_rewards": on,
            "drop_single": on,
            "drop_truncated": on,
            "mask_before_norm": on,
        },
    )
    kl = st.fixed_dictionaries(
        {"kl_coef": st.sampled_from([0.1, 1.0])},
        optional={
            "kl_target": st.tuples(
                st.sampled_from([0.05, 3.0]), st.sampled_from([4.0, 100.0, None])
            ),
        },
    )
    others = st.fixed_dictionaries(
        {
            "estimator": st.sampled_from(estimators),
            "kl_estimator": st.sampled_from(["k1", "abs", "k2", "k3"]),
        },
        optional={
            "gamma": st.sampled_from(gammas),
            "lam": st.sampled_from([0.0, 0.5, 1.0]),
            "overlong_penalty": st.sampled_from([(8, 4, 1.0), (5, 5, 0.3)]),
            "reward_clip": st.sampled_from([0.4, 1.1]),
            "whiten_rewards": often,
            "whiten_advantages": st.booleans(),
            "advantage_clip": st.sampled_from([0.3, 1.3]),
            "difficulty_weight": often,
            "length_weight": often,
            "numerics": st.fixed_dictionaries({}, optional=numerics),
        },
    )
    norms = st.sampled_from([{"norm_mean": mean, "norm_std": std} for mean, std in SCOPES])
    none: st.SearchStrategy[dict[str, object]] = st.just({})
    parts = st.tuples(others, none | norms, none | masks, none | kl)
    return parts.map(lambda found: fitting({k: v for part in found for k, v in part.items()}))


def fitting(options: dict[str, object]) -> dict[str, object]:
    """The options with what their estimator needs, and without what it does not take."""
    name = str(options["estimator"])
    if name in JOINING:
        options = {k: v for k, v in options.items() if k not in OF_RESPONSES}
    if name in SELF_NORMALISED:
        options = {k: v for k, v in options.items() if k not in ("norm_mean", "norm_std")}
    return {**ESSENTIALS.get(name, {}), **options}


# Tables


@dataclass(frozen=True)
class Layout:
    """How a table stores token columns; `fixed_size_list` needs rows of one length, else `list`."""

    lists: str = "list"
    floats: pa.DataType = pa.float32()  # noqa: RUF009
    masks: pa.DataType = pa.uint8()  # noqa: RUF009


@cache
def layouts() -> st.SearchStrategy[Layout]:
    """Every supported combination of list, float and mask type."""
    return st.builds(
        Layout,
        lists=st.sampled_from(["list", "large_list", "fixed_size_list"]),
        floats=st.sampled_from([pa.float16(), pa.float32(), pa.float64()]),
        masks=st.sampled_from([pa.uint8(), pa.int64(), pa.bool_(), pa.float32(), pa.float64()]),
    )


def same_length(rows: Sequence[Response]) -> list[Response]:
    """The rows that are as long as the first, which a fixed_size_list column can hold."""
    return [r for r in rows if len(r.mask) == len(rows[0].mask)]


def arrow(values, kind):
    """An Arrow array; pyarrow below 21 makes none of float16 from Python's floats."""
    return pa.array(np.array(values, np.float16) if kind == pa.float16() else values, kind)


def ragged(lists: Sequence[Sequence[float]], kind: str, item: pa.DataType) -> pa.Array:
    """A list column of one of the three list types."""
    lengths = [len(xs) for xs in lists]
    flat = np.array([x for xs in lists for x in xs], dtype=dtype_of(item))
    values = arrow(flat, item)
    if kind == "fixed_size_list" and lengths and lengths[0] and len(set(lengths)) == 1:
        return pa.FixedSizeListArray.from_arrays(values, lengths[0])
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    if kind == "large_list":
        return pa.LargeListArray.from_arrays(pa.array(offsets, pa.int64()), values)
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), values)


def to_table(
    rows: Sequence[Response], layout: Layout | None = None, *, without: Collection[str] = ()
) -> pa.Table:
    """The rollout under its canonical column names; a role that some row lacks has no column."""
    layout = layout or Layout()
    columns: dict[str, pa.Array] = {}
    for name, (attribute, kind) in SCALAR_COLUMNS.items():
        columns[name] = pa.array([getattr(r, attribute) for r in rows], kind)
    columns["response_mask"] = ragged([r.mask for r in rows], layout.lists, layout.masks)
    for name, attribute in TOKEN_COLUMNS.items():
        lists = [getattr(r, attribute) for r in rows]
        if None not in lists:
            columns[name] = ragged(lists, layout.lists, layout.floats)
    for name in sorted({name for r in rows for name in r.components}):
        columns[name] = pa.array([r.components[name] for r in rows], pa.float32())
    return pa.table(
        {
            n: xs
            for n, xs in columns.items()
            if n not in without and (n in NULLABLE or not (len(xs) and xs.null_count))
        }
    )
