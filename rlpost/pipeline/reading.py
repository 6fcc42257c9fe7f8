"""Conversion of chunks to tensors: the tokens of a Batch, the columns of Responses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import torch

from rlpost.io import arrow as ragged
from rlpost.io.arrow import CellLocation
from rlpost.io.finish_reasons import truncations
from rlpost.io.tokenizer import token_counts
from rlpost.kernels.host import all_true, with_host_copy
from rlpost.kernels.segments import offsets_of
from rlpost.pipeline.columns import LENGTH, TEXT
from rlpost.pipeline.data import TRUNCATED, UNKNOWN_REASON, Batch
from rlpost.pipeline.transfer import Staged, layout_of
from rlpost.pipeline.turns import ROLLOUT, TURN
from rlpost.recipe.roles import is_read_by_name, kind_of

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from numpy.typing import NDArray

    from rlpost.errors import DataError
    from rlpost.io.finish_reasons import Truncations
    from rlpost.io.parquet.inputs import InputFile
    from rlpost.io.parquet.source import RowChunk
    from rlpost.pipeline.transfer import Transfers
    from rlpost.recipe.roles import ColumnMap


_OFFSETS, _MASK = "offsets", "mask"
_LONGEST = 1 << 40  # tokens of a response
_SENT_AS = {
    np.dtype(name): getattr(torch, name)
    for name in ("float16", "float32", "int8", "int16", "int32", "int64", "uint8")
}


def _sent_as(values: Sequence[NDArray[Any]], device: torch.device) -> torch.dtype:
    """Return the type in which numbers are sent to a device; float64 for the CPU."""
    kinds = {array.dtype for array in values}
    if device.type == "cpu" or len(kinds) > 1:
        return torch.float64
    dtype: torch.dtype = _SENT_AS.get(kinds.pop(), torch.float64)
    return dtype


def _all_policy(lengths: torch.Tensor) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Return offsets [n+1] and mask [T] of responses without observations."""
    offsets = np.concatenate([[0], lengths.numpy().cumsum()])
    return offsets, np.ones(offsets[-1], dtype=np.bool_)


@dataclass(frozen=True)
class Decoder:
    """Converts the columns of roles to tensors, and checks every number.

    Args:
        files: the input's files, for errors.
        columns: which column serves each role.
        length_role: the role whose lists set the length of each response; None without tokens.
        nonfinite: `error` raises for NaN and infinities at policy tokens; `mask` keeps them for
            the stage that leaves such responses out.
        transfers: sends tokens to a device.
    """

    files: Sequence[InputFile]
    columns: ColumnMap
    length_role: str | None
    nonfinite: str
    transfers: Transfers
    missing_components: str = "error"
    """`skip` keeps NaN and null in components of the reward."""
    tokenizer: str | None = None
    """Counts the tokens of the role `response`, of an input without tokens."""

    def location_of(self, chunk: RowChunk, column: str) -> CellLocation:
        """Return the location of a column of a chunk, for errors."""
        path = str(self.files[chunk.file].path)
        tip = f"`rlpost inspect {path}` lists all problems"
        return CellLocation(path, chunk.first_row, column, tip)

    def batch(
        self,
        chunks: Sequence[RowChunk],
        roles: Collection[str],
        device: torch.device,
        lengths: torch.Tensor | None = None,
    ) -> Batch:
        """Return the tokens of some chunks; columns are float64.

        Columns are sent to a device as the file stores them, and converted there.

        Args:
            chunks: consecutive rows of one file.
            roles: the token roles to decode.
            device: of the batch.
            lengths: [n] tokens of each row, if all are policy tokens; chunks need no mask then.

        Raises:
            DataError: lists of different lengths in a row; a value at a policy token that is not a
                number or (with `nonfinite="error"`) not finite.
        """
        offsets, mask = self._mask(chunks) if lengths is None else _all_policy(lengths)
        full = lengths is not None or bool(mask.all())
        lists = {role: self._lists(chunks, role, offsets) for role in sorted(roles)}
        structure = {_OFFSETS: torch.from_numpy(offsets), _MASK: torch.from_numpy(mask)}
        sent = structure if device.type != "cpu" else {}
        if full and sent:
            sent = {_OFFSETS: structure[_OFFSETS]}
            structure[_MASK] = all_true(len(mask), device)
        layout = {role: (_sent_as(values, device), mask.shape) for role, values in lists.items()}
        staged = Staged({**layout_of(sent), **layout}, device)
        for name, tensor in sent.items():
            staged.tensors[name].copy_(tensor)
        for role, values in lists.items():
            self._fill(staged.tensors[role], values, chunks, role, offsets, mask)
        tokens = self.transfers.send_staged(staged)
        structure |= {name: with_host_copy(tokens.pop(name), host) for name, host in sent.items()}
        return Batch(
            offsets=structure[_OFFSETS],
            mask=structure[_MASK],
            tokens={role: value.to(torch.float64) for role, value in tokens.items()},
            full=full,
        )

    def without_tokens(self, lengths: torch.Tensor) -> Batch:
        """Return a batch on the CPU with the lengths of its responses, [n], but no tokens."""
        return Batch(offsets_of(lengths), torch.zeros(0, dtype=torch.bool), {})

    def lengths(self, chunks: Sequence[RowChunk]) -> torch.Tensor:
        """Return the policy tokens of each response of an input without tokens, [n] int64.

        They are 1 if no column has them.

        Raises:
            DataError: a length is negative, no integer, or null; or a text is null.
        """
        if TEXT in self.columns:
            return torch.cat([self._text_lengths(chunk) for chunk in chunks])
        if LENGTH not in self.columns:
            return torch.ones(sum(chunk.table.num_rows for chunk in chunks), dtype=torch.int64)
        return torch.cat([self._lengths(chunk) for chunk in chunks])

    def _lengths(self, chunk: RowChunk) -> torch.Tensor:
        column = self.columns.column(LENGTH)
        array, location = chunk.table.column(column), self.location_of(chunk, column)
        numbers = ragged.numbers(array, location)
        bad = np.flatnonzero(~((numbers >= 0) & (numbers <= _LONGEST) & (numbers % 1 == 0)))
        if len(bad):
            row = int(bad[0])
            value = "is null" if array[row].as_py() is None else f"is {numbers[row]:g}"
            raise location.error(row, value, "a number of tokens is needed: 0, 1, 2, ...")
        return torch.from_numpy(numbers.astype(np.int64))

    def _text_lengths(self, chunk: RowChunk) -> torch.Tensor:
        column = self.columns.column(TEXT)
        location = self.location_of(chunk, column)
        counts = token_counts(str(self.tokenizer), chunk.table.column(column), location)
        return torch.from_numpy(counts)

    def _mask(self, chunks: Sequence[RowChunk]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
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
            own, numbers = ragged.list_values(chunk.table.column(column), location)
            expected = offsets[row : last + 1] - offsets[row]
            if not np.array_equal(own, expected):
                raise self._unequal(location, own, expected)
            values.append(numbers)
            row = last
        return values

    def _fill(
        self,
        into: torch.Tensor,
        values: Sequence[NDArray[Any]],
        chunks: Sequence[RowChunk],
        role: str,
        offsets: NDArray[np.int64],
        mask: NDArray[np.bool_],
    ) -> None:
        """Copy the numbers of a role, [T], and check that they are finite."""
        row = 0
        for chunk, numbers in zip(chunks, values, strict=True):
            last = row + chunk.table.num_rows
            window = slice(offsets[row], offsets[last])
            own = into[window]
            with np.errstate(invalid="ignore"):  # signalling NaN
                own.numpy()[:] = numbers
            if not bool(torch.isfinite(own.sum())):  # else all are: 10 times as fast
                inside = offsets[row : last + 1] - offsets[row]
                self._check_finite(own, chunk, role, inside, mask[window])
            row = last

    def _check_finite(
        self,
        into: torch.Tensor,
        chunk: RowChunk,
        role: str,
        offsets: NDArray[np.int64],
        mask: NDArray[np.bool_],
    ) -> None:
        """Raise for numbers at policy tokens that are not finite, or keep them; others become 0."""
        finite = torch.isfinite(into)
        bad = np.flatnonzero(~finite.numpy() & mask)
        if len(bad) and self.nonfinite == "error":
            column, row = (
                self.columns.column(role),
                int(np.searchsorted(offsets, bad[0], "right")) - 1,
            )
            cell = ragged.list_cell(chunk.table.column(column), row, int(bad[0] - offsets[row]))
            raise self.location_of(chunk, column).error(
                row,
                f"has {cell}",
                "finite numbers are needed; `--nonfinite mask` leaves such responses out",
            )
        # The `finite` stage sees NaN only at policy tokens.
        into[torch.from_numpy(~finite.numpy() & ~mask)] = 0.0

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
    ) -> dict[str, torch.Tensor | pa.Array]:
        """Return one value per response: numbers float64, flags bool, keys as Arrow arrays.

        Finish reasons that are not known are a key, which is empty for others.

        Raises:
            DataError: a wrong type, a null key, or (with `nonfinite="error"`) a number that is
                not finite.
        """
        columns = {
            role: _concatenated([self._row_values(chunk, role) for chunk in chunks])
            for role in sorted(roles)
            if role not in (LENGTH, TEXT, TRUNCATED)
        }
        if TRUNCATED in roles:
            found = [self._truncations(chunk) for chunk in chunks]
            columns[TRUNCATED] = torch.cat([torch.from_numpy(one.truncated) for one in found])
            columns[UNKNOWN_REASON] = pa.concat_arrays([one.unknown for one in found])
        return columns

    def _truncations(self, chunk: RowChunk) -> Truncations:
        column = self.columns.column(TRUNCATED)
        return truncations(chunk.table.column(column), self.location_of(chunk, column))

    def _row_values(self, chunk: RowChunk, role: str) -> torch.Tensor | pa.Array:
        column = self.columns.column(role)
        array, location = chunk.table.column(column), self.location_of(chunk, column)
        kind = kind_of(role)
        if role == TURN:
            turns = ragged.numbers(array, location)
            return torch.from_numpy(np.where(np.isfinite(turns), turns, -1).astype(np.int64))
        if role == ROLLOUT:
            return ragged.without_dictionary(array).cast(pa.string()).fill_null("")
        if kind == "key":
            return ragged.key(array, location)
        if kind == "flag":  # of a column that an estimator reads by its name
            return torch.from_numpy(ragged.flags(array, location).copy())
        if is_read_by_name(role):
            ragged.check_exact(array, location)
        numbers = torch.from_numpy(ragged.numbers(array, location).copy())
        skip = self.missing_components == "skip" and role.startswith("component:")
        if self.nonfinite == "error" and not skip and not bool(torch.isfinite(numbers).all()):
            row = int((~torch.isfinite(numbers)).nonzero()[0])
            value = "is null" if array[row].as_py() is None else f"is {float(numbers[row])}"
            advice = "a finite number is needed; `--nonfinite mask` leaves such responses out"
            if role.startswith("component:"):
                advice += ", `--numerics missing_components=skip` leaves out the component alone"
            raise location.error(row, value, advice)
        if role == "sample_mask":
            _check_flags(numbers, location)
        return numbers


def _check_flags(numbers: torch.Tensor, location: CellLocation) -> None:
    """Raise DataError for a number that is neither 0 nor 1, such as a weight; NaN is not judged."""
    wrong = ((numbers != 0) & (numbers != 1) & ~numbers.isnan()).nonzero()
    if len(wrong):
        row = int(wrong[0])
        raise location.error(
            row,
            f"is {float(numbers[row]):g}",
            "a sample mask has 1 for responses to train on and 0 for the others; "
            "`--map sample_mask=none` ignores it",
        )


def _concatenated(parts: list[torch.Tensor | pa.Array]) -> torch.Tensor | pa.Array:
    if len(parts) == 1:
        return parts[0]
    tensors = [part for part in parts if isinstance(part, torch.Tensor)]
    return torch.cat(tensors) if tensors else pa.concat_arrays(parts)
