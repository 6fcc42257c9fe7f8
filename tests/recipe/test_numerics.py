"""Numerics by hand: what each field changes, on inputs small enough to work out on paper."""

from dataclasses import replace

import numpy as np
import pytest
from estimator_rows import close, responses, written
from strategies import ESSENTIALS, to_table
from summaries import warnings_of, whole

import rlpost


def rewards_of(rows, **options):
    """Normalised, shaped and clipped rewards of the responses."""
    recipe = rlpost.Recipe(**{"estimator": "raw", **options})
    table, _ = rlpost.enrich(to_table(rows), recipe)
    return table.column("response_level_rewards").to_numpy()


@pytest.mark.parametrize("norm_ddof", [0, 1])
@pytest.mark.parametrize("norm_floor", [0.0, 5.0])
def test_estimators_that_normalise_themselves_use_the_same_divisor(norm_ddof, norm_floor):
    """gdpo of one component, gigpo of one-turn episodes and grpo_passk, by hand."""
    numerics = {"norm_ddof": norm_ddof, "norm_floor": norm_floor, "norm_eps": 0.5}
    xs = [0.0, 1.0, 5.0]
    std = max(np.std(xs, ddof=norm_ddof), norm_floor) + 0.5
    scores = (np.array(xs) - 2) / std
    rows = [
        replace(r, components={"right": x}, traj_id=str(i), turn=0, state_id=str(i % 2),
                step_score=0.0, episode_score=x)
        for i, (r, x) in enumerate(zip(responses(xs), xs, strict=True))
    ]  # fmt: skip
    options = {"reward_components": ("right",), "component_weights": (1.0,)}
    want = (scores - scores.mean()) / (np.std(scores, ddof=1) + 0.25)
    alone = {"options": {"batch_eps": 0.25}, "numerics": numerics}
    close(written(rows, "gdpo", **options, **alone)[0][::3], want)
    close(written(rows, "gigpo", numerics=numerics)[0][::3], scores)
    close(written(rows, "grpo_passk", numerics=numerics)[0][::3], [0, 0, 4 / std])


@pytest.mark.parametrize(
    ("options", "counted", "left_out"),
    [
        ({"drop_equal_rewards": True}, [True, True, True], [False, False, True]),
        ({"drop_single": True}, [True, True, True], [True, True, True]),
        ({"drop_difficulty": (0.1, 0.95)}, [True, True, True], [False, False, True]),
    ],
    ids=str,
)
def test_masks_of_groups_respect_what_becomes_of_empty_responses(options, counted, left_out):
    """Without its empty response the first group has two rewards of 1, and no other."""
    rows = responses([1.0, 1.0, 0.0, 0.5, 0.0], masks=[[1], [1], [0], [1], [1]])
    rows = [replace(row, group="pq"[i > 2]) for i, row in enumerate(rows)]
    for empty, want in (("count", counted), ("leave_out", left_out)):
        recipe = rlpost.Recipe(**options, numerics={"empty": empty}, emit=("sample_mask",))
        table, summary = rlpost.enrich(to_table(rows), recipe)
        assert table["sample_mask"].to_pylist() == [*want, True, True]
        sizes = [3, 2] if empty == "count" else [2, 2]
        size = whole(summary, "group_size")
        assert (size["count"], size["mean"]) == (2, sum(sizes) / 2)
        assert (size["min"], size["max"]) == (2, max(sizes))


def test_columns_of_groups_respect_what_becomes_of_empty_responses():
    rows = responses([0.0, 1.0, 5.0], masks=[[1], [1], [0]])
    names = ("group_size", "group_mean", "group_std", "group_pass_rate")
    recipe = rlpost.Recipe(emit=names, numerics={"empty": "leave_out"})
    table, _ = rlpost.enrich(to_table(rows), recipe)
    close([table[name][0].as_py() for name in names], [2, 0.5, 0.5**0.5, 0.5])


def test_a_response_alone_is_not_dropped_with_an_empty_one_unless_asked():
    rows = responses([1.0, 0.0], masks=[[1], [0]]) + [
        replace(row, group="q") for row in responses([0.0, 1.0])
    ]
    for options, want in (({"drop_equal_rewards": True}, True), ({"drop_single": True}, False)):
        recipe = rlpost.Recipe(**options, numerics={"empty": "leave_out"})
        table, _ = rlpost.enrich(to_table(rows), recipe)
        assert table["sample_mask"].to_pylist() == [want, True, True, True]


def test_shaping_scales_rewards_and_penalises_truncation_and_length():
    rows = responses([2.0, 4.0])
    close(rewards_of(rows, reward_scale=(0, 3, -1, 1)), [1 / 3, 1])
    rows = [replace(r, finish_reason=end) for r, end in zip(rows, ("length", "stop"), strict=True)]
    close(rewards_of(rows, truncation_penalty=0.25), [0.5, 4])
    close(rewards_of(rows, truncation_penalty=-0.25), [-0.25, 4])
    rows = responses([2.0, 4.0], masks=[[1, 0], [1, 1]])
    # mean 3 · (0.5 · output/2 + 0.25 · input/1 + 0.125 · turns/1)
    taken = [3 * (0.25 + 0.25 + 0.125), 3 * (0.5 + 0.125)]
    close(rewards_of(rows, group_length_penalty=(0.5, 0.25, 0.125)), np.array([2, 4]) - taken)


def test_unscored_components_are_skipped_or_an_error():
    rows = [
        replace(r, components={"right": a, "form": b})
        for r, a, b in zip(
            responses([0.0] * 3), (1.0, np.nan, np.nan), (2.0, 2.0, np.nan), strict=True
        )
    ]
    options = {"reward_components": ("right", "form"), "component_weights": (1.0, 0.5)}
    skip = {"missing_components": "skip"}
    close(rewards_of(rows, **options, numerics=skip), [2, 1, 0])
    with pytest.raises(rlpost.errors.DataError, match="form"):
        rewards_of(rows, **options)


# Tokens: a response of policy, tool and policy tokens, one nat of KL at each


def turns(**fields):
    masks = [[1, 1, 0, 1]]
    tokens = {"old": [-1.0] * 4, "ref": [-2.0] * 4, "values": [1.0, 1.0, 8.0, 1.0]}
    return [replace(r, **tokens, **fields) for r in responses([4.0], masks=masks)]


@pytest.mark.parametrize(
    ("credit", "advantages"),
    [
        ("return", [3.7, 3.8, 0, 3.9]),
        ("token", [3.9, 3.9, 0, 3.9]),
        ("response", [3.7, 3.7, 0, 3.7]),
    ],
)
def test_the_kl_penalty_is_subtracted_from_return_token_or_reward(credit, advantages):
    numerics = {"kl_credit": credit}
    close(written(turns(), "reinforce", kl_coef=0.1, numerics=numerics)[0], advantages)


def scored(masks):
    """A group of two responses, and one of a single response, with two components each."""
    pairs = zip(responses([0.0] * 3, masks=masks), (1.0, 3.0, 2.0), (5.0, 5.0, 1.0), strict=True)
    rows = [replace(r, components={"right": a, "form": b}) for r, a, b in pairs]
    return [*rows[:2], replace(rows[2], group="alone")]


def test_gdpo_normalises_responses_or_whitens_tokens():
    rows = scored([[1, 1, 1], [1], [1, 1]])
    options = {"reward_components": ("right", "form")}
    scores = np.array([-1, -1, -1, 1, 0, 0]) / np.sqrt(2)  # components, by group
    each = scores[[0, 3, 4]]
    close(written(rows, "gdpo", **options)[0], scores / each.std(ddof=1))
    tokens = {**options, "options": {"batch_over": "tokens"}}
    whitened = (scores - scores.mean()) / scores.std(ddof=1)
    advantages, returns = written(rows, "gdpo", **tokens)
    close(advantages, whitened)
    close(returns, whitened)
    close(written(rows, "gdpo", whiten_advantages=False, **tokens)[0], scores)


def steps():
    """Turns of trajectories with a score, in groups in which states occur again."""
    return [
        replace(
            r,
            group=f"g{i // 4}",
            old=[-1.0] * 2,
            ref=[-1.0 - shift, -1.5],
            traj_id=f"t{i // 2}",
            turn=i % 2,
            state_id=f"s{i % 2}",
            step_score=score,
            episode_score=float(i // 2),
        )
        for i, (r, score, shift) in enumerate(
            zip(
                responses([0.0] * 8, masks=[[1, 1]] * 8),
                (0.0, 1.0, 3.0, 0.5, 2.0, 2.0, 1.0, 0.0),
                (1.0, 0.5, 2.0, 0.0, 3.0, 1.0, 0.0, 0.5),
                strict=True,
            )
        )
    ]


@pytest.mark.parametrize("name", ["gigpo", "step_reinforce"])
@pytest.mark.parametrize("options", [{}, {"kl_target": (0.5, 10.0)}], ids=str)
def test_a_kl_penalty_in_the_reward_is_subtracted_from_the_score_of_its_step(name, options):
    half = {"options": {"step_gamma": 0.5}}
    charge = {"kl_coef": 0.1, "numerics": {"kl_credit": "response"}, **half, **options}
    kl = [sum(a - b for a, b in zip(r.old, r.ref, strict=True)) for r in steps()]
    rows = [replace(r, step_score=r.step_score - 0.1 * x) for r, x in zip(steps(), kl, strict=True)]
    found = written(steps(), name, **charge)
    assert not np.allclose(found[0], written(steps(), name, **half)[0])
    for got, want in zip(found, written(rows, name, **half), strict=True):
        close(got, want)


WITHOUT_KL = [
    *((name, "none") for name in ("grpo", "gae", "reinforce", "gigpo", "gdpo", "opd")),
    *((name, credit) for name in ("gdpo", "opd") for credit in ("return", "response")),
]


@pytest.mark.parametrize(("name", "credit"), WITHOUT_KL)
def test_a_kl_penalty_that_no_advantage_gets_is_a_warning_that_names_the_option(name, credit):
    options = {
        "gdpo": {"reward_components": ("right", "form")},
        "opd": {"teachers": {"ref_log_probs": 1.0}},
    }.get(name, ESSENTIALS.get(name, {}))
    rows = [
        replace(r, values=[0.5, 0.25], components={"right": 1.0, "form": r.step_score})
        for r in steps()
    ]
    none = {**options, "kl_coef": 0.1, "numerics": {"kl_credit": credit}}
    for got, want in zip(written(rows, name, **none), written(rows, name, **options), strict=True):
        close(got, want)
    _, summary = rlpost.enrich(to_table(rows), rlpost.Recipe(estimator=name, **none))
    assert summary["kl"]["credit"] == credit
    texts = [text for text in warnings_of(summary) if text.startswith("--kl-coef has no effect")]
    assert len(texts) == 1
    assert "--numerics kl_credit=" in texts[0]
    _, free = rlpost.enrich(
        to_table(rows), rlpost.Recipe(estimator=name, **{**none, "kl_coef": 0.0})
    )
    assert not [text for text in warnings_of(free) if "--kl-coef" in text]
