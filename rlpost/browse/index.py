"""A few numbers of every response of an input, enough to sort, filter and find them by."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rlpost.browse import lists
from rlpost.browse.columns import log_probs_of
from rlpost.errors import DataError
from rlpost.parallel import ahead
from rlpost.parquet.ragged import is_list
from rlpost.progress import Silent

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from rlpost.parquet.pieces import Piece
    from rlpost.parquet.source import Source
    from rlpost.progress import Reporter
    from rlpost.schema import ColumnMap

    Numbers = NDArray[np.float64]
    Codes = NDArray[np.int64]

Label = str | int | None
MEASURES = ("reward", "kl", "length", "advantage")
PIECE_TOKENS = 1 << 20
_KL_CLAMP = 40.0  # as `rlpost advantages` clamps the log-ratio


@dataclass(frozen=True)
class Keys:
    """A column of keys: a code for each row and what the codes stand for."""

    codes: Codes
    labels: pa.Array

    def label(self, code: int) -> Label:
        """What a code stands for."""
        return self.labels[code].as_py()  # type: ignore[no-any-return]


@dataclass
class Index:
    """Every response of an input, in its order; built by streaming a few columns.

    Rows are numbered from 0 over all files. Numbers that a file lacks are NaN.
    """

    source: Source
    columns: ColumnMap
    names: dict[str, str]
    """Columns of texts, tokens, advantages and KL; from `rlpost.browse.columns.named`."""
    reward: Numbers
    tokens: Codes
    """Entries of the row's token lists; 0 where the input has no such column."""
    length: Codes
    """Those of them that the policy produced."""
    step: Keys | None
    prompt: Keys | None
    domain: Keys | None
    truncated: NDArray[np.bool_] | None
    step_rank: Codes
    """[N] place of the row's step among all steps; 0 without steps."""
    group: Codes
    """[N] code of (step, prompt), in the order in which steps follow and groups first appear."""
    measures: dict[str, Numbers] = field(default_factory=dict)
    """`kl` and `advantage`: a mean over each response's policy tokens, once measured."""

    def __len__(self) -> int:
        return len(self.reward)

    def number(self, measure: str) -> Numbers:
        """One of MEASURES for each row, [N]; KL and advantage must have been measured.

        `kl` is the mean of the `kl` column, else of old − reference log-probs (k1, clamped to
        ±40); `advantage` the mean of the `advantages` column, or the scalar one.
        """
        if measure == "reward":
            return self.reward
        return self.length.astype(np.float64) if measure == "length" else self.measures[measure]

    def columns_for(self, measure: str) -> list[str]:
        """The columns that a measure is made of; empty where the input lacks them."""
        roles, names = self.columns, self.names
        if measure == "reward":
            return [roles.column("reward")] if "reward" in roles else []
        if measure == "length":
            return [self.sized_by] if self.sized_by else []
        pair = [roles.column(r) for r in ("old_log_probs", "ref_log_probs") if r in roles]
        if measure == "logprob":
            own = log_probs_of(roles)
            found = [own] if own else []
        elif measure in names:
            found = [names[measure]]
        else:
            found = pair if measure == "kl" and len(pair) == 2 else []  # noqa: PLR2004
        masked = [roles.column("mask")] if found and "mask" in roles else []
        return [*found, *masked]

    @property
    def sized_by(self) -> str | None:
        """The list column whose entries count as tokens."""
        return list_column(self.source, self.columns, self.names)

    def measure(self, measure: str, reporter: Reporter | None = None) -> None:
        """Stream what `kl` or `advantage` is made of, and keep a mean for each response.

        Raises:
            DataError: the input has no column for it.
        """
        if measure in ("reward", "length") or measure in self.measures:
            return
        columns = self.columns_for(measure)
        if not columns:
            raise self.lacking(measure)
        mask = self.columns.column("mask") if "mask" in self.columns else None
        own = [name for name in columns if name != mask]
        parts = [
            _mean_of(piece.table, own, mask)
            for piece in stream(self.source, columns, self.sized_by, reporter, f"{measure}s")
        ]
        self.measures[measure] = np.concatenate(parts) if parts else np.zeros(0)

    def lacking(self, measure: str) -> DataError:
        """The error for a measure that the input has no columns for."""
        return DataError(f"{self.source.name}: no column for the {_LACKING[measure]}")

    def rows_of(self, prompt: str) -> Codes:
        """The rows of a prompt, in the input's order; empty where there is no such id."""
        if self.prompt is None:
            return np.zeros(0, dtype=np.int64)
        labels = self.prompt.labels
        wanted = np.flatnonzero(
            pc.equal(labels.cast(pa.string()), prompt).to_numpy(zero_copy_only=False)
        )
        return np.flatnonzero(np.isin(self.prompt.codes, wanted))

    def place(self, row: int) -> tuple[int, int]:
        """The file of a row, and its number there."""
        file = int(np.searchsorted(self.source.first_rows, row, side="right")) - 1
        return file, row - self.source.first_rows[file]


_LACKING = {
    "kl": "KL: `kl`, or old and reference log-probs (--map old_log_probs=COLUMN)",
    "advantage": "advantages: `rlpost advantages` writes one",
    "reward": "reward (--map reward=COLUMN)",
    "length": "length: a mask or another list of one entry per token (--map mask=COLUMN)",
    "logprob": "log-probs (--map old_log_probs=COLUMN)",
}


def stream(
    source: Source,
    columns: Sequence[str],
    sized_by: str | None,
    reporter: Reporter | None,
    purpose: str,
) -> Iterator[Piece]:
    """The pieces of an input, read ahead in a thread; each is reported when it is done with."""
    reporter = reporter or Silent()
    reporter.start(purpose, source.rows)
    for piece in ahead(source.read(list(columns), PIECE_TOKENS, sized_by or ""), 1):
        yield piece
        reporter.advance(piece.table.num_rows)


def list_column(source: Source, columns: ColumnMap, names: Mapping[str, str]) -> str | None:
    """The mask, else another list of one entry per response token."""
    roles = ("mask", "old_log_probs", "infer_log_probs", "log_probs", "ref_log_probs", "values")
    found = [columns.column(role) for role in roles if role in columns]
    found += [names[what] for what in ("advantage", "tokens") if what in names]
    return next((name for name in found if is_list(type_of(source, name))), None)


def type_of(source: Source, name: str) -> pa.DataType:
    """The type of a column in the first file; that of a hive partition counts as a number."""
    schema = source.schemas[0]
    return schema.field(name).type if name in schema.names else pa.int64()  # else a partition


def _mean_of(table: pa.RecordBatch, columns: list[str], mask: str | None) -> Numbers:
    """The mean over policy tokens of a column, or of the clamped difference of two."""
    first = table.column(columns[0])
    if not is_list(first.type):
        return lists.numbers(first)
    offsets, values = lists.flat(first)
    if len(columns) > 1:
        others, minus = lists.flat(table.column(columns[1]))
        if not np.array_equal(offsets, others):
            return np.full(len(first), np.nan)
        values = np.clip(values - minus, -_KL_CLAMP, _KL_CLAMP)
    beside = None if mask is None else lists.flat(table.column(mask))
    return lists.row_means(values, offsets, lists.mask_beside(beside, offsets))
