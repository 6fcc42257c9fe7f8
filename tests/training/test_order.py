"""The order of training: every response once, in steps whose totals are those of their batches."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from rlpost.errors import DataError, UsageError
from rlpost.training.order import BatchOptions, Epoch, RowFacts, epoch_of


def facts_of(
    sizes: list[int], *, groups: int = 4, row_group: int = 7, masked: tuple[int, ...] = ()
) -> RowFacts:
    """Return facts about rows of these sizes, in prompt groups of some rows each."""
    size = np.array(sizes, np.int64)
    included = np.ones(len(size), np.bool_)
    included[list(masked)] = False
    starts = np.append(np.arange(0, len(size), row_group), len(size))
    group = np.arange(len(size)) // groups
    return RowFacts(np.where(included, size, 0), size, size, included, group, group, starts)


def options_of(**changes: Any) -> BatchOptions:
    """Return options with some changes."""
    usual: dict[str, Any] = {
        "size": 5, "tokens": None, "padded": True, "together": "response", "seed": 3,
        "world_size": 1, "accumulate": 1, "last": "keep", "window": 60,
    }  # fmt: skip
    return BatchOptions(**(usual | changes))


def rows_of(epoch: Epoch) -> list[int]:
    """Return the rows of all batches of all ranks."""
    ranks = epoch.ranks
    return [int(row) for rank in ranks for n in range(len(rank)) for row in rank.batch(n)]


@given(
    sizes=st.lists(st.integers(0, 12), min_size=1, max_size=60),
    world=st.integers(1, 4),
    accumulate=st.integers(1, 3),
    seed=st.one_of(st.none(), st.integers(0, 9)),
    limit=st.sampled_from([("size", 1), ("size", 5), ("tokens", 20)]),
    flags=st.tuples(st.booleans(), st.booleans()),
    window=st.integers(20, 200),
)
def test_every_row_once_and_totals_of_steps(
    sizes: list[int],
    world: int,
    accumulate: int,
    seed: int | None,
    limit: tuple[str, int],
    flags: tuple[bool, bool],
    window: int,
) -> None:
    padded, kept = flags
    together = "group" if kept else "response"
    facts = facts_of(sizes, masked=tuple(range(0, len(sizes), 5))[1:])
    chosen = {"size": None, limit[0]: limit[1]}
    options = options_of(
        **chosen, padded=padded, together=together, seed=seed, world_size=world,
        accumulate=accumulate, window=window,
    )  # fmt: skip
    try:
        epoch = epoch_of(facts, options, 1)
    except DataError:
        assume(not kept)  # groups are too far apart for the window
        raise
    assert sorted(rows_of(epoch)) == np.flatnonzero(facts.included).tolist()
    for step in range(epoch.steps):
        batches = [
            rank.batch(number)
            for rank in epoch.ranks
            for number in range(step * accumulate, min((step + 1) * accumulate, len(rank)))
        ]
        rows = np.concatenate(batches)
        totals = epoch.totals(step)
        assert totals.rows == len(rows)
        assert totals.tokens == facts.tokens[rows].sum()
        assert totals.responses == (facts.tokens[rows] > 0).sum()
        assert totals.groups == len({*facts.group[rows][facts.tokens[rows] > 0].tolist()})
        for batch in batches:
            assert fits(batch, facts, options)
    for rank in epoch.ranks:
        assert (np.diff(rank.window) >= 0).all()
        in_memory = {w: epoch.slices.window <= w for w in set(rank.window.tolist())}
        for row, window_of in zip(rank.rows, rank.window, strict=False):
            ready = in_memory[int(window_of)]
            begin, end = epoch.slices.start[ready], epoch.slices.stop[ready]
            assert ((begin <= row) & (row < end)).any(), "a row is needed before it is read"


def fits(batch: np.ndarray, facts: RowFacts, options: BatchOptions) -> bool:
    """Return whether a batch is within its limits, or is a single unit."""
    units = facts.group[batch] if options.together == "group" else batch
    if len(set(units.tolist())) == 1:
        return True
    if options.size is not None:
        return len(batch) <= options.size
    assert options.tokens is not None
    sizes = facts.size[batch]
    return (len(batch) * sizes.max() if options.padded else sizes.sum()) <= options.tokens


@given(sizes=st.lists(st.integers(1, 12), min_size=24, max_size=60), world=st.integers(1, 3))
def test_even_ranks_have_as_many_batches_and_lose_nothing(sizes: list[int], world: int) -> None:
    options = options_of(size=None, tokens=30, padded=False, world_size=world, last="even")
    epoch = epoch_of(facts_of(sizes), options, 0)
    assert len({len(rank) for rank in epoch.ranks}) == 1
    assert sorted(rows_of(epoch)) == [*range(len(sizes))]


def test_drop_leaves_out_what_fills_no_step() -> None:
    options = options_of(size=3, world_size=2, accumulate=2, last="drop")
    epoch = epoch_of(facts_of([4] * 31), options, 0)
    assert [len(rank) for rank in epoch.ranks] == [4, 4]
    assert [epoch.totals(step).rows for step in (0, 1)] == [12, 12]
    assert [len(rank.window) for rank in epoch.ranks] == [len(rank.rows) for rank in epoch.ranks]


def test_groups_stay_together() -> None:
    epoch = epoch_of(facts_of([3] * 40, row_group=10), options_of(size=8, together="group"), 0)
    (rank,) = epoch.ranks
    for number in range(len(rank)):
        groups, counts = np.unique(rank.batch(number) // 4, return_counts=True)
        assert counts.tolist() == [4] * len(groups)


def test_seeds_and_epochs_have_other_orders_and_none_is_that_of_the_input() -> None:
    facts = facts_of([5] * 60)
    orders = [
        tuple(rows_of(epoch_of(facts, options_of(seed=seed), epoch)))
        for seed, epoch in ((1, 0), (1, 1), (2, 0), (None, 0))
    ]
    assert len({*orders}) == 4
    assert orders[3] == tuple(range(60))
    assert orders[0] == tuple(rows_of(epoch_of(facts, options_of(seed=1), 0)))


def test_a_rank_reads_few_slices_of_a_window() -> None:
    """Ranks share the decoding: each has neighbouring rows of a window."""
    facts = facts_of([10] * 400, row_group=10)
    epoch = epoch_of(facts, options_of(world_size=4, window=1000), 0)
    read = [len({*(rank.rows // 10).tolist()}) for rank in epoch.ranks]
    assert max(read) <= 40 / 4 * 2


def test_errors_name_what_to_change() -> None:
    scattered = facts_of([9] * 40)
    mixed = RowFacts(*vars(scattered).values())
    mixed.unit[:] = np.arange(40) % 10
    with pytest.raises(DataError, match="the rows of prompt groups are so far apart"):
        epoch_of(mixed, options_of(together="group", seed=None), 0)
    with pytest.raises(UsageError, match="of 1 responses for 2 ranks, one has 0 for 1 batches"):
        epoch_of(facts_of([1]), options_of(world_size=2, last="even"), 0)
    with pytest.raises(
        UsageError, match="4 responses are no full step of 3 batches of 5 responses for"
    ):
        epoch_of(facts_of([1] * 4), options_of(accumulate=3, last="drop"), 0)
