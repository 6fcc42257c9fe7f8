"""One pass over the files, chunk by chunk."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
import pyarrow as pa

from rlpost.analysis.counted import SAID, RowReader, joined, keys_of, numbers_of, stream_chunks
from rlpost.analysis.inspect import alignment, tokens
from rlpost.analysis.inspect.alignment import MaskJumps
from rlpost.analysis.inspect.measures import TokenSums
from rlpost.analysis.inspect.model import TokenColumn
from rlpost.analysis.inspect.prefixes import segments_of
from rlpost.analysis.inspect.selection import LOG_PROB_PAIRS, LOG_PROBS, ColumnSelection
from rlpost.analysis.inspect.token_sample import TokenSample
from rlpost.analysis.inspect.tokens import (
    Block,
    Buffers,
    ListColumn,
    column_rows,
    fingerprints_of,
    lists_of,
)
from rlpost.errors import DataError
from rlpost.io.arrow import is_list, is_true
from rlpost.io.memory_limit import KeptMemory
from rlpost.io.parquet.source import RowChunk
from rlpost.io.system import keep_freed_memory, release_freed_memory
from rlpost.kernels.histogram import tally
from rlpost.kernels.segments import count_true, segment_max, segment_min, segment_sum
from rlpost.recipe.roles import is_component

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from rlpost.analysis.counted import Rows
    from rlpost.display.reporter import Reporter
    from rlpost.io.parquet.source import Source
    from rlpost.kernels.moments import Mask
    from rlpost.kernels.prefixes import PolicySegments


_PAIR = 8000
"""Bytes of a pair of step and domain, with the numbers of both, measured."""
_COPIES = 4  # of numbers of responses: they are joined, and statistics add columns


@dataclass
class PassResult:
    """The result of the pass, to which chunks are added."""

    reader: RowReader
    selection: ColumnSelection
    counted: Mask | None = None
    """The rows whose tokens statistics of policies count, [N]; None: all."""
    said: Rows = field(default_factory=dict)
    """What rows say, of `RowReader`, with `tokens` and `length`."""
    rows: pl.DataFrame = field(default_factory=pl.DataFrame)
    """What rows say, with `file` and `row` (in its file), flags and means of their tokens, `copy`
    and `prompt` (hashes, 0 for no prompt), and by role the `entries` of a list of another length.
    """
    sums: TokenSums = field(default_factory=TokenSums)
    """Of the populations of tokens."""
    columns: dict[str, TokenColumn] = field(default_factory=dict)
    """Of tokens, by role."""
    differing: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Policy tokens with other log-probs, by the pair of roles."""
    other_mask: float | None = None
    """The highest value of the mask besides 0 and 1."""
    nonfinite_advantages: int = 0
    jumps: MaskJumps = field(default_factory=MaskJumps)
    """Of log-probs at the edges of the mask."""
    tally: NDArray[np.int64] = field(default_factory=lambda: tally(np.zeros(0)))
    """Of advantages, of `rlpost.kernels.histogram`."""
    sample: TokenSample = field(default_factory=TokenSample)
    segments: list[PolicySegments] = field(default_factory=list)
    """Of token ids, by chunk."""
    added: int = 0
    """Rows of the chunks so far."""
    buffers: Buffers = field(default_factory=Buffers)

    @property
    def files(self) -> list[str]:
        """Paths of the files, by `file` of `rows`."""
        return [str(file.path) for file in self.reader.source.files]

    def add(self, chunk: RowChunk) -> Rows:
        """Return numbers per response of the next chunk, [n] each."""
        selection, count = self.selection, chunk.table.num_rows
        rows = self.reader.rows(chunk) | {
            "file": np.full(count, chunk.file, np.int32),
            "row": np.arange(chunk.first_row, chunk.first_row + count, dtype=np.uint32),
        }
        keys = self.sums.keys(rows.get("batch"), rows.get("domain"), count)
        cells, lists = partial(self.reader.cells, chunk), dict[str, ListColumn]()
        if selection.lists is not None:
            for role in (selection.lists, *selection.tokens):
                lists[role] = lists_of(*cells(selection.columns.columns.get(role, role)))
            rows |= {f"machine:{name}": keys_of(cells(name)[0]) for name in selection.machines}
            for name, column in (("entropy", selection.entropy), ("version", selection.version)):
                if column is not None and is_list(cells(column)[0].type):
                    lists[name] = lists_of(*cells(column))
                elif column is not None:
                    rows[name] = numbers_of(*cells(column))
            rows |= self._add_tokens(lists, rows, keys)
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
            self.nonfinite_advantages += nonfinite
            self.tally += tally(credit["advantage"])
            self.sums.add("trained" if is_list(array.type) else "trained rows", credit, keys)
            rows |= _recorded(credit) if selection.recorded else {}
        if selection.ids is not None:
            self.segments.append(segments_of(cells, selection.ids, self.added))
        self.added += count
        return rows

    def _add_tokens(
        self, lists: Mapping[str, ListColumn], said: Rows, keys: NDArray[np.int64]
    ) -> Rows:
        """Return numbers per response of the tokens of a chunk.

        Args:
            lists: by role.
            said: what its rows say.
            keys: of `TokenSums.keys`.
        """
        selection = self.selection
        first = lists[selection.lists or ""]
        lengths, count = first.lengths, len(first.lengths)
        rows: Rows = {
            "length": lengths.astype(np.int32),
            "null_list": np.zeros(count, np.bool_) if first.nulls is None else first.nulls,
        }
        mask: Mask | None = None
        if selection.lists == "mask":
            mask, rows["not_binary"] = self._mask(first)
        rows |= alignment.mask_rows(Block(first.offsets, {}, mask))
        unequal = {role: lists[role].lengths != lengths for role in selection.tokens}
        for role, flags in unequal.items():
            column = self.columns.setdefault(role, TokenColumn(selection.columns.column(role)))
            column.unequal_rows += int(flags.sum())
            rows |= {f"unequal:{role}": flags, f"entries:{role}": _entries(lists[role], flags)}
        # A column whose lengths differ in most rows is left out; so are rows with unequal lengths.
        fitting = [role for role, flags in unequal.items() if 2 * flags.sum() <= count]
        good = ~np.any([unequal[role] for role in fitting] or [np.zeros(count, bool)], axis=0)
        others = [name for name in ("entropy", "version") if name in lists]
        used = {name: lists[name].like(first.offsets) for name in (*fitting, *others)}
        nulls = {x: null for x in fitting if (null := used[x].null_values) is not None}
        values = {name: column.values for name, column in used.items()}
        whole = Block(first.offsets, values, mask, nulls)
        block = whole.of_rows(good)
        policy = block.policy()
        flags = alignment.end_rows(block)
        for role in fitting:
            more, finite = column_rows(self.columns[role], role, policy, self.buffers)
            flags |= more
            if selection.details:
                self.sums.add(f"column {role}", finite, keys)
        self.jumps.add(block)
        for left, right in LOG_PROB_PAIRS:
            if {left, right} <= policy.values.keys():
                differ = policy.values[left] != policy.values[right]
                self.differing[left, right] += int(np.count_nonzero(differ))
        for role in selection.tokens:
            kinds = OF_TOKENS if role in LOG_PROBS else {"nonfinite": OF_TOKENS["nonfinite"]}
            empty = {f"{kind}:{role}": value for kind, value in kinds.items()}
            rows |= _placed(flags, block, empty, count)
        # Columns are checked in all rows; statistics of policies are of those that count.
        begin = self.added
        if self.counted is not None and not self.counted[begin : begin + count][good].all():
            block = whole.of_rows(good & self.counted[begin : begin + count])
            policy = block.policy()
        return rows | self._add_policies(block, policy, said, keys)

    def _add_policies(
        self, block: Block, policy: Block, said: Rows, keys: NDArray[np.int64]
    ) -> Rows:
        """Return divergences per response of the rows that count, a block and its policy tokens."""
        details, sums, rows = self.selection.details, self.sums, dict[str, Any]()
        both, with_reference = ({*pair} <= policy.values.keys() for pair in LOG_PROB_PAIRS[:2])
        self.sample.add(block, self.added)
        if both:
            compared = tokens.compared_tokens(policy, self.buffers)
            sums.add("compared", compared, keys, placed=details)
            number = np.diff(compared.offsets)
            k3 = segment_sum(compared["excess"] - compared["d"], compared.offsets)
            mean = np.where(number > 0, k3 / np.maximum(number, 1), np.nan)
            rows["k3"] = mean.astype(np.float32)
        if with_reference:
            rows["kl"], gaps = tokens.reference_tokens(policy, self.buffers)
            sums.add("drift", gaps, keys)
        if details:
            role = tokens.policy_role(self.selection.tokens)
            if (entropies := tokens.entropy_tokens(policy, role)) is not None:
                sums.add("policy", entropies, keys, placed=True)
            if "values" in policy and "reward" in said:
                critic = tokens.critic_tokens(policy, said["reward"][block.places])
                sums.add("critic", critic, keys, placed=True)
        return _placed(rows, block, dict.fromkeys(self.selection.row_numbers, np.nan), len(keys))

    def _mask(self, lists: ListColumn) -> tuple[Mask | None, Mask]:
        """Return the mask, None if it is 1 everywhere, and the rows with other values than 0, 1."""
        values, none = lists.values, np.zeros(len(lists.lengths), np.bool_)
        kept = values == 1
        if kept.all():
            return None, none
        wrong = ~kept & (values != 0)
        if not wrong.any():
            return kept, none
        others = values[wrong & np.isfinite(values)]
        if len(others):
            self.other_mask = max(self.other_mask or -np.inf, float(others.max()))
        return kept | wrong, count_true(wrong, lists.offsets) > 0


def read(
    source: Source,
    selection: ColumnSelection,
    reporter: Reporter | None = None,
    counted: Mask | None = None,
) -> PassResult:
    """Read the input once, in chunks, on a thread of its own.

    Args:
        source: the input.
        selection: the columns of the statistics.
        reporter: gets the progress.
        counted: [N] the rows whose tokens statistics of policies count; None: all.

    Raises:
        DataError: a column has a type that its role can't have, or there are no columns.
        ReadWriteError: reading failed.
    """
    if not source.columns:
        raise DataError(f"{source.name}: there are no columns, so there is nothing to read")
    keep_freed_memory()
    reader = RowReader(source, selection.columns, selection.components)
    reading = PassResult(reader, selection, counted)
    names = list(dict.fromkeys([*reader.names, *selection.names]))
    parts: list[Rows] = []
    kept = KeptMemory(f"{source.name}: the numbers of all responses", _COPIES, source.rows)
    sized_by = selection.lists_column or next(iter(names), "")
    with np.errstate(invalid="ignore", over="ignore"):  # what is not finite is counted
        for chunk in stream_chunks(source, names, sized_by, "statistics", reporter):
            pairs_before = reading.sums.pairs
            parts.append(reading.add(chunk))
            pairs = _PAIR // _COPIES * (reading.sums.pairs - pairs_before)
            size = sum(column.nbytes for column in parts[-1].values())
            kept.add(size + pairs, chunk.table.num_rows)
        if not source.rows:
            parts.append(reading.add(_empty_chunk(source, names)))
    reading.buffers.clear()
    rows = joined(parts)
    reading.said = {name: x for name, x in rows.items() if name in SAID or is_component(name)}
    reading.rows = pl.DataFrame(
        {name: pl.from_arrow(x) if isinstance(x, pa.Array) else x for name, x in rows.items()}
    )
    pa.default_memory_pool().release_unused()
    release_freed_memory()
    return reading


def _empty_chunk(source: Source, names: Sequence[str]) -> RowChunk:
    """Return a chunk without rows, for an input without rows."""
    schema = source.schemas[0]
    fields = [schema.field(name) if name in schema.names else (name, pa.string()) for name in names]
    return RowChunk(0, 0, 0, pa.RecordBatch.from_pylist([], pa.schema(fields)))


def _recorded(credit: Block) -> Rows:
    """Return the mean of the advantages of each response, and whether they are all one."""
    values, offsets = credit["advantage"], credit.offsets
    number, total = np.diff(offsets), segment_sum(values, offsets)
    low, high = segment_min(values, offsets), segment_max(values, offsets)
    mean = np.where(number > 0, total / np.maximum(number, 1), np.nan)
    return {"advantage": mean, "one_advantage": low >= high}


def _entries(lists: ListColumn, unequal: Mask) -> NDArray[np.int32]:
    """Return the number of values of rows that have another one, -1 without a list, [n]."""
    entries = np.where(unequal, lists.lengths, 0).astype(np.int32)
    if lists.nulls is not None:
        entries[lists.nulls & unequal] = -1
    return entries


OF_TOKENS: dict[str, Any] = {
    "mean": np.float32(np.nan), "nonfinite": np.False_, "positive": np.False_,
    "padded": np.int32(-1), "left": np.int32(-1), "shifted": np.False_,
}  # fmt: skip
"""Numbers of responses of each column of log-probs, with those of a response that is left out."""


def _placed(numbers: Rows, block: Block, empty: Mapping[str, Any], count: int) -> Rows:
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
