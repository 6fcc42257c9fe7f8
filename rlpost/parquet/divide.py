"""Dividing a large file into ranges of its row groups, which tasks read each by itself."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa

from rlpost.parquet.checked import checked_metadata
from rlpost.parquet.encode import Encoder
from rlpost.parquet.footer import FileMeta, FooterError, Group, load
from rlpost.parquet.pieces import may_join
from rlpost.parquet.plan import plan
from rlpost.parquet.ranges import close_file, open_file
from rlpost.parquet.source import Source
from rlpost.parquet.staged import naming

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rlpost.parquet.footer import Struct
    from rlpost.parquet.inputs import InputFile
    from rlpost.parquet.places import Place


class Range(NamedTuple):
    """Consecutive row groups of a file."""

    first: int
    stop: int
    """The number of the row group behind the last."""
    row: int
    """Row number, in the file, of the first row."""
    rows: int


def divided(place: Place, most: int) -> list[Range]:
    """A file's row groups in ranges; none where its column chunks can't be copied.

    Args:
        place: a Parquet file.
        most: decompressed bytes, about, of a range that has several row groups.

    Raises:
        ReadWriteError: it can't be read.
    """
    with naming(place, "cannot be read"):
        file, size = open_file(place)
    try:
        with naming(place, "cannot be read"):
            footer, end = load(file, size)
        groups = [_measure(group) for group in footer.structs(FileMeta.ROW_GROUPS)]
        plan(footer, end, Encoder(pa.schema([])), None, ())
    except FooterError:
        return []  # whoever writes it will say why
    finally:
        close_file(file)
    found: list[Range] = []
    filled = row = 0
    for number, ((rows, held), joins) in enumerate(zip(groups, may_join(groups), strict=True)):
        if found and (filled + held <= most or joins):
            last = found[-1]
            found[-1] = last._replace(stop=number + 1, rows=last.rows + rows)
        else:
            found.append(Range(number, number + 1, row, rows))
            filled = 0
        filled += held
        row += rows
    return found


def _measure(group: Struct) -> tuple[int, int]:
    """Rows and decompressed bytes of a row group."""
    return group.integer(Group.ROWS), group.integer(Group.BYTES)


class RangeSource(Source):
    """A range of one file's row groups, to be read as a file with no others would be.

    Pieces have the row numbers of the file.

    Args:
        files: the one file.
        part: which of its row groups.

    Raises:
        ReadWriteError, DataError: as `Source`.
    """

    def __init__(self, files: Sequence[InputFile], part: Range) -> None:
        super().__init__(files)
        self.footers = [checked_metadata(files[0].path, (part.first, part.stop))]
        self.starts, self.first_groups = [part.row], [part.first]

    @cached_property
    def first_rows(self) -> list[int]:
        """What a piece's first row is added to, for its place among the rows that are read."""
        (start,) = self.starts
        return [-start, self.rows - start]
