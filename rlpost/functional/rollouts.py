"""Functions of rollouts that are several rows: credit of turns, and scans over all rows.

Rows are [N] in any order, with N ids of rollouts and N numbers of turns; ids of branches order rows
of one turn by name. Numbers of rows are computed by numpy in float64 and are constants, as those of
groups.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from rlpost.errors import DataError, UsageError
from rlpost.estimators.groups import gar as _gar
from rlpost.estimators.turns import mt_grpo_rewards, step_returns, turn_credit_rewards
from rlpost.functional.arguments import (
    codes_of,
    finite,
    floats,
    numbers,
    of_any_library,
    one_of,
    per_response,
    ragged,
    shares,
)
from rlpost.functional.groups import in_groups, like_rewards
from rlpost.io.keys import name_ranks
from rlpost.kernels.arrays import is_tensor, like, namespace, on_host
from rlpost.kernels.codes import joint_codes
from rlpost.kernels.rollouts import RolloutOrder, rollout_ranks

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence
    from typing import Any

    from rlpost.estimators import Credit
    from rlpost.kernels.arrays import Array
    from rlpost.kernels.moments import Floats, Integers

    Ids = Array | Sequence[Hashable]


@of_any_library
def mt_grpo(
    rewards: Array,
    turn_rewards: Array,
    turns: Array,
    rollouts: Ids,
    groups: Ids,
    branches: Ids | None = None,
    *,
    step_gamma: float = 1.0,
    episode_weight: float = 1.0,
    step_weight: float = 1.0,
    norm_mean: str = "group",
    norm_std: str = "group",
    norm_eps: float = 1e-6,
    turn_baseline: str = "return",
) -> Array:
    """Return the credit of each turn: normalised outcome plus normalised return over turns.

        Aₖ = w_e·z(outcome over the rollouts of the group) + w_s·Tₖ
        Tₖ = z(Gₖ over the turns k of the group), Gₖ = rₖ + γ·Gₖ₊₁            (`return`)
        Tₖ = Σ γˡ⁻ᵏ·z(rₗ over the turns l of the group), l = k to the last     (`reward`)

    Args:
        rewards: [N] outcome of each row's rollout, equal in its rows.
        turn_rewards: [N] reward of each turn; NaN: none.
        turns: [N] number of each row's turn in its rollout.
        rollouts: N ids, unique within a group.
        groups: N group ids.
        branches: N ids; None: each rollout has one branch.
        step_gamma: γ per turn, in [0, 1].
        episode_weight: w_e.
        step_weight: w_s.
        norm_mean: mean of the `group`, of the `others` of the group, or `none`.
        norm_std: standard deviation of the same scopes, with Bessel's correction (ddof 1).
        norm_eps: ε, added to the standard deviation.
        turn_baseline: what is normalised at each turn, the `return` or the `reward`, whose
            baselines bias the policy gradient by the mean rewards of the turns that follow.

    Returns:
        [N]; `to_tokens` puts it on the tokens.

    Raises:
        UsageError: a shape, a dtype or an option is wrong.
        DataError: a reward is not finite, or two rows are one turn.

    Source: MT-GRPO, arXiv 2505.11821 (`reward`); the bias: verl issue 7244.

    >>> zeros, score = torch.tensor([0, 0]), torch.tensor([0.0, 2.0])
    >>> mt_grpo(score, score, zeros, ["a", "b"], zeros, norm_std="none")
    tensor([-2.,  2.])
    """
    shares(step_gamma=step_gamma)
    numbers(episode_weight=episode_weight, step_weight=step_weight, norm_eps=norm_eps)
    one_of("turn_baseline", turn_baseline, ("return", "reward"))
    (rewards,) = floats(rewards=rewards)
    group, rollout = (codes_of(ids, rewards)[0] for ids in (groups, rollouts))
    credit = mt_grpo_rewards(
        finite("rewards", rewards),
        _scores(turn_rewards, rewards),
        np.unique(_turns(turns, rewards), return_inverse=True)[1].reshape(-1),
        rollout,
        group,
        _ranks(joint_codes(group, rollout), turns, branches, rewards),
        step_gamma=step_gamma,
        episode_weight=episode_weight,
        step_weight=step_weight,
        norm_mean=norm_mean,
        norm_std=norm_std,
        norm_eps=norm_eps,
        turn_baseline=turn_baseline,
    )
    return like_rewards(credit, rewards)


@of_any_library
def turn_credit(
    rewards: Array,
    turn_rewards: Array,
    turns: Array,
    rollouts: Ids,
    groups: Ids,
    tokens: Array,
    branches: Ids | None = None,
    *,
    step_gamma: float = 1.0,
    step_weight: float = 1.0,
) -> Array:
    """Return the credit of each turn, from scores of the state after each turn.

        Aₖ = R - mean of R over the rollouts of the group + β·(cₖ - mean of c over tokens)
        R = outcome + last score - first score
        pₖ = score of turn k - score before it, 0 for the first;  cₖ = pₖ / zₖ + γ·cₖ₊₁
        zₖ = 1 + γ + … + γᵏ⁻¹

    Args:
        rewards: [N] outcome of each row's rollout, equal in its rows.
        turn_rewards: [N] score of the state after each turn; NaN: none, so that its progress counts
            for the next turn with a score.
        turns: [N] number of each row's turn in its rollout.
        rollouts: N ids, unique within a group.
        groups: N group ids.
        tokens: [N] policy tokens of each row.
        branches: N ids; None: each rollout has one branch.
        step_gamma: γ per turn, in [0, 1].
        step_weight: β.

    Returns:
        [N]; `to_tokens` puts it on the tokens.

    Raises:
        UsageError: a shape, a dtype or an option is wrong.
        DataError: a reward is not finite, or two rows are one turn.

    Source: prime-rl pull request 3282, algo/turn_credit.py.

    >>> zeros, score = torch.tensor([0, 0]), torch.tensor([0.0, 2.0])
    >>> turn_credit(score, score, torch.tensor([0, 1]), zeros, zeros, zeros + 1, step_gamma=0.0)
    tensor([-1.,  1.])
    """
    shares(step_gamma=step_gamma)
    numbers(step_weight=step_weight)
    (rewards,) = floats(rewards=rewards)
    group, rollout = (codes_of(ids, rewards)[0] for ids in (groups, rollouts))
    credit = turn_credit_rewards(
        finite("rewards", rewards),
        _scores(turn_rewards, rewards),
        _ranks(joint_codes(group, rollout), turns, branches, rewards),
        rollout,
        group,
        on_host(per_response("tokens", tokens, len(rewards))),
        step_gamma=step_gamma,
        step_weight=step_weight,
    )
    return like_rewards(credit, rewards)


@of_any_library
def turn_returns(
    rewards: Array,
    turns: Array,
    rollouts: Ids,
    branches: Ids | None = None,
    *,
    step_gamma: float = 1.0,
) -> Array:
    """Return the discounted return of each turn over the rest of its rollout.

        Gₖ = rₖ + γ·Gₖ₊₁ over the turns k of a rollout

    Normalised by `grpo` within groups they are the rewards of the estimator step_reinforce.

    Args:
        rewards: [N] reward of each turn.
        turns: [N] number of each row's turn in its rollout.
        rollouts: N ids.
        branches: N ids; None: each rollout has one branch.
        step_gamma: γ per turn, in [0, 1].

    Returns:
        [N]; `to_tokens` puts it on the tokens.

    Raises:
        UsageError: a shape, a dtype or an option is wrong.
        DataError: a reward is not finite, or two rows are one turn.

    Source: ROLL, compute_discounted_returns.

    >>> turn_returns(torch.tensor([1.0, 4.0]), torch.tensor([0, 1]), ["a", "a"], step_gamma=0.5)
    tensor([3., 4.])
    """
    shares(step_gamma=step_gamma)
    (rewards,) = floats(rewards=rewards)
    rollout, _ = codes_of(rollouts, rewards)
    ranks, group = _ranks(rollout, turns, branches, rewards), np.zeros_like(rollout)
    returns = step_returns(finite("rewards", rewards), ranks, rollout, group, step_gamma=step_gamma)
    return like_rewards(returns, rewards)


@of_any_library
def gar(
    rewards: Array,
    win_rates: Array,
    groups: Ids,
    hacks: Array | None = None,
    *,
    gar_floor: float = 0.5,
    gar_cap: float = 2.0,
) -> Array:
    """Return centred rewards; those above the mean are scaled by the response's rank.

        Aᵢ = rᵢ - mean of the group
        Aᵢ ← λ·fᵢ·Aᵢ where Aᵢ > 0,  λ = min(λ_max, Σ A₊ / Σ f·A₊),  fᵢ = f_min + (1 - f_min)·wᵢ
        A ← A - mean of A, which is 0 unless λ_max bounds λ

    Args:
        rewards: [N] reward of each response.
        win_rates: [N] w, share of the other ranked responses of its group that a grader ranks below
            it, in [0, 1]; NaN, without a rank, counts as 0.5.
        groups: N group ids.
        hacks: [N], not 0 for responses that get the smallest reward of their group; None: none.
        gar_floor: f_min, in (0, 1].
        gar_cap: λ_max, at least 1.

    Returns:
        [N]. A group of equal rewards gets 0.

    Raises:
        UsageError: a shape or a dtype is wrong.
        DataError: a reward is NaN or infinite.

    Source: MiMo-V2.6 §4.3.2, eq. 3; prime-rl, algo/gar.py.

    >>> gar(torch.tensor([0.0, 1.0, 1.0]), torch.tensor([0.5, 0.0, 1.0]), [7, 7, 7])
    tensor([-0.6667,  0.2222,  0.4444])
    """
    numbers(gar_floor=gar_floor, gar_cap=gar_cap)
    columns = [per_response("win_rates", win_rates, len(rewards))]
    columns += [] if hacks is None else [per_response("hacks", hacks, len(rewards))]

    def credit(values: Floats, rates: Floats, *others: Any) -> Credit:
        *hack, offsets = others
        flags = hack[0] != 0 if hack else None
        return _gar(values, rates, offsets, flags, gar_floor=gar_floor, gar_cap=gar_cap)

    return in_groups(credit, groups, rewards, *columns)


@of_any_library
def per_rollout(
    function: Callable[..., Array], rewards: Array, rollouts: Ids, *columns: Ids, **options: Any
) -> Array:
    """Return advantages of rollouts, each of which counts once, on all of its rows.

    Args:
        function: of groups, such as `grpo`.
        rewards: [N], equal in all rows of a rollout.
        rollouts: N ids, unique over all groups.
        columns: what the function needs besides rewards, N each and equal in all rows of a rollout:
            the groups; for `opo` before them the policy tokens of the whole rollout.
        options: of the function.

    Returns:
        [N] in the type of the rewards.

    Raises:
        UsageError, DataError: those of the function; or the rewards of a rollout differ.

    Source: agentlightning 1.0.2, compute_rollout_level_advantage.

    >>> from rlpost.functional import dr_grpo
    >>> per_rollout(dr_grpo, torch.tensor([0.0, 0.0, 1.0]), ["a", "a", "b"], [7, 7, 7])
    tensor([-0.5000, -0.5000,  0.5000])
    """
    codes, count = codes_of(rollouts, rewards)
    first = RolloutOrder.of(codes).first if count else codes
    own = on_host(rewards)
    differing = np.flatnonzero(own != own[first][codes])
    if len(differing):
        row = int(differing[0])
        raise DataError(
            f"rewards: {own[row]} in row {row}, and {own[first[codes[row]]]} in row "
            f"{first[codes[row]]} of the same rollout; one reward of a rollout is needed"
        )
    chosen = (x[like(first, x)] if is_tensor(x) else [x[i] for i in first] for x in columns)
    advantages = function(rewards[like(first, rewards)], *chosen, **options)
    return advantages[like(codes, rewards)]


@of_any_library
def over_rollouts(
    function: Callable[..., Any],
    *columns: Array,
    offsets: Array,
    mask: Array | None = None,
    rollouts: Ids,
    turns: Array,
    branches: Ids | None = None,
    **options: Any,
) -> Any:
    """Return what a function of tokens computes over rollouts, whose rows it joins by turn.

    With `gae` it is the GAE of a session, with `turn_gae` a step for each turn of all rows.

    Args:
        function: `gae`, `turn_gae`, `vtrace`, `discounted_returns` or `agentic_reinforce`.
        columns: [T] each, those of the function.
        offsets: [N+1] first token of each row; the last element is T.
        mask: [T], 0 on observation tokens; None if there are none.
        rollouts: N ids.
        turns: [N] number of each row's turn in its rollout.
        branches: N ids; None: each rollout has one branch.
        options: of the function.

    Returns:
        What the function returns, [T] each, in the order of the columns. Differentiable.

    Raises:
        UsageError, DataError: those of the function; or two rows are one turn.

    Source: xtuner, rl/advantage/gae.py, `_compute_session_gae`.

    >>> rewards, offsets = torch.tensor([1.0, 2.0]), torch.tensor([0, 1, 2])
    >>> rows = {"offsets": offsets, "rollouts": ["a", "a"], "turns": torch.tensor([1, 0])}
    >>> from rlpost.functional import discounted_returns
    >>> over_rollouts(discounted_returns, rewards, **rows)
    tensor([1., 3.])
    """
    responses = ragged(offsets, mask, columns[0])
    starts = on_host(responses.offsets)
    rows = np.empty(len(starts) - 1)
    codes, _ = codes_of(rollouts, rows)
    order = RolloutOrder.of(codes, _ranks(codes, turns, branches, rows))
    sizes = np.diff(starts)[order.order] + 1  # an observation ends each row, and so its last turn
    ends = np.concatenate([[0], np.cumsum(sizes)])
    places = np.arange(ends[-1]) - np.repeat(ends[:-1], sizes)
    source = np.where(
        places + 1 < np.repeat(sizes, sizes),
        places + np.repeat(starts[:-1][order.order], sizes),
        starts[-1],
    )
    target = np.empty(int(starts[-1]), np.int64)
    target[source[source < starts[-1]]] = np.flatnonzero(source < starts[-1])

    def joined(column: Array) -> Array:
        padded = namespace(column).concat([column, namespace(column).zeros(1, column)])
        return padded[like(source, column)]

    own = joined(responses.mask)
    made = function(*map(joined, columns), like(ends[order.offsets], own), own, **options)
    back = like(target, columns[0])
    return type(made)(*(part[back] for part in made)) if isinstance(made, tuple) else made[back]


def _scores(scores: Array, rewards: Array) -> Floats:
    """Return rewards of turns, [N] float64; NaN for none."""
    values: Floats = on_host(per_response("turn_rewards", scores, len(rewards))).astype(np.float64)
    if np.isinf(values).any():
        raise DataError("turn_rewards: a number is infinite; NaN is a turn without a reward")
    return values


def _turns(turns: Array, rewards: Any) -> Floats:
    """Return the numbers of turns, [N] float64."""
    values: Floats = on_host(per_response("turns", turns, len(rewards))).astype(np.float64)
    if not np.isfinite(values).all():
        raise DataError("turns: a number is NaN or infinite")
    return values


def _ranks(rollout: Integers, turns: Array, branches: Ids | None, rewards: Any) -> Integers:
    """Return the ranks of the rows of rollouts; DataError if two rows are one turn."""
    turn, branch = _turns(turns, rewards), None
    if branches is not None:
        names = branches.tolist() if hasattr(branches, "tolist") else [*branches]
        seen = [*dict.fromkeys(names)]
        if len(names) != len(turn):
            raise UsageError(f"{len(names)} branches for {len(turn)} rows: one id each is needed")
        code = dict(zip(seen, name_ranks(seen).tolist(), strict=True))
        branch = np.array([code[name] for name in names], np.int64)
    ranks = rollout_ranks(rollout, turn, branch)
    first = np.unique(ranks, return_index=True)[1]
    if len(first) < len(ranks):
        row = int(np.setdiff1d(np.arange(len(ranks)), first)[0])
        raise DataError(
            f"turns: row {row} and row {first[ranks[row]]} are both turn {turn[row]:g} of a "
            "rollout; a turn is one row: drop copies, or set branches"
        )
    return ranks
