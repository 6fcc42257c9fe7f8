"""One pass over the files, chunk by chunk."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
import pyarrow as pa

from rlpost.analysis.inspect import alignment, tokens
from rlpost.analysis.inspect.alignment import MaskJumps
from rlpost.analysis.inspect.columns import Block, ListColumn, fingerprints_of, lists_of
from rlpost.analysis.inspect.measures import TokenSums
from rlpost.analysis.inspect.selection import LOG_PROB_PAIRS, LOG_PROBS, ColumnSelection
from rlpost.analysis.inspect.token_sample import TokenSample
from rlpost.analysis.inspect.tokens import ColumnCounts
from rlpost.analysis.rows import SAID, RowReader, joined, keys_of, numbers_of, stream_chunks
from rlpost.analysis.segments import segment_reduce, segment_sums
from rlpost.errors import DataError
from rlpost.io.arrow import is_list, is_true
from rlpost.io.memory_limit import KeptMemory
from rlpost.io.parquet.source import RowChunk
from rlpost.io.system import keep_freed_memory, release_freed_memory
from rlpost.kernels.histogram import tally
from rlpost.recipe.roles import is_component

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from rlpost.analysis.inspect.prefixes import SegmentReader
    from rlpost.analysis.rows import Rows
    from rlpost.display.reporter import Reporter
    from rlpost.io.arrow import CellLocation
    from rlpost.io.parquet.source import Source
    from rlpost.kernels.moments import Mask


_PAIR = 8000
"""Bytes of a pair of step and domain, with the numbers of both, measured."""
_COPIES = 4  # of numbers of responses: they are joined, and statistics add columns


@dataclass(frozen=True)
class PassResult:
    """The result of the pass.

    `rows` has a row per response: `file`, `row` (in its file), the keys, `reward`, `truncated`,
    `length` (all tokens), `tokens` (policy tokens, NaN if unknown), flags and means of its tokens,
    `copy` and `prompt` (hashes, 0 for no prompt), and by role the `entries` of a list of another
    length.
    """

    selection: ColumnSelection
    said: Rows = field(default_factory=dict)
    """What rows say, of `RowReader`, with `tokens` and `length`."""
    rows: pl.DataFrame = field(default_factory=pl.DataFrame)
    sums: TokenSums = field(default_factory=TokenSums)
    """Of the populations of tokens."""
    counts: ColumnCounts = field(default_factory=ColumnCounts)
    """Of columns of tokens."""
    jumps: MaskJumps = field(default_factory=MaskJumps)
    """Of log-probs at the edges of the mask."""
    tally: NDArray[np.int64] = field(default_factory=lambda: tally(np.zeros(0)))
    """Of advantages, of `rlpost.kernels.histogram`."""
    sample: TokenSample = field(default_factory=TokenSample)
    files: list[str] = field(default_factory=list)
    """Paths of the files, by `file` of `rows`."""
    counted: Mask | None = None
    """The rows whose tokens statistics of policies count, [N]; None: all."""


def read(
    source: Source,
    selection: ColumnSelection,
    segments: SegmentReader | None = None,
    reporter: Reporter | None = None,
    counted: Mask | None = None,
) -> PassResult:
    """Read the input once, in chunks, on a thread of its own.

    Args:
        source: the input.
        selection: the columns of the statistics.
        segments: gets each chunk, for its token ids.
        reporter: gets the progress.
        counted: [N] the rows whose tokens statistics of policies count; None: all.

    Raises:
        DataError: a column has a type that its role can't have, or there are no columns.
        ReadWriteError: reading failed.
    """
    if not source.columns:
        raise DataError(f"{source.name}: there are no columns, so there is nothing to read")
    keep_freed_memory()
    files = [str(file.path) for file in source.files]
    reading = PassResult(selection, files=files, counted=counted)
    reader = RowReader(source, selection.columns, selection.components)
    of_ids = [] if segments is None else segments.read
    names = list(dict.fromkeys([*reader.names, *selection.names, *of_ids]))
    parts: list[Rows] = []
    kept = KeptMemory(f"{source.name}: the numbers of all responses", _COPIES, source.rows)
    sized_by = selection.lists_column or next(iter(names), "")
    for chunk in stream_chunks(source, names, sized_by, "statistics", reporter):
        pairs_before = reading.sums.pairs
        parts.append(_rows(chunk, reader, reading))
        pairs = _PAIR // _COPIES * (reading.sums.pairs - pairs_before)
        size = sum(column.nbytes for column in parts[-1].values())
        kept.add(size + pairs, chunk.table.num_rows)
        if segments is not None:
            segments.add(chunk)
    if not source.rows:
        parts.append(_rows(_empty_chunk(source, names), reader, reading))
    reading.counts.drop_buffers()
    arrays = joined(parts)
    rows = pl.DataFrame(
        {name: pl.from_arrow(x) if isinstance(x, pa.Array) else x for name, x in arrays.items()}
    )
    pa.default_memory_pool().release_unused()
    release_freed_memory()
    said = {name: x for name, x in arrays.items() if name in SAID or is_component(name)}
    return replace(reading, rows=rows, said=said)


def _empty_chunk(source: Source, names: Sequence[str]) -> RowChunk:
    """Return a chunk without rows, for an input without rows."""
    schema = source.schemas[0]
    fields = [schema.field(name) if name in schema.names else (name, pa.string()) for name in names]
    return RowChunk(0, 0, 0, pa.RecordBatch.from_pylist([], pa.schema(fields)))


def _rows(chunk: RowChunk, reader: RowReader, reading: PassResult) -> Rows:
    """Return numbers per response of a chunk; the reading gets sums."""
    with np.errstate(invalid="ignore", over="ignore"):  # what is not finite is counted
        selection, sums, count = reading.selection, reading.sums, chunk.table.num_rows
        rows = reader.rows(chunk) | {
            "file": np.full(count, chunk.file, np.int32),
            "row": np.arange(chunk.first_row, chunk.first_row + count, dtype=np.uint32),
        }
        keys = sums.keys(rows.get("batch"), rows.get("domain"), count)
        cells, lists = partial(reader.cells, chunk), dict[str, ListColumn]()
        if selection.lists is not None:
            for role in (selection.lists, *selection.tokens):
                lists[role] = lists_of(*cells(selection.columns.columns.get(role, role)))
            rows |= _labels_of_tokens(cells, selection, lists)
            rows |= _tokens(lists, reading, rows, keys)
        if selection.text is not None:
            rows["copy"] = fingerprints_of(*cells(selection.text))
        if selection.prompt is not None:
            array, location = cells(selection.prompt)
            hashes = fingerprints_of(array, location)
            rows["prompt"] = np.where(is_true(array.is_valid()), hashes, 0)
        if selection.advantages is not None:
            array, location = cells(selection.advantages)
            credit, nonfinite = tokens.advantage_tokens(
                array, location, lists.get("mask"), rows.get("kept")
            )
            reading.counts["advantages.nonfinite"] += nonfinite
            reading.tally[:] += tally(credit["advantage"])
            sums.add("trained" if is_list(array.type) else "trained rows", credit, keys)
            rows |= _recorded(credit) if selection.recorded else {}
    return rows


def _recorded(credit: Block) -> Rows:
    """Return the mean of the advantages of each response, and whether they are all one."""
    values, offsets = credit["advantage"], credit.offsets
    number, total = np.diff(offsets), segment_sums(values, offsets)
    low, high = (segment_reduce(x, values, offsets, 0.0) for x in (np.minimum, np.maximum))
    mean = np.where(number > 0, total / np.maximum(number, 1), np.nan)
    return {"advantage": mean, "one_advantage": low == high}


def _labels_of_tokens(
    cells: Callable[[str], tuple[pa.Array, CellLocation]],
    selection: ColumnSelection,
    lists: dict[str, ListColumn],
) -> Rows:
    """Return what explains a mismatch of responses, [n] each; `lists` gets that of tokens."""
    rows: Rows = {f"machine:{name}": keys_of(cells(name)[0]) for name in selection.machines}
    for name, column in (("entropy", selection.entropy), ("version", selection.version)):
        if column is not None:
            array, location = cells(column)
            if is_list(array.type):
                lists[name] = lists_of(array, location)
            else:
                rows[name] = numbers_of(array, location)
    return rows


def _tokens(
    lists: dict[str, ListColumn], reading: PassResult, others: Mapping[str, Any],
    keys: NDArray[np.int64],
) -> dict[str, NDArray[Any]]:  # fmt: skip
    """Return numbers per response of its tokens; the reading gets sums.

    Args:
        lists: by role.
        reading: the pass.
        others: numbers and keys of the responses, [n] each.
        keys: of `TokenSums.keys`.
    """
    selection = reading.selection
    assert selection.lists is not None
    first = lists[selection.lists]
    lengths, count = first.lengths, len(first.lengths)
    rows: dict[str, NDArray[Any]] = {
        "length": lengths.astype(np.int32),
        "null_list": np.zeros(count, np.bool_) if first.nulls is None else first.nulls,
    }
    unequal = {role: lists[role].lengths != lengths for role in selection.tokens}
    rows |= {f"unequal:{role}": flags for role, flags in unequal.items()}
    rows |= {f"entries:{role}": _entries(lists[role], unequal[role]) for role in unequal}
    mask: Mask | None = None
    if selection.lists == "mask":
        mask, rows["not_binary"] = _mask(first, reading.counts)
    rows |= alignment.mask_rows(Block(first.offsets, {}, mask))
    # A column whose lengths differ in most rows is left out; so are rows with unequal lengths.
    fitting = [role for role, flags in unequal.items() if 2 * flags.sum() <= count]
    good = ~np.any([unequal[role] for role in fitting] or [np.zeros(count, bool)], axis=0)
    others_of_tokens = [x for x in ("entropy", "version") if x in lists]
    used = {x: lists[x] if good.all() else lists[x].like(first.offsets) for x in fitting}
    used |= {name: lists[name].like(first.offsets) for name in others_of_tokens}
    nulls = {x: null for x in fitting if (null := used[x].null_values) is not None}
    whole = Block(first.offsets, {x: left.values for x, left in used.items()}, mask, nulls)
    block = whole.of_rows(good)
    policy = block.policy()
    flags = alignment.end_rows(block)
    for role in fitting:
        more, finite = reading.counts.add(role, policy)
        flags |= more
        if selection.details:
            reading.sums.add(f"column {role}", finite, keys)
    reading.jumps.add(block)
    for left, other in LOG_PROB_PAIRS:
        if {left, other} <= policy.values.keys():
            pair, equal = f"{left}/{other}", policy.values[left] == policy.values[other]
            reading.counts.count(f"{pair}.equal", equal)
            reading.counts[f"{pair}.tokens"] += len(equal)
    for role in selection.tokens:
        kinds = OF_TOKENS if role in LOG_PROBS else {"nonfinite": OF_TOKENS["nonfinite"]}
        empty = {f"{kind}:{role}": value for kind, value in kinds.items()}
        rows |= _placed(flags, block, empty, count)
    # Columns are checked in all rows; statistics of policies are of those that count.
    if reading.counted is not None:
        begin = reading.sample.rows
        counts = good & reading.counted[begin : begin + count]
        if not np.array_equal(counts, good):
            block = whole.of_rows(counts)
            policy = block.policy()
    return rows | _policy_rows(block, policy, reading, others, keys)


def _policy_rows(
    block: Block, policy: Block, reading: PassResult, others: Mapping[str, Any],
    keys: NDArray[np.int64],
) -> dict[str, NDArray[Any]]:  # fmt: skip
    """Return divergences per response; the reading gets sums.

    Args:
        block: of the rows that count.
        policy: its policy tokens.
        reading: the pass.
        others: numbers and keys of the responses, [n] each.
        keys: [n] their cells.
    """
    selection, sums, counts = reading.selection, reading.sums, reading.counts
    details = selection.details
    rows: dict[str, NDArray[Any]] = {}
    roles = [role for role in _SAMPLED if role in selection.tokens]
    others_of_tokens = [x for x in ("entropy", "version") if x in block.values]
    reading.sample.add(block, reading.sample.rows + block.places, roles, others_of_tokens)
    if {"old_log_probs", "infer_log_probs"} <= block.values.keys():
        compared = tokens.compared_tokens(policy, counts)
        sums.add("compared", compared, keys, placed=details)
        number = np.diff(compared.offsets)
        k3 = segment_sums(compared["excess"] - compared["d"], compared.offsets)
        rows["k3"] = np.where(number > 0, k3 / np.maximum(number, 1), np.nan).astype(np.float32)
    reading.sample.rows += len(keys)
    if {"old_log_probs", "ref_log_probs"} <= block.values.keys():
        rows["kl"], gaps = tokens.reference_tokens(policy, counts)
        sums.add("drift", gaps, keys)
    if details:
        entropies = tokens.entropy_tokens(policy, tokens.policy_role(selection.tokens))
        if entropies is not None:
            sums.add("policy", entropies, keys, placed=True)
        if "values" in block.values and "reward" in others:
            critic = tokens.critic_tokens(policy, others["reward"][block.places])
            sums.add("critic", critic, keys, placed=True)
    return _placed(rows, block, dict.fromkeys(selection.row_numbers, np.nan), len(keys))


def _entries(lists: ListColumn, unequal: Mask) -> NDArray[np.int32]:
    """Return the number of values of rows that have another one, -1 without a list, [n]."""
    entries = np.where(unequal, lists.lengths, 0).astype(np.int32)
    if lists.nulls is not None:
        entries[lists.nulls & unequal] = -1
    return entries


_SAMPLED = ("infer_log_probs", "old_log_probs", "ref_log_probs")


def _placed(
    numbers: Mapping[str, NDArray[Any]], block: Block, empty: Mapping[str, Any], count: int
) -> dict[str, NDArray[Any]]:
    """Return numbers of the rows of a block among all rows of a chunk, [count]; others are empty.

    Args:
        numbers: [n] each; those that lack are empty in all rows.
        block: of n rows.
        empty: by name, the number of other rows.
        count: of rows of the chunk.
    """
    rows = {name: np.full(count, value) for name, value in empty.items()}
    for name in rows.keys() & numbers.keys():
        rows[name][block.places] = numbers[name]
    return rows


OF_TOKENS: dict[str, Any] = {
    "mean": np.float32(np.nan), "nonfinite": np.False_, "positive": np.False_,
    "padded": np.int32(-1), "left": np.int32(-1), "shifted": np.False_,
}  # fmt: skip
"""Numbers of responses of each column of log-probs, with those of a response that is left out."""


def _mask(lists: ListColumn, counts: ColumnCounts) -> tuple[Mask | None, Mask]:
    """Return the mask, None if it is 1 everywhere, and the rows with values other than 0 and 1."""
    values, rows = lists.values, len(lists.lengths)
    kept = values == 1
    if kept.all():
        return None, np.zeros(rows, np.bool_)
    wrong = ~kept & (values != 0)
    if not wrong.any():
        return kept, np.zeros(rows, np.bool_)
    others = values[wrong & np.isfinite(values)]
    if len(others):
        counts.high["mask"] = max(counts.high.get("mask", -np.inf), float(others.max()))
    return kept | wrong, segment_sums(wrong.astype(np.int64), lists.offsets) > 0
