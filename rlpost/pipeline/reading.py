"""Conversion of chunks to arrays: the tokens of a Batch, the columns of Responses."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from rlpost.io import arrow as ragged
from rlpost.io.arrow import CellLocation
from rlpost.io.finish_reasons import truncations
from rlpost.kernels.segments import offsets_of
from rlpost.pipeline.columns import LENGTH
from rlpost.pipeline.data import (
    ATTEMPTS,
    FAILURE,
    NEXT_VALUE,
    NO_REWARD,
    TRUNCATED,
    UNKNOWN_REASON,
    Batch,
)
from rlpost.pipeline.failures import attempts, failure_reasons
from rlpost.pipeline.turns import ROLLOUT, TURN
from rlpost.recipe.roles import RECORDED, is_component, is_nullable, is_read_by_name, kind_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from numpy.typing import NDArray

    from rlpost.errors import DataError
    from rlpost.io.finish_reasons import Truncations
    from rlpost.io.parquet.source import RowChunk
    from rlpost.pipeline.data import Column
    from rlpost.pipeline.device import Device
    from rlpost.pipeline.plan import Plan


_LONGEST = 1 << 40  # tokens of a response
ENGINE = "infer_log_probs"
_COUNT_ROWS = "--unit row  # counts rows, and reads no ids of rollouts"


def _all_policy(lengths: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Return offsets [n+1] and mask [T] of responses without observations."""
    offsets = np.concatenate([[0], lengths.cumsum()])
    return offsets, np.ones(offsets[-1], dtype=np.bool_)


class Decoder:
    """Converts the columns of roles to arrays, and checks every number.

    Args:
        plan: of the run.
        device: that computes with the tokens.
    """

    def __init__(self, plan: Plan, device: Device) -> None:
        self.plan, self.device = plan, device
        self.recipe, self.columns = plan.resolved.recipe, plan.columns
        self.length_role = plan.length_role

    def location_of(self, chunk: RowChunk, column: str) -> CellLocation:
        """Return the location of a column of a chunk, for errors."""
        path = str(self.plan.source.files[chunk.file].path)
        tip = f"rlpost inspect {path}  # lists all problems"
        return CellLocation(path, chunk.first_row, column, tip)

    def batch(
        self,
        chunks: Sequence[RowChunk],
        roles: Collection[str],
        lengths: NDArray[np.int64] | None = None,
    ) -> Batch:
        """Return the tokens of some chunks; columns are float64.

        Columns are sent to a device as the file stores them, and converted there.

        Args:
            chunks: consecutive rows of one file.
            roles: the token roles to decode.
            lengths: [n] tokens of each row, if all are policy tokens; chunks need no mask then.

        Raises:
            DataError: lists of different lengths in a row; a value at a policy token that is not a
                number or (with `nonfinite="error"`) not finite.
        """
        offsets, mask = self.structure(chunks) if lengths is None else _all_policy(lengths)
        full = lengths is not None or bool(mask.all())
        lists = {role: self._lists(chunks, role, offsets) for role in sorted(roles)}
        staged = self.device.stage(offsets, mask, lists, full=full)
        stands_in = self.recipe.corrected_role
        fills = self.recipe.numerics.is_missing == "one" and {stands_in, ENGINE} <= lists.keys()
        for role, values in lists.items():
            lacking = role == ENGINE and fills
            self._fill(staged.tokens[role], values, chunks, role, offsets, mask, lacking=lacking)
        if fills:
            engine = staged.tokens[ENGINE]
            engine[...] = np.where(np.isnan(engine) & mask, staged.tokens[stands_in], engine)
        return Batch(*staged.send(), full=full)

    def without_tokens(self, lengths: NDArray[np.int64]) -> Batch:
        """Return a batch of numpy with the lengths of its responses, [n], but no tokens."""
        return Batch(offsets_of(lengths), np.zeros(0, np.bool_), {})

    def lengths(self, chunks: Sequence[RowChunk]) -> NDArray[np.int64]:
        """Return the policy tokens of each response of an input without tokens, [n] int64.

        They are 1 if no column has them.

        Raises:
            DataError: a length is negative, no integer, or null.
        """
        if LENGTH not in self.columns:
            return np.ones(sum(chunk.table.num_rows for chunk in chunks), np.int64)
        return np.concatenate([self._lengths(chunk) for chunk in chunks])

    def _lengths(self, chunk: RowChunk) -> NDArray[np.int64]:
        column = self.columns.column(LENGTH)
        array, location = chunk.table.column(column), self.location_of(chunk, column)
        numbers = self._excused(ragged.numbers(array, location).copy(), chunk)
        bad = np.flatnonzero(~((numbers >= 0) & (numbers <= _LONGEST) & (numbers % 1 == 0)))
        if len(bad):
            row = int(bad[0])
            value = "is null" if array[row].as_py() is None else f"is {numbers[row]:g}"
            raise location.error(row, value, "a number of tokens is needed: 0, 1, 2, ...")
        return numbers.astype(np.int64)

    def structure(self, chunks: Sequence[RowChunk]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Return the offsets [n+1] of the responses, and the mask of their policy tokens [T]."""
        masks = [self._mask_of(chunk) for chunk in chunks]
        if len(masks) == 1:
            return masks[0]
        counts = [np.diff(offsets) for offsets, _ in masks]
        offsets = np.concatenate([[0], np.concatenate(counts).cumsum()])
        return offsets, np.concatenate([mask for _, mask in masks])

    def _mask_of(self, chunk: RowChunk) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        assert self.length_role is not None
        column = self.columns.column(self.length_role)
        array, location = chunk.table.column(column), self.location_of(chunk, column)
        if self.length_role == "mask":
            return ragged.mask(array, location)
        offsets, values = ragged.list_values(array, location)
        return offsets, np.ones(len(values), dtype=np.bool_)

    def _lists(
        self, chunks: Sequence[RowChunk], role: str, offsets: NDArray[np.int64]
    ) -> list[NDArray[Any]]:
        """Return the numbers of a role in each chunk, as the file stores them."""
        column, row, values = self.columns.column(role), 0, []
        for chunk in chunks:
            location, last = self.location_of(chunk, column), row + chunk.table.num_rows
            array, expected = chunk.table.column(column), offsets[row : last + 1] - offsets[row]
            if kind_of(role) == "number":
                array = ragged.whole_numbers(array, location)
            if kind_of(role) == "number" and ragged.is_number(array.type):  # of all tokens
                values.append(np.repeat(ragged.numbers(array, location), np.diff(expected)))
            elif role == RECORDED:
                values.append(_recorded(array, location, expected))
            else:
                bounds, numbers = ragged.list_values(array, location)
                if not np.array_equal(bounds, expected):
                    raise self._unequal(location, bounds, expected)
                values.append(numbers)
            row = last
        return values

    def _fill(
        self,
        into: NDArray[Any],
        values: Sequence[NDArray[Any]],
        chunks: Sequence[RowChunk],
        role: str,
        offsets: NDArray[np.int64],
        mask: NDArray[np.bool_],
        *,
        lacking: bool,
    ) -> None:
        """Copy the numbers of a role, [T], and check that they are finite, or NaN if `lacking`."""
        row = 0
        for chunk, numbers in zip(chunks, values, strict=True):
            last = row + chunk.table.num_rows
            window = slice(offsets[row], offsets[last])
            own = into[window]
            with np.errstate(all="ignore"):  # signalling NaN; sums beyond the range
                own[:] = numbers
                total = own.sum()
            if not np.isfinite(total) and role != RECORDED:  # else all are: 10 times as fast
                inside = offsets[row : last + 1] - offsets[row]
                needed = mask[window] & ~np.isnan(own) if lacking else mask[window]
                self._check_finite(own, chunk, role, inside, needed, mask[window])
            row = last

    def _check_finite(
        self,
        into: NDArray[Any],
        chunk: RowChunk,
        role: str,
        offsets: NDArray[np.int64],
        needed: NDArray[np.bool_],
        mask: NDArray[np.bool_],
    ) -> None:
        """Raise for numbers at policy tokens that are not finite, or keep them; others become 0."""
        finite = np.isfinite(into)
        bad = np.flatnonzero(~finite & needed)
        if len(bad) and self.recipe.nonfinite == "error":
            column, row = (
                self.columns.column(role),
                int(np.searchsorted(offsets, bad[0], "right")) - 1,
            )
            cell = ragged.list_cell(chunk.table.column(column), row, int(bad[0] - offsets[row]))
            advice = "finite numbers are needed; `--nonfinite mask` leaves such responses out"
            if role == ENGINE and np.isnan(into[bad]).all():
                advice += ", `--numerics is_missing=one` gives such a token weight 1"
            raise self.location_of(chunk, column).error(row, f"has {cell}", advice)
        # The `finite` stage sees NaN only at policy tokens.
        into[~finite & ~mask] = 0.0

    def _unequal(
        self, location: CellLocation, own: NDArray[np.int64], offsets: NDArray[np.int64]
    ) -> DataError:
        assert self.length_role is not None
        row = int(np.flatnonzero(np.diff(own) != np.diff(offsets))[0])
        mine, theirs = int(np.diff(own)[row]), int(np.diff(offsets)[row])
        return location.error(
            row,
            f"has {mine} values but `{self.columns.column(self.length_role)}` has {theirs}",
            "every token column of a row needs the same length",
        )

    def rows(
        self, chunks: Sequence[RowChunk], roles: Collection[str]
    ) -> dict[str, Column | pa.Array]:
        """Return one value per response: numbers float64, flags bool, keys as Arrow arrays.

        Finish reasons that are not known are a key, which is empty for others.

        Raises:
            DataError: a wrong type, a null key, or (with `nonfinite="error"`) a number that is
                not finite.
        """
        rewards = [*filter(is_component, sorted(roles))] or [*{"reward"} & {*roles}]
        columns = {
            role: _concatenated([self._row_values(chunk, role, rewards) for chunk in chunks])
            for role in sorted(roles)
            if role not in (LENGTH, TRUNCATED)
        }
        if rewards and self.plan.resolved.unit == "rollout":
            flags = [self._no_reward(chunk, rewards) for chunk in chunks]
            columns[NO_REWARD] = np.concatenate(flags)
        if TRUNCATED in roles:
            found = [self._truncations(chunk) for chunk in chunks]
            columns[TRUNCATED] = np.concatenate([one.truncated for one in found])
            columns[UNKNOWN_REASON] = pa.concat_arrays([one.unknown for one in found])
        return columns

    def _no_reward(self, chunk: RowChunk, rewards: Sequence[str]) -> NDArray[np.bool_]:
        """Return the rows whose reward, or all of whose components, is null, [n]."""
        arrays = (chunk.table.column(self.columns.column(role)) for role in rewards)
        nulls = [array.is_null().to_numpy(zero_copy_only=False) for array in arrays]
        return np.asarray(np.all(nulls, axis=0))

    def _truncations(self, chunk: RowChunk) -> Truncations:
        column = self.columns.column(TRUNCATED)
        return truncations(chunk.table.column(column), self.location_of(chunk, column))

    def _row_values(self, chunk: RowChunk, role: str, rewards: Sequence[str]) -> Column | pa.Array:
        column = self.columns.column(role)
        array, location = chunk.table.column(column), self.location_of(chunk, column)
        kind = kind_of(role)
        if role in _OWN_TYPES:
            return _OWN_TYPES[role](array, location)
        if kind == "key":
            if role == "rollout" and self.plan.resolved.can_count_rows:
                location = replace(location, tip=_COUNT_ROWS)
            return ragged.key(array, location)
        if kind == "flag":  # of a column that an estimator reads by its name
            return ragged.flags(array, location).copy()
        if is_read_by_name(role):
            ragged.check_exact(array, location)
        numbers = ragged.numbers(array, location).copy()
        self._fill_needless(numbers, chunk, role, rewards)
        skip = self.recipe.numerics.missing_components == "skip" and is_component(role)
        bad = np.isinf(numbers) if is_nullable(role) else ~np.isfinite(numbers)
        if self.recipe.nonfinite == "error" and not skip and bad.any():
            row = int(np.flatnonzero(bad)[0])
            value = "is null" if array[row].as_py() is None else f"is {float(numbers[row])}"
            advice = "a finite number is needed; `--nonfinite mask` leaves such responses out"
            if is_component(role):
                advice += ", `--numerics missing_components=skip` leaves out the component alone"
            raise location.error(row, value, advice)
        if role == "sample_mask":
            _check_flags(numbers, location)
        return numbers

    def _fill_needless(
        self, numbers: Column, chunk: RowChunk, role: str, rewards: Sequence[str]
    ) -> None:
        """Set numbers to 0 that their row does not need.

        Only the last turn of a rollout needs a reward, or a component that is not null.
        """
        if role in rewards and self.plan.resolved.unit == "rollout":
            numbers[self._no_reward(chunk, rewards)] = 0.0
        self._excused(numbers, chunk)
        if role == NEXT_VALUE:  # a response that ended has none
            numbers[~self._truncations(chunk).truncated] = 0.0

    def _excused(self, numbers: Column, chunk: RowChunk) -> Column:
        """Set numbers that are not finite to 0 in rows that failed, and return all."""
        if self.plan.resolved.excuses_failed and not np.isfinite(numbers).all():
            numbers[~np.isfinite(numbers) & self._failed(chunk)] = 0.0
        return numbers

    def _failed(self, chunk: RowChunk) -> NDArray[np.bool_]:
        """Return which rows failed, [n]."""
        column = self.columns.column(FAILURE)
        location = self.location_of(chunk, column)
        reasons = failure_reasons(chunk.table.column(column), location)
        return np.array([bool(reason) for reason in reasons.to_pylist()])


def _recorded(array: pa.Array, location: CellLocation, offsets: NDArray[np.int64]) -> NDArray[Any]:
    """Return a number for each token; NaN in rows without one, or whose list has another length."""
    counts = np.diff(offsets)
    if ragged.is_number(array.type):
        return np.repeat(_numbers_or_nan(array, location), counts)
    valid = ragged.is_true(array.is_valid())
    bounds, numbers = ragged.list_values(array.filter(pa.array(valid)), location)
    lengths = np.full(len(array), -1)
    lengths[valid] = np.diff(bounds)
    if np.array_equal(lengths, counts):
        return numbers
    equal, out = lengths == counts, np.full(offsets[-1], np.nan)
    out[np.repeat(equal, counts)] = numbers[np.repeat(equal[valid], lengths[valid])]
    return out


def _numbers_or_nan(array: pa.Array, location: CellLocation) -> Column:
    numbers = ragged.numbers(array, location)
    return np.where(np.isfinite(numbers), numbers, np.nan)


def _turns(array: pa.Array, location: CellLocation) -> Column:
    turns = ragged.numbers(array, location)
    return np.where(np.isfinite(turns), turns, -1).astype(np.int64)


def _rollouts(array: pa.Array, _: CellLocation) -> pa.Array:
    return ragged.without_dictionary(array).cast(pa.string()).fill_null("")


_OWN_TYPES: dict[str, Callable[[pa.Array, CellLocation], Column | pa.Array]] = {
    TURN: _turns,
    ROLLOUT: _rollouts,
    FAILURE: failure_reasons,
    **dict.fromkeys(ATTEMPTS, attempts),
    RECORDED: _numbers_or_nan,
}
"""What reads the columns of roles that have a type of their own."""


def _check_flags(numbers: NDArray[np.float64], location: CellLocation) -> None:
    """Raise DataError for a number that is neither 0 nor 1, such as a weight; NaN is not judged."""
    wrong = np.flatnonzero((numbers != 0) & (numbers != 1) & ~np.isnan(numbers))
    if len(wrong):
        row = int(wrong[0])
        raise location.error(
            row,
            f"is {float(numbers[row]):g}",
            "a sample mask has 1 for responses to train on and 0 for the others; "
            "`--map sample_mask=none` ignores it",
        )


def _concatenated(parts: list[Column | pa.Array]) -> Column | pa.Array:
    """Return the parts of a column as one; keys that are numbers in some parts alone are texts."""
    if len(parts) == 1:
        return parts[0]
    numbers = [part for part in parts if isinstance(part, np.ndarray)]
    if numbers:
        return np.concatenate(numbers)
    keys = [pa.array(part) for part in parts]
    if len({part.type for part in keys}) > 1:
        keys = [part.cast(pa.string()) for part in keys]
    return pa.concat_arrays(keys)
