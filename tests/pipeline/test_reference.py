"""The references against arithmetic done by hand, numpy, and one another."""

import math
from dataclasses import replace

import numpy as np
import pytest
import reference as ref
import reference_estimators as est
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import Response
from strategies import rollouts, to_table

laws = settings(max_examples=40, deadline=None)

KNOBS = {
    "gae": {"lambda_value": 1.0, "length_adaptive_alpha": 0.4},
    "gdpo": {"weights": {"correctness": 1.0, "format": 0.5}},
    "opd": {"coefs": {"ref": 0.5, "large": 0.1}},
}


def row(reward=0.0, mask=(1,), group="p", **fields):
    return Response(group=group, reward=reward, mask=list(mask), **fields)


def same(got, want):
    """Equal lists of lists to 1e-9 of their size."""
    assert [len(xs) for xs in got] == [len(xs) for xs in want]
    for xs, ys in zip(got, want, strict=True):
        assert xs == pytest.approx(ys, rel=1e-9, abs=1e-9)


def rewards_of(rows):
    return [r.reward for r in rows]


def credit(name, rows):
    token_rewards = ref.token_rewards(rows, rewards_of(rows))
    return est.ESTIMATORS[name](rows, token_rewards, **KNOBS.get(name, {}))


def firsts(name, rows):
    """The advantage at each response's first token."""
    return [xs[0] for xs in credit(name, rows)[0]]


# Stages, by hand


def test_length_masks_count_policy_tokens_only():
    rows = [row(1, [1] * 9), row(0, [1] * 4), row(0, [1, 0, 1, 1, 1, 1]), row(0.5, [1])]
    assert ref.max_len_kept(rows, 5) == [False, True, False, True]
    assert ref.error_max_len_kept(rows, 5) == [True, True, False, False]


def test_difficulty_mask_has_strict_bounds_and_keeps_groups_of_one():
    rows = [row(r, group=g) for g, r in [("a", 0), ("a", 1), ("b", 1), ("b", 1), ("c", 1)]]
    assert ref.difficulty_kept(rows) == [True, True, False, False, True]
    assert ref.difficulty_kept(rows, low=0.5) == [False, False, False, False, True]


def test_dynamic_sampling_drops_groups_of_equal_rewards_within_a_batch():
    rows = [row(0), row(1), row(1, batch=1), row(1, batch=1), row(1, group="alone")]
    assert ref.varied_group_kept(rows) == [True, True, False, False, True]
    assert ref.in_company_kept(rows) == [True, True, True, True, False]


def test_several_sample_masks_keep_what_all_keep():
    rows = [row(finish_reason="stop"), row(finish_reason="length"), row(finish_reason="stop")]
    kept = ref.with_sample_mask(rows, ref.finished_kept(rows), [False, True, True])
    assert [r.kept for r in kept] == [False, False, True]
    assert [r.final_mask for r in kept] == [[0], [0], [1]]


def test_overlong_penalty_grows_linearly_in_and_beyond_the_buffer():
    rows = [row(mask=[1] * n) for n in (6, 8, 10, 12)]
    assert ref.overlong_penalties(rows, 10, 4, 0.5) == [0, -0.25, -0.5, -0.75]


def test_group_normalisation_by_hand():
    rows = [row(1), row(2), row(3), row(9, group="alone")]
    z = 1 / (1 + 1e-6)
    assert ref.normalised_rewards(rows, rewards_of(rows)) == pytest.approx([-z, 0, z, 0])


def test_mean_and_std_may_have_different_scopes():
    rows = [row(0), row(2), row(4, group="q"), row(4, group="q")]
    x = rewards_of(rows)
    batch_std = math.sqrt(11 / 3)
    got = ref.normalised_rewards(rows, x, mean_of="group", std_of="batch", eps=0)
    assert got == pytest.approx([-1 / batch_std, 1 / batch_std, 0, 0])
    got = ref.normalised_rewards(rows, x, mean_of="batch", std_of="group", eps=0)
    assert got == pytest.approx([-2.5 / math.sqrt(2), -0.5 / math.sqrt(2), 0, 0])
    assert ref.normalised_rewards(rows, x, mean_of="batch", std_of="none") == [-2.5, -0.5, 1.5, 1.5]


def test_running_normalisation_folds_a_batch_in_before_it_is_normalised():
    rows = [row(4, batch=1), row(0), row(2), row(6, batch=1), row(7, domain="code")]
    means, stds = ref.running_statistics(rows, rewards_of(rows), {})
    assert means == pytest.approx([3, 1, 1, 3, 7])
    late, early = math.sqrt(20 / 3), math.sqrt(2)
    assert stds == pytest.approx([late, early, early, late, 0])
    moments = {}
    ref.running_statistics(rows[1:3], [0, 2], moments)
    assert ref.running_statistics(rows[1:3], [4, 6], moments)[0] == pytest.approx([3, 3])


def test_clipping_and_its_share():
    assert ref.clipped([-3, 0.5, 2], 1) == [-1, 0.5, 1]
    assert ref.clip_fraction([-3, 0.5, 1, 2], 1) == 0.5
    assert ref.clip_fraction([], 1) == 0


@pytest.mark.parametrize(
    ("estimator", "value"),
    [("k1", 0.69314718), ("abs", 0.69314718), ("k2", 0.24022651), ("k3", 0.19314718)],
)
def test_kl_estimators_at_log_two(estimator, value):
    assert ref.divergence(math.log(2), estimator) == pytest.approx(value)


def test_kl_clamps_the_log_ratio_first_and_k3_after():
    r = row(mask=[1, 1, 0], old=[0, -100, -9], ref=[-100, 0, -1], current=[math.log(3), -100, 0])
    assert ref.token_kl([r], "k1") == [[40, -40, 0]]
    assert ref.token_kl([r], "k3") == [[10, 10, 0]]
    assert ref.token_kl([r], "k4")[0] == pytest.approx([120, -40, 0])


def test_token_rewards_land_on_the_last_policy_token():
    rows = [row(2, [1, 0, 1, 0], token_rewards=[0.5, 9, 0, 9]), row(5, [0, 0])]
    got = ref.token_rewards(rows, [2, 5], [[1, 0, 3, 0], [0, 0]], [0.1, 0.1])
    same(got, [[0.4, 0, 1.7, 0], [0, 0]])


def test_adaptive_kl_moves_after_its_batch():
    rows = [row(batch=b, mask=m) for b, m in [(1, [1]), (0, [1, 1]), (0, [0]), (1, [1]), (2, [1])]]
    kl = [[0.2], [0.6, 0.6], [0], [-0.02], [9]]
    got = ref.adaptive_betas(rows, kl, beta=0.1, target=0.1, horizon=10)
    assert got == pytest.approx([0.104, 0.1, 0.1, 0.104, 0.10192])


def test_whitening_by_hand_skips_a_batch_with_one_token():
    rows = [row(mask=[1, 0, 1]), row(mask=[1]), row(mask=[1], batch=1)]
    same(ref.whitened_rewards(rows, [[1, 50, 2], [3], [7]], eps=0), [[-1, 0, 0], [1], [7]])
    rows[1] = replace(rows[1], kept=False)
    whitened = ref.whitened_rewards(rows, [[1, 50, 2], [3], [7]], eps=0)
    same(whitened, [[-math.sqrt(0.5), 0, math.sqrt(0.5)], [1.5 / math.sqrt(0.5)], [7]])


def test_weights_by_hand():
    rows = [row(mask=[1, 1], difficulty=-1.0), row(mask=[1] * 4, difficulty=3.0)]
    assert ref.difficulty_weights(rows) == [0.5, 2.0]
    assert ref.length_weights(rows) == pytest.approx([1.5, 0.5])
    got = ref.sample_weights(rows, ref.difficulty_weights(rows), ref.length_weights(rows))
    assert got == pytest.approx([6 / 7, 8 / 7])


# Estimators, by hand


def test_gae_by_hand_and_across_a_gap():
    whole = row(mask=[1, 1, 1], values=[1, 2, 3])
    advantages, returns = est.gae([whole], [[1, 0, 2]], gamma=0.5, lam=0.5)
    assert (advantages, returns) == ([[0.8125, -0.75, -1]], [[1.8125, 1.25, 2]])
    gapped = row(mask=[1, 0, 1, 1, 0], values=[1, 99, 2, 3, 99])
    advantages, returns = est.gae([gapped], [[1, 0, 0, 2, 0]], gamma=0.5, lam=0.5)
    assert (advantages, returns) == ([[0.8125, 0, -0.75, -1, 0]], [[1.8125, 0, 1.25, 2, 0]])


def test_gae_with_two_lambdas_and_length_adaptive_lambda():
    rows, rewards = [row(mask=[1] * 4, values=[1, 2, 3, 4])], [[0, 1, 0, 2]]
    half, one = (est.gae(rows, rewards, lam=lam) for lam in (0.5, 1.0))
    split = est.gae(rows, rewards, lambda_policy=0.5, lambda_value=1.0)
    assert split == (half[0], one[1])
    assert est.gae(rows, rewards, lam=1.0, length_adaptive_alpha=0.5) == (half[0], one[1])
    short = est.gae(rows, rewards, length_adaptive_alpha=0.1)
    assert short[0] == est.gae(rows, rewards, lam=0.0)[0]


def test_returns_to_go_by_hand():
    rows = [row(mask=[1, 0, 1, 1])]
    assert est.reinforce(rows, [[1, 0, 2, 4]], gamma=0.5)[0] == [[3, 0, 4, 4]]
    assert est.agentic_reinforce(rows, [[1, 0, 2, 4]], gamma=0.5)[0] == [[4, 0, 6, 6]]
    last = est.agentic_reinforce(rows, [[1, 0, 2, 4]], gamma=0.5, segment_reward="last")
    assert last[0] == [[3, 0, 4, 4]]


@pytest.mark.parametrize(
    ("name", "rewards", "want"),
    [
        ("raw", [1, 2, 6], [1, 2, 6]),
        ("dr_grpo", [1, 2, 6], [-2, -1, 3]),
        ("rloo", [1, 2, 6], [-3, -1.5, 4.5]),
        ("gpg", [1, 0, 0, 1], [1, -1, -1, 1]),
        ("grpo_passk", [1, 3, 6], [0, 0, 3 / (math.sqrt(57 / 9) + 1e-6)]),
        ("grpo_passk", [1, 3, 3], [0, 0, 0]),
        ("max_rl", [1, 0, 0, 3], [0, -1, -1, 2]),
        ("max_rl", [1, -1], [0, 0]),
        ("rae", [1, 1, 0], [1, 0.9, -0.19]),
    ],
)
def test_outcome_estimators_by_hand(name, rewards, want):
    assert firsts(name, [row(r) for r in rewards]) == pytest.approx(want)


def test_baselines_by_length_by_batch_and_by_greedy_response():
    assert firsts("opo", [row(1, [1, 1, 1]), row(0, [1])]) == [0.25, -0.75]
    rows = [row(1), row(0), row(0, group="q"), row(4, batch=1), row(2, batch=1)]
    assert firsts("gpg", rows) == [1.5, -1.5, 0, 1, -1]
    assert est.remax([row(mask=[1, 1], reward_baseline=0.5)], [[1, 2]]) == ([[2.5, 1.5]], [[3, 2]])


def test_gdpo_normalises_each_component_before_the_sum():
    parts = [(0, 5), (1, 5), (1, 5), (2, 8)]
    rows = [row(components={"correctness": a, "format": b}) for a, b in parts]
    total = np.array([-1, 0, 0, 1]) / math.sqrt(2 / 3) + 0.5 * np.array([-0.5, -0.5, -0.5, 1.5])
    want = (total - total.mean()) / total.std(ddof=1)
    assert firsts("gdpo", rows) == pytest.approx(want, rel=1e-5)


def test_optimal_token_baseline_by_token_and_by_policy_position():
    half, quarter = math.log(0.5), math.log(0.25)
    first = row(mask=[1, 1], old=[half] * 2, sum_pi_squared=[0.5] * 2)
    second = row(mask=[0, 1], old=[0.0, quarter], sum_pi_squared=[9, 0.5])
    rewards = [[0, 4], [0, 1]]
    by_token, returns = est.optimal_token_baseline([first, second], rewards, eps=0)
    same(by_token, [[0, 1.5], [0, -1.5]])
    same(returns, [[4, 4], [0, 1]])
    by_policy, _ = est.optimal_token_baseline([first, second], rewards, position="policy", eps=0)
    same(by_policy, [[2, 0], [0, -1]])


def test_gigpo_adds_the_episode_and_the_state_level():
    turns = [("a", 1, "s", 2), ("a", 0, "s", 1), ("b", 0, "s", 0)]
    rows = [
        row(traj_id=t, turn=n, state_id=s, step_score=x, episode_score=3.0 if t == "a" else 1.0)
        for t, n, s, x in turns
    ]
    rows.append(row(group="q", traj_id="a", state_id="s", step_score=9.0, episode_score=9.0))
    assert est.step_returns(rows, 0.5) == [2, 2, 0, 9]
    zeros = [[0.0]] * 4
    got, _ = est.gigpo(rows, zeros, step_gamma=0.5, step_weight=0.5, scale="none")
    same(got, [[1 + 1 / 3], [1 + 1 / 3], [-1 - 2 / 3], [0]])
    by_row, _ = est.gigpo(rows, zeros, step_weight=0, scale="none", episodes="row")
    same(by_row, [[2 / 3], [2 / 3], [-4 / 3], [0]])
    steps, _ = est.step_reinforce(rows, zeros, step_gamma=0.5)
    same(steps, [[x / (math.sqrt(4 / 3) + 1e-6)] for x in (2 / 3, 2 / 3, -4 / 3, 0)])


def test_opd_alone_and_on_top_of_another_estimator():
    r = row(mask=[1, 0], old=[-1, -1], ref=[-3, -3], teachers={"large": [-0.5, 0]})
    coefs = {"ref": 0.1, "large": 2.0}
    alone, _ = est.opd([r], [[5, 0]], coefs=coefs)
    same(alone, [[0.8, 0]])
    both, returns = est.opd([r], [[5, 0]], coefs=coefs, base=est.reinforce)
    same(both, [[5.8, 0]])
    same(returns, [[5, 0]])


# Laws


@laws
@given(rollouts(extreme=True), st.sampled_from([0.9, 1.0]))
def test_gae_with_lambda_one_is_the_return_less_the_value(rows, gamma):
    rewards = ref.token_rewards(rows, rewards_of(rows))
    advantages, returns = est.gae(rows, rewards, gamma=gamma, lam=1.0)
    want, _ = est.reinforce(rows, rewards, gamma=gamma)
    for got, a, g, r in zip(returns, advantages, want, rows, strict=True):
        size = max(map(abs, [1.0, *g, *r.values]))
        assert got == pytest.approx(g, abs=1e-9 * size)
        less = [x - v * m for x, v, m in zip(g, r.values, r.mask, strict=True)]
        assert a == pytest.approx(less, abs=1e-9 * size)


@laws
@given(rollouts())
def test_rloo_is_dr_grpo_scaled_by_group_size(rows):
    sizes = ref.by_key(ref.groups(rows), rewards_of(rows), len)
    centred, others = credit("dr_grpo", rows)[0], credit("rloo", rows)[0]
    same(
        others, [[x * n / max(n - 1, 1) for x in xs] for xs, n in zip(centred, sizes, strict=True)]
    )


@laws
@given(rollouts(extreme=True))
def test_scopes_of_normalisation_agree_with_numpy(rows):
    x = np.array(rewards_of(rows))
    for scope, keys in [("batch", [r.batch for r in rows]), ("group", ref.groups(rows))]:
        got = np.array(ref.normalised_rewards(rows, list(x), mean_of=scope, std_of=scope))
        for members in ref.rows_by(keys).values():
            part = x[members]
            want = np.zeros(len(part))
            if np.ptp(part) > 0:
                want = (part - part.mean()) / (part.std(ddof=1) + 1e-6)
            np.testing.assert_allclose(got[members], want, rtol=1e-7, atol=1e-7)


@laws
@given(rollouts())
def test_running_statistics_are_those_of_the_stream_so_far(rows):
    means, stds = ref.running_statistics(rows, rewards_of(rows), {})
    for i, r in enumerate(rows):
        seen = [x.reward for x in rows if x.domain == r.domain and x.batch <= r.batch]
        assert means[i] == pytest.approx(np.mean(seen), abs=1e-9)
        want = np.std(seen, ddof=1) if len(seen) > 1 else 0
        assert stds[i] == pytest.approx(want, abs=1e-9)


@laws
@given(rollouts())
def test_whitened_tokens_of_a_batch_have_mean_zero_and_variance_one(rows):
    values = [r.values for r in rows]
    white = ref.whitened_advantages(rows, values)
    for members in ref.batches(rows):
        seen = ref.masked_in([rows[i] for i in members], [white[i] for i in members])
        before = ref.masked_in([rows[i] for i in members], [values[i] for i in members])
        if len(seen) > 1 and np.std(before) > 0.01:
            assert np.mean(seen) == pytest.approx(0, abs=1e-9)
            assert np.var(seen, ddof=1) == pytest.approx(1, rel=1e-3)


@laws
@given(rollouts())
def test_weights_of_a_batch_sum_to_its_responses(rows):
    weights = ref.sample_weights(rows, ref.difficulty_weights(rows), ref.length_weights(rows))
    for members in ref.batches(rows):
        assert math.fsum(weights[i] for i in members) == pytest.approx(len(members))


@laws
@given(rows=rollouts(extreme=True), drop=st.randoms(use_true_random=False))
def test_nothing_is_credited_outside_the_final_mask(rows, drop):
    rows = ref.with_sample_mask(rows, [drop.random() < 0.7 for _ in rows])
    for name in est.ESTIMATORS:
        for tokens in credit(name, rows):
            for r, xs in zip(rows, tokens, strict=True):
                assert len(xs) == len(r.mask), name
                assert all(m or x == 0 for x, m in zip(xs, r.final_mask, strict=True)), name
                assert all(math.isfinite(x) for x in xs), name


@laws
@given(rollouts())
def test_observation_tokens_might_as_well_not_be_there(rows):
    compact = [without_observations(r) for r in rows]
    between = {"optimal_token_baseline", "agentic_reinforce", "turn_gae"}  # they divide a response
    for name in set(est.ESTIMATORS) - between:
        for got, want in zip(credit(name, compact), credit(name, rows), strict=True):
            same(got, [only(r, xs) for r, xs in zip(rows, want, strict=True)])


def only(r, xs):
    return [x for x, m in zip(xs, r.mask, strict=True) if m]


def without_observations(r):
    names = ["mask", "old", "ref", "infer", "current", "values", "token_rewards", "sum_pi_squared"]
    teachers = {name: only(r, xs) for name, xs in r.teachers.items()}
    return replace(r, teachers=teachers, **{name: only(r, getattr(r, name)) for name in names})


@laws
@given(rows=rollouts(), shuffle=st.randoms(use_true_random=False))
def test_row_order_does_not_matter_but_for_rae(rows, shuffle):
    order = shuffle.sample(range(len(rows)), len(rows))
    for name in set(est.ESTIMATORS) - {"rae"}:
        moved, still = credit(name, [rows[i] for i in order]), credit(name, rows)
        for got, want in zip(moved, still, strict=True):
            same(got, [want[i] for i in order])


@laws
@given(rollouts())
def test_equal_rewards_earn_nothing(rows):
    rows = [replace(r, reward=0.1, token_rewards=None) for r in rows if any(r.mask)]
    for name in ["dr_grpo", "rloo", "opo", "gpg", "grpo_passk", "max_rl"]:
        assert all(abs(x) < 1e-12 for xs in credit(name, rows)[0] for x in xs), name


def test_tables_hold_what_responses_say():
    rows = [row(0.5, [1, 0], old=[-1, -2], difficulty=0.25), row(1, [], old=[], difficulty=1.0)]
    table = to_table(rows)
    assert table["old_log_probs"].to_pylist() == [[-1, -2], []]
    assert table["response_mask"].to_pylist() == [[1, 0], []]
    assert table["difficulty"].to_pylist() == [0.25, 1.0]
    assert "values" not in table.column_names
    assert "reward_baseline" not in table.column_names
