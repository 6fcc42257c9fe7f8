"""What footers say of an input, for who drives a run: it adds up over parts of the input."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate
from typing import TYPE_CHECKING

from rlpost.io.parquet.source import Source

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa

    from rlpost.io.parquet.fingerprint import Stamp
    from rlpost.io.parquet.inputs import InputFile


LACKS = b"rlpost.lacks"  # key-value metadata: role -> why a converted dump has none


@dataclass(frozen=True)
class Survey:
    """What binding a recipe needs to know of an input: a `Source` without its footers.

    A footer takes more memory than its file's name, and thousands of files have a few schemas.
    """

    files: list[InputFile] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)
    """Rows of each file."""
    sizes: list[int] = field(default_factory=list)
    """Bytes of each file once it is decompressed."""
    stamps: list[Stamp | None] = field(default_factory=list)
    """When each file was changed, as `Source` has it."""
    schemas: list[pa.Schema] = field(default_factory=list)
    """Of each file; files that have the same one share it."""
    columns: list[str] = field(default_factory=list)
    """The names every file has, hive partitions among them, in the first file's order."""
    metadata: dict[bytes, bytes] = field(default_factory=dict)
    """Of the key-value metadata what binding reads."""

    @cached_property
    def name(self) -> str:
        """What errors call the input."""
        first = str(self.files[0].path)
        return first if len(self.files) == 1 else f"{first} and {len(self.files) - 1} more"

    @cached_property
    def rows(self) -> int:
        """Rows of all files."""
        return sum(self.counts)

    @cached_property
    def first_rows(self) -> list[int]:
        """Row number, in the whole input, of each file's first row."""
        return list(accumulate(self.counts, initial=0))


def survey(files: Sequence[InputFile]) -> Survey:
    """Look at the footers of some files; raises as `Source`."""
    source = Source(files)
    return Survey(
        list(files),
        [footer.num_rows for footer in source.footers],
        [
            sum(footer.row_group(group).total_byte_size for group in range(footer.num_row_groups))
            for footer in source.footers
        ],
        source.stamps,
        _shared(source.schemas),
        source.columns,
        {key: value for key, value in source.metadata.items() if key == LACKS},
    )


def joined(surveys: Sequence[Survey]) -> Survey:
    """The survey of consecutive parts of an input, of at least one."""
    first = surveys[0]
    shared = set(first.columns).intersection(*(one.columns for one in surveys))
    metadata: dict[bytes, bytes] = {}
    for one in reversed(surveys):
        metadata |= one.metadata
    return Survey(
        [file for one in surveys for file in one.files],
        [count for one in surveys for count in one.counts],
        [size for one in surveys for size in one.sizes],
        [stamp for one in surveys for stamp in one.stamps],
        _shared([schema for one in surveys for schema in one.schemas]),
        [name for name in first.columns if name in shared],
        metadata,
    )


def _shared(schemas: Sequence[pa.Schema]) -> list[pa.Schema]:
    """The same schemas, without what files say of themselves, each distinct one once."""
    distinct: dict[bytes, pa.Schema] = {}
    plain = [schema.remove_metadata() for schema in schemas]
    return [distinct.setdefault(one.serialize().to_pybytes(), one) for one in plain]
