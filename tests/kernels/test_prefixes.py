"""Policy segments with equal prefixes: against plain loops over token ids; hashes of prefixes."""

from itertools import groupby

import numpy as np
import pytest

from rlpost.kernels.prefixes import (
    prefix_ends,
    prefixes_of,
    repeated_tokens,
    segments_with_prefixes,
)
from rlpost.kernels.segments import offsets_of


def repeated(rollouts, order, prompts, ids, masks):
    """The tokens of each segment that an earlier row trains, by loops that compare token ids."""
    longest = {}  # by rollout and prefix: tokens of the longest segment that ends it
    counts = [[] for _ in masks]
    for number in np.argsort(order):
        at = 0
        for policy, run in groupby(masks[number]):
            start, at = at, at + len([*run])
            if policy:
                prefix = (rollouts[number], *prompts[number], *ids[number][:at])
                counts[number].append(min(longest.get(prefix, 0), at - start))
                longest[prefix] = max(longest.get(prefix, 0), at - start)
    return [count for row in counts for count in row]


@pytest.mark.parametrize("seed", range(25))
def test_tokens_that_an_earlier_row_trains_are_those_of_the_loops(seed):
    rng = np.random.default_rng(seed)
    count = int(rng.integers(2, 30))
    rollouts, order = rng.integers(0, 4, count), rng.permutation(count)
    prompts = [rng.integers(1, 4, rng.integers(0, 3)).tolist() for _ in range(count)]
    ids = [rng.integers(1, 3, rng.integers(0, 9)).tolist() for _ in range(count)]
    masks = [(rng.random(len(row)) < 0.7).tolist() for row in ids]

    def flat(rows, kind):
        return np.array([x for row in rows for x in row], kind)

    offsets = offsets_of(np.array([*map(len, ids)]))
    before = prefixes_of(flat(prompts, np.int64), offsets_of(np.array([*map(len, prompts)])))
    mask = flat(masks, np.bool_)
    segments = segments_with_prefixes(flat(ids, np.int64), mask, offsets, before, 0)
    counts = repeated_tokens(segments, rollouts, order, np.ones(count, np.bool_))
    assert counts.tolist() == repeated(rollouts, order, prompts, ids, masks)


def test_a_negative_id_has_another_hash_at_each_place():
    first, _ = prefix_ends(np.array([-100, -100]), np.array([0, 2]))
    assert first[1] - first[0] != first[0]
