"""One pass over the files, chunk by chunk."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import polars as pl
import pyarrow as pa

from rlpost.analysis.inspect import alignment, tokens
from rlpost.analysis.inspect import columns as decode
from rlpost.analysis.inspect.alignment import MaskJumps
from rlpost.analysis.inspect.columns import Block
from rlpost.analysis.inspect.measures import TokenSums
from rlpost.analysis.inspect.selection import KEYS, LOG_PROB_PAIRS, LOG_PROBS, ColumnSelection
from rlpost.analysis.inspect.token_sample import TokenSample
from rlpost.analysis.inspect.tokens import ColumnCounts
from rlpost.analysis.segments import segment_reduce, segment_sums
from rlpost.display.reporter import SilentReporter
from rlpost.errors import DataError
from rlpost.io.arrow import CellLocation, is_list, is_true
from rlpost.io.finish_reasons import truncations
from rlpost.io.memory_limit import KeptMemory
from rlpost.io.parquet.source import CHUNK_TOKENS, RowChunk
from rlpost.io.system import keep_freed_memory, release_freed_memory
from rlpost.io.threads import Prefetcher
from rlpost.kernels.histogram import tally
from rlpost.kernels.rewards import component_sum
from rlpost.pipeline.data import ATTEMPTS, FAILURE
from rlpost.pipeline.failures import failure_reasons

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from rlpost.analysis.inspect.columns import ListColumn
    from rlpost.display.reporter import Reporter
    from rlpost.io.parquet.source import Source
    from rlpost.kernels.moments import Mask


_PAIR = 8000
"""Bytes of a pair of step and domain, with the numbers of both, measured."""
AHEAD = 2  # chunks that are read in advance
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
    rows: pl.DataFrame
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


class ChunkUser(Protocol):
    """Computes something else from the chunks of the same pass."""

    read: list[str]
    """The columns that it needs."""

    def add(self, chunk: RowChunk) -> None:
        """Add the next chunk."""


def read(
    source: Source,
    selection: ColumnSelection,
    beside: Sequence[ChunkUser] = (),
    reporter: Reporter | None = None,
    counted: Mask | None = None,
) -> PassResult:
    """Read the input once, in chunks, on a thread of its own.

    Args:
        source: the input.
        selection: the columns of the statistics.
        beside: get each chunk after the statistics.
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
    reading = PassResult(selection, pl.DataFrame(), files=files, counted=counted)
    names = selection.names or source.columns[:1]
    columns = list(dict.fromkeys([*names, *(name for other in beside for name in other.read)]))
    chunks = source.read(columns, CHUNK_TOKENS, selection.lists_column or names[0])
    reporter = reporter or SilentReporter()
    reporter.start("statistics", source.rows)
    parts: list[pl.DataFrame] = []
    kept = KeptMemory(f"{source.name}: the numbers of all responses", _COPIES, source.rows)
    for chunk in Prefetcher(chunks, AHEAD):
        pairs_before = reading.sums.pairs
        with np.errstate(invalid="ignore", over="ignore"):  # what is not finite is counted
            parts.append(pl.DataFrame(_rows(chunk, source, reading)))
        pairs = _PAIR // _COPIES * (reading.sums.pairs - pairs_before)
        kept.add(int(parts[-1].estimated_size()) + pairs, chunk.table.num_rows)
        for user in beside:
            user.add(chunk)
        reporter.advance(chunk.table.num_rows)
    if not source.rows:
        parts.append(pl.DataFrame(_rows(_empty_chunk(source, names), source, reading)))
    reading.counts.drop_buffers()
    rows = _joined(parts)
    pa.default_memory_pool().release_unused()
    release_freed_memory()
    return replace(reading, rows=rows)


def _joined(parts: list[pl.DataFrame]) -> pl.DataFrame:
    """Return the rows of all chunks; keys are strings if their types differ between files."""
    mixed = [x for x in parts[0].columns if len({part.schema[x] for part in parts}) > 1]
    return pl.concat([part.with_columns(pl.col(mixed).cast(pl.String)) for part in parts])


def _empty_chunk(source: Source, names: Sequence[str]) -> RowChunk:
    """Return a chunk without rows, for an input without rows."""
    schema = source.schemas[0]
    fields = [schema.field(name) if name in schema.names else (name, pa.string()) for name in names]
    return RowChunk(0, 0, 0, pa.RecordBatch.from_pylist([], pa.schema(fields)))


def _rows(chunk: RowChunk, source: Source, reading: PassResult) -> dict[str, Any]:
    """Return numbers per response of a chunk; the reading gets sums."""
    selection, sums = reading.selection, reading.sums
    table, count = chunk.table, chunk.table.num_rows
    path = str(source.files[chunk.file].path)

    def column(role: str) -> tuple[Any, CellLocation]:
        name = selection.columns.columns.get(role, role)
        return table.column(name), CellLocation(path, chunk.first_row, name)

    rows: dict[str, Any] = {
        "file": np.full(count, chunk.file, np.int32),
        "row": np.arange(chunk.first_row, chunk.first_row + count, dtype=np.uint32),
    }
    rows |= _keys_and_numbers(column, selection)
    keys = sums.keys(rows.get("batch"), rows.get("domain"), count)
    lists: dict[str, ListColumn] = {}
    if selection.lists is not None:
        lists = {
            role: decode.lists_of(*column(role))
            for role in dict.fromkeys((selection.lists, *selection.tokens))
        }
        rows |= _labels_of_tokens(column, selection, lists)
        rows |= _tokens(lists, reading, rows, keys)
    if selection.lengths is not None:
        rows["tokens"] = decode.numbers_of(*column(selection.lengths))
    if selection.text is not None:
        rows["copy"] = decode.fingerprints_of(*column(selection.text))
    if selection.prompt is not None:
        array, location = column(selection.prompt)
        hashes = decode.fingerprints_of(array, location)
        rows["prompt"] = np.where(is_true(array.is_valid()), hashes, 0)
    if selection.kept is not None:
        rows["kept"] = decode.numbers_of(*column(selection.kept)) != 0
    if selection.advantages is not None:
        array, location = column(selection.advantages)
        credit, nonfinite = tokens.advantage_tokens(
            array, location, lists.get("mask"), rows.get("kept")
        )
        reading.counts["advantages.nonfinite"] += nonfinite
        reading.tally[:] += tally(credit["advantage"])
        of_tokens = is_list(array.type)
        sums.add("trained" if of_tokens else "trained rows", credit, keys)
        if selection.recorded:
            values, number = credit["advantage"], np.diff(credit.offsets)
            total = segment_sums(values, credit.offsets)
            rows["advantage"] = np.where(number > 0, total / np.maximum(number, 1), np.nan)
            ends = (
                segment_reduce(x, values, credit.offsets, 0.0) for x in (np.minimum, np.maximum)
            )
            rows["one_advantage"] = np.equal(*ends)
    return rows


def _keys_and_numbers(
    column: Callable[[str], tuple[Any, CellLocation]], selection: ColumnSelection
) -> dict[str, Any]:
    """Return keys, turns, rewards and truncation of responses, [n] each."""
    keys = {role: role for role in KEYS if role in selection.columns} | {**selection.places}
    keys |= {"rollout": selection.rollout} if selection.rollout else {}
    rows: dict[str, Any] = {
        role: series.cast(pl.Categorical) if series.dtype == pl.String else series
        for role, name in keys.items()
        for series in (decode.keys_of(*column(name)),)
    }
    if selection.turn is not None:
        rows["turn"] = decode.numbers_of(*column(selection.turn))
    if FAILURE in selection.columns:
        rows["failure"] = pl.Series(pl.from_arrow(failure_reasons(*column(FAILURE))))
    for role in ATTEMPTS:
        if role in selection.columns:
            rows[role] = decode.numbers_of(*column(role))
    if selection.components:
        columns = {name: decode.numbers_of(*column(name)) for name in selection.components}
        rows |= {f"component:{name}": values for name, values in columns.items()}
        values, weights = np.stack([*columns.values()], axis=1), [*selection.components.values()]
        lacking = np.isnan(values).any(1)
        rows["reward"] = np.where(lacking, np.nan, component_sum(values, np.array(weights)))
        nulls = [is_true(column(name)[0].is_null()) for name in selection.components]
        rows["reward_null"] = np.all(nulls, axis=0)
    elif "reward" in selection.columns:
        rows["reward"] = decode.numbers_of(*column("reward"))
        rows["reward_null"] = is_true(column("reward")[0].is_null())
    if "truncated" in selection.columns:
        rows["truncated"], unknown = truncations(*column("truncated"))
        rows["unknown_reason"] = pl.Series(pl.from_arrow(unknown))
    return rows


def _labels_of_tokens(
    column: Callable[[str], tuple[Any, CellLocation]],
    selection: ColumnSelection,
    lists: dict[str, ListColumn],
) -> dict[str, Any]:
    """Return what explains a mismatch of responses, [n] each; `lists` gets that of tokens."""
    rows: dict[str, Any] = {
        f"machine:{name}": decode.keys_of(*column(name)) for name in selection.machines
    }
    named = {"entropy": selection.entropy, "version": selection.version}
    for name in (x for x, column_name in named.items() if column_name is not None):
        array, location = column(named[name] or "")
        if is_list(array.type):
            lists[name] = decode.lists_of(array, location)
        elif name == "version":
            rows["version"] = decode.numbers_of(array, location)
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
