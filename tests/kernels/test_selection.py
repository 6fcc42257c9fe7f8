"""The selection of the highest tokens of batches: hashes, ties, parts in any order."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from rlpost.kernels.selection import (
    Floors,
    HighestOf,
    Ranked,
    mixed,
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
