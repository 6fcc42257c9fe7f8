"""The selection of the highest tokens of batches: hashes, ties, parts in any order."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from rlpost.kernels.selection import (
    Floors,
    HighestOf,
    Ranked,
    distinct_keys,
    mixed,
    response_hashes,
)


def test_the_hash_is_splitmix64():
    """The first numbers of the generator with seed 1234567, from its reference implementation."""
    step, seed, word = 0x9E3779B97F4A7C15, 1234567, 1 << 64
    states = [(seed + i * step) % word for i in range(5)]
    signed = [x - word if x >= word // 2 else x for x in states]
    found = [x % word for x in mixed(np.array(signed, dtype=np.int64)).tolist()]
    assert found == [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]


def test_hashes_of_responses_read_policy_tokens_in_order():
    new, mask = np.array([0.5, -1.0, 2.0]), np.array([True, True, False])
    ends = np.array([0, 3])

    def of(column, mask=mask, ends=ends):
        return response_hashes([column], mask, ends).tolist()

    assert of(new) == of(new.astype(np.float64)) == of(np.array([0.5, -1.0, 9.0]))
    assert of(new) != of(np.array([-1.0, 0.5, 2.0]))
    assert of(new) != of(new, np.ones(3, dtype=np.bool_))
    assert of(new) != of(new, np.array([True, False, True]))
    assert of(np.array([0.0, -0.0, 0.0])) == of(np.array([-0.0, 0.0, 0.0]))
    two = response_hashes([np.tile(new[:2], 2)], np.tile(mask[:2], 2), np.array([0, 2, 4]))
    assert two[0] == two[1]


def test_equal_responses_of_a_batch_have_different_keys():
    hashes = np.array([4, 4, 9, 4, 4])
    batch = np.array([0, 0, 0, 1, 0])
    keys = distinct_keys(hashes, batch)
    assert len({*keys[[0, 1, 4]].tolist()}) == 3
    assert keys[3] == keys[0]  # a batch does not change the keys of another
    ordered = distinct_keys(hashes, batch, np.array([3.0, 1.0, 0.0, 0.0, 2.0]))
    assert {*ordered.tolist()} == {*keys.tolist()}
    assert ordered[1] == keys[0]  # the lowest value is number 0


tokens = st.lists(
    st.tuples(st.integers(0, 3), st.sampled_from([-1.0, 0.0, 0.5, 2.0]), st.integers(-9, 9)),
    max_size=40,
    unique=True,
)


@settings(max_examples=60)
@given(rows=tokens, counts=st.tuples(*[st.integers(1, 6)] * 4), seed=st.integers(0, 99))
def test_parts_in_any_order_have_the_floors_of_a_plain_sort(rows, counts, seed):
    rng = np.random.default_rng(seed)
    total, size = HighestOf(np.array(counts)), max(1, len(rows) // 3)
    total._most = 3  # merges at every part
    shuffled = [rows[i] for i in rng.permutation(len(rows))]
    for start in range(0, max(len(rows), 1), size):
        part = shuffled[start : start + size]
        batch, rank, key = zip(*part, strict=True) if part else ((), (), ())
        columns = (np.array(batch, dtype=np.int64), np.array(rank, dtype=np.float64))
        total.add(Ranked(*columns, np.array(key, dtype=np.int64)))
    floors = Floors.of(total.result(), 4)
    for code, count in enumerate(counts):
        order = sorted(((r, k) for b, r, k in rows if b == code), reverse=True)[:count]
        if order:
            assert (float(floors.rank[code]), int(floors.key[code])) == order[-1]
        else:
            assert floors.rank[code] == np.inf
