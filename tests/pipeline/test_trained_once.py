"""--trained-once: each policy token of a rollout is trained by one of its rows; plain loops."""

from collections import defaultdict
from itertools import groupby

import numpy as np
import pyarrow as pa
import pytest
from agentic_run import agentic_run

import rlpost
from rlpost import Recipe
from rlpost.errors import DataError
from rlpost.kernels.prefixes import Prefixes, prefix_ends, prefixes_of

EMIT = ("advantages", "returns", "final_response_mask", "response_level_rewards")


def segments(mask):
    """The (start, stop) of each run of policy tokens."""
    at, found = 0, []
    for value, run in groupby(mask):
        size = len([*run])
        found += [(at, at + size)] if value else []
        at += size
    return found


def trained(rows):
    """The final masks of rows by plain loops over token ids, which are compared one by one."""
    by_rollout = defaultdict(list)
    for number, one in enumerate(rows):
        by_rollout[one["rollout_id"]].append(number)
    masks = [[bool(x) for x in one["response_mask"]] for one in rows]
    for numbers in by_rollout.values():
        numbers.sort(key=lambda n: (rows[n].get("turn", 0), rows[n].get("branch", "")))
        longest = {}  # tokens of the segment that ends a prefix
        for number in numbers:
            one = rows[number]
            ids, prompt = one["response_token_ids"], one["prompt_token_ids"]
            for start, stop in segments(one["response_mask"]):
                prefix = tuple(prompt + ids[:stop])
                common = min(longest.get(prefix, 0), stop - start)
                longest[prefix] = max(longest.get(prefix, 0), stop - start)
                masks[number][stop - common : stop] = [False] * common
    return masks


def random_rows(seed, *, ordered=True):
    """Rows of rollouts over three token ids, so that many prefixes are equal."""
    rng = np.random.default_rng(seed)
    rows = []
    for number in range(int(rng.integers(2, 30))):
        prompt, size = rng.integers(1, 4, rng.integers(0, 3)), int(rng.integers(0, 9))
        rows.append(
            {
                "prompt_id": f"p{number % 2}",
                "rollout_id": f"{number % 2}-{int(rng.integers(0, 3))}",
                "turn": number if ordered else int(rng.integers(0, 3)),
                "branch": str(int(rng.integers(0, 12))),
                "reward": float(rng.integers(0, 2)),
                "prompt_token_ids": prompt.tolist(),
                "response_token_ids": rng.integers(1, 3, size).tolist(),
                "response_mask": (rng.random(size) < 0.7).astype(int).tolist(),
                "old_log_probs": (-rng.random(size)).tolist(),
                "ref_log_probs": (-rng.random(size)).tolist(),
            }
        )
    return rows


def table_of(rows):
    ids, floats = pa.list_(pa.int32()), pa.list_(pa.float32())
    kinds = {
        "prompt_token_ids": ids, "response_token_ids": ids, "response_mask": pa.list_(pa.int8()),
        "old_log_probs": floats, "ref_log_probs": floats,
    }  # fmt: skip
    columns = {name: [one[name] for one in rows] for name in rows[0]}
    return pa.table({name: pa.array(values, kinds.get(name)) for name, values in columns.items()})


def enrich(table, **options):
    recipe = Recipe(
        **{"estimator": "raw", "unit": "row", "trained_once": True, "emit": EMIT} | options
    )
    return rlpost.enrich(table, recipe)


def final(table):
    return [[bool(x) for x in one] for one in table["final_response_mask"].to_pylist()]


@pytest.mark.parametrize("seed", range(60))
def test_masks_are_those_of_the_loops(seed):
    rows = random_rows(seed)
    if not any(any(one["response_mask"]) for one in rows):
        pytest.skip("no policy token")
    table, summary = enrich(table_of(rows))
    want = trained(rows)
    assert final(table) == want
    policy = sum(sum(one["response_mask"]) for one in rows)
    masked = policy - sum(map(sum, want))
    facts = summary["repeated"]
    assert facts["tokens"] == masked
    assert facts["share"] == pytest.approx(masked / policy)
    changed = (sum(one) < sum(row["response_mask"]) for one, row in zip(want, rows, strict=True))
    assert facts["responses"] == sum(changed)
    for row, mask in zip(table["advantages"].to_pylist(), want, strict=True):
        assert all(value == 0 for value, trains in zip(row, mask, strict=True) if not trains)


def test_a_generated_run_masks_what_its_truth_has():
    run = agentic_run(3, steps=2, prompts=6, restart=None, duplicates=0)
    table, summary = rlpost.enrich(run.table, Recipe(trained_once=True, failures="keep"))
    shared = run.truth["shared"].to_pylist()
    masked = [
        sum(mask) - sum(left)
        for mask, left in zip(run.table["response_mask"].to_pylist(), final(table), strict=True)
    ]
    assert masked == shared
    assert summary["repeated"]["tokens"] == sum(shared) > 0


def row(rollout, turn, ids, mask, prompt=(9,), **more):
    count = len(ids)
    return {
        "prompt_id": "p", "rollout_id": rollout, "turn": turn, "branch": "main", "reward": 1.0,
        "prompt_token_ids": [*prompt], "response_token_ids": [*ids], "response_mask": [*mask],
        "old_log_probs": [-0.5] * count, "ref_log_probs": [-0.25] * count, **more,
    }  # fmt: skip


def test_the_first_by_turn_and_branch_trains_whatever_the_order_of_rows():
    rows = [
        row("a", 1, [1, 2, 5, 3], [1, 1, 0, 1], branch="10"),
        row("a", 1, [1, 2, 5, 3], [1, 1, 0, 1], branch="9"),  # 9 comes before 10
        row("a", 0, [1, 2], [1, 1]),
    ]
    assert final(enrich(table_of(rows))[0]) == [
        [False, False, False, False],
        [False, False, False, True],
        [True, True],
    ]


def test_a_prompt_that_has_the_history_is_the_same_prefix_as_a_response_that_has_it():
    rows = [
        row("a", 0, [1, 2, 5, 3], [1, 1, 0, 1]),
        row("a", 1, [3, 4], [1, 0], prompt=[9, 1, 2, 5]),
    ]
    assert final(enrich(table_of(rows))[0]) == [[True, True, False, True], [False, False]]


def test_samples_that_begin_alike_are_two_samples():
    rows = [row("a", 0, [1, 2, 3], [1, 1, 1]), row("a", 1, [1, 2, 4], [1, 1, 1])]
    assert final(enrich(table_of(rows))[0]) == [[True] * 3] * 2


def test_other_rollouts_and_other_prompts_share_nothing():
    rows = [
        row("a", 0, [1, 2], [1, 1]),
        row("b", 0, [1, 2], [1, 1]),
        row("a", 1, [1, 2], [1, 1], prompt=[8]),
        row("a", 2, [1, 2], [1, 1], prompt=[9, 9]),
    ]
    table, summary = enrich(table_of(rows))
    assert final(table) == [[True, True]] * 4
    assert summary["repeated"] == {"tokens": 0, "share": 0.0, "responses": 0}


def test_a_row_that_trains_nothing_is_never_the_first():
    rows = [row("a", 0, [1, 2], [1, 1]), row("a", 1, [1, 2], [1, 1])]
    table = table_of(rows).append_column("sample_mask", pa.array([False, True]))
    assert final(enrich(table)[0]) == [[False, False], [True, True]]
    table = table_of(rows).append_column("finish_reason", pa.array(["length", "stop"]))
    assert final(enrich(table, drop_truncated=True)[0])[1] == [True, True]


def test_whitening_and_clip_fractions_leave_masked_tokens_out():
    rows = [
        row("a", 0, [1, 2], [1, 1], reward=1.0),
        row("a", 1, [1, 2, 5, 3], [1, 1, 0, 1], reward=1.0),
        row("b", 0, [4], [1], reward=0.0),
    ]
    options = {"whiten_advantages": True, "emit": (*EMIT, "raw_advantages")}
    table, summary = enrich(table_of(rows), **options)
    mean = (3 * 1.0 + 0.0) / 4  # four tokens are trained
    std = (3 * (1 - mean) ** 2 + mean**2) / 3
    want = (1 - mean) / np.sqrt(std + 1e-8)
    assert table["advantages"].to_pylist()[1] == pytest.approx([0, 0, 0, want], rel=1e-6)
    assert summary["signal"]["tokens"]["count"] == 4
    _, clipped = enrich(table_of(rows), advantage_clip=0.5)
    assert clipped["advantage_clip"]["count"] == 3
    assert clipped["advantage_clip"]["fraction"] == 3 / 4


@pytest.mark.parametrize("unit", ["row", "rollout"])
def test_statistics_of_responses_do_not_change(unit):
    rows = [
        row("a", 0, [1, 2], [1, 1], reward=1.0),
        row("a", 1, [1, 2, 5, 3], [1, 1, 0, 1], reward=1.0),
        row("b", 0, [4], [1], reward=0.0),
    ]
    without, once = (
        rlpost.enrich(
            table_of(rows),
            Recipe(trained_once=on, unit=unit, emit=("group_mean", "group_size", "advantages")),
        )
        for on in (False, True)
    )
    for name in ("group_mean", "group_size"):
        assert without[0][name].to_pylist() == once[0][name].to_pylist()
    assert without[0]["advantages"].to_pylist()[1][3] == once[0]["advantages"].to_pylist()[1][3]
    assert without[1]["policy_tokens"] == once[1]["policy_tokens"]


@pytest.mark.parametrize("correction", ["first", "last"])
def test_filters_reject_beside_it(correction):
    rows = [
        row("a", 0, [1, 2], [1, 1], infer_log_probs=[-0.5, -0.5]),
        row("a", 1, [1, 2, 5, 3, 4], [1, 1, 0, 1, 1], infer_log_probs=[-0.5] * 4 + [-9.0]),
    ]
    table = table_of(rows)
    options = {"is_filter": ("token:ratio:0.5:2",), "is_weight": "token", "whiten_advantages": True}
    options |= {"numerics": {"correction": correction}, "emit": (*EMIT, "is_weight")}
    table, summary = enrich(table, **options)
    assert final(table) == [[True, True], [False, False, False, True, False]]
    assert table["is_weight"].to_pylist()[1] == [0, 0, 0, 1, 0]
    assert summary["correction"]["rejected"]["tokens"] == 1
    assert summary["signal"]["tokens"]["count"] == 3


@pytest.mark.parametrize(
    ("drop", "named"),
    [
        ("rollout_id", ["rollout", "--trained-once"]),
        ("response_token_ids", ["response_token_ids", "--trained-once"]),
        ("prompt_token_ids", ["prompt_token_ids", "--map prompt_token_ids"]),
    ],
)
def test_missing_columns_are_errors_that_name_them(drop, named):
    table = table_of([row("a", 0, [1, 2], [1, 1])]).drop_columns([drop])
    with pytest.raises(DataError) as raised:
        enrich(table)
    assert all(word in str(raised.value) for word in named)


def test_responses_that_begin_with_their_prompt_need_no_prompt():
    rows = [
        row("a", 0, [9, 1, 2], [0, 1, 1]),
        row("a", 1, [9, 1, 2, 5, 3], [0, 1, 1, 0, 1]),
    ]
    table = table_of(rows).drop_columns(["prompt_token_ids"])
    masks = final(enrich(table, columns={"prompt_token_ids": "none"})[0])
    assert masks == [[False, True, True], [False, False, False, False, True]]


@pytest.mark.parametrize("kind", [np.int8, np.uint16, np.int32, np.int64, np.float64])
def test_hashes_of_prefixes_depend_on_ids_and_places_alone(kind):
    rng = np.random.default_rng(5)
    ids = rng.integers(0, 100, 40).astype(kind)
    offsets = np.array([0, 12, 12, 40])
    before = prefixes_of(np.concatenate([ids[:5], ids[12:20]]), np.array([0, 5, 5, 13]))
    rest = np.concatenate([ids[5:12], ids[20:]])
    ends = prefix_ends(rest, np.array([0, 7, 7, 27]), before)
    whole = prefix_ends(ids.astype(np.int64), offsets)
    for part, all_ in zip(ends, whole, strict=True):
        assert np.array_equal(part, np.concatenate([all_[5:12], all_[20:]]))
    assert before.tokens.tolist() == [5, 0, 8]
    assert isinstance(before, Prefixes)
    swapped = prefix_ends(ids[::-1].astype(np.int64), offsets)
    assert not any(np.isin(one, other).any() for one, other in zip(whole, swapped, strict=True))


def test_token_ids_that_are_mapped_to_none_are_absent():
    table = agentic_run(3, steps=1, prompts=2, restart=None, duplicates=0).table
    columns = {"rollout": "rollout_id", "response_token_ids": "none"}
    with pytest.raises(DataError, match="response_token_ids"):
        rlpost.enrich(table, Recipe(columns=columns, trained_once=True))
