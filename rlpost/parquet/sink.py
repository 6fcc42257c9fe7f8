"""Writing: new columns are put behind a file's own ones, by splicing where that is possible.

The output appears under its name only when it is complete: it is written beside the target, synced,
and renamed.
"""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa

from rlpost.errors import DataError, ReadWriteError, UsageError
from rlpost.parquet.encode import Encoder
from rlpost.parquet.footer import (
    MAGIC,
    DamagedError,
    EncryptedError,
    FileMeta,
    FooterError,
    load,
)
from rlpost.parquet.indexes import indexed_groups
from rlpost.parquet.plan import plan
from rlpost.parquet.ranges import close_file, open_file
from rlpost.parquet.rewrite import RewriteSink, SourceRows
from rlpost.parquet.splice import SpliceSink, close_ranks, whole
from rlpost.parquet.staged import naming
from rlpost.parquet.upload import stage

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from rlpost.parquet.indexes import New
    from rlpost.parquet.places import Place
    from rlpost.parquet.staged import Run, Staged
    from rlpost.parquet.upload import Upload


class Sink(Protocol):
    """Takes new columns row group by row group, each in as many batches as one likes.

    `write` is `append` of `encode`. `encode` is the expensive part and may run in any thread; the
    rest is for one thread, and `append` takes batches in the order of the rows.
    """

    @property
    def reason(self) -> str | None:
        """Why the source's columns are decoded and encoded anew; None if they are copied."""

    @property
    def output(self) -> Staged | Upload:
        """The file that is written."""

    def encode(self, columns: pa.RecordBatch) -> Any:
        """Prepare the next rows' new columns for `append`."""

    def append(self, row_group: int, encoded: Any) -> None:
        """Add the next rows of a row group of the source."""

    def write(self, row_group: int, columns: pa.RecordBatch) -> None:
        """Encode and add the next rows of a row group of the source."""

    def complete(self, metadata: Mapping[str, str]) -> None:
        """Write the footer with these key-value entries added, and sync the file."""

    def publish(self) -> None:
        """Give the completed file the target's name."""

    def close(self, metadata: Mapping[str, str]) -> None:
        """Complete the file and publish it."""

    def abort(self) -> None:
        """Remove what was written; never raises, and does nothing after `close`."""


def encoder_for(
    fields: pa.Schema,
    *,
    constant: Collection[str] = (),
    aliases: Mapping[str, str] | None = None,
    codec: str = "zstd",
    level: int | None = None,
    indexed: bool = False,
) -> Encoder:
    """The encoder of a sink that `open_sink` opens with the same arguments.

    `indexed` is whether the source has page indexes, in any of the row groups to encode for.
    """
    level = 1 if codec == "zstd" and level is None else level
    return Encoder(
        fields, constant=constant, aliases=aliases, codec=codec, level=level, indexed=indexed
    )


def open_sink(
    source: Place,
    target: Place,
    fields: pa.Schema,
    *,
    drop: Collection[str] = (),
    keep: Collection[str] | None = None,
    constant: Collection[str] = (),
    aliases: Mapping[str, str] | None = None,
    force_rewrite: bool = False,
    codec: str = "zstd",
    level: int | None = None,
    begun: Staged | Upload | None = None,
) -> Sink:
    """Open a sink for one file.

    Args:
        source: the Parquet file whose columns come first in the output; it may be the target.
        target: the file to write; replaced if it exists.
        fields: the new columns, in order.
        drop: source columns, by top-level name, that the output lacks.
        keep: the only source columns that the output has; None for all.
        constant: new columns that repeat few values, such as advantages that are the same for all
            tokens of a response: they are encoded in the way that suits them.
        aliases: new column -> new column that has the same values; encoded once, and `write` needs
            only the latter.
        force_rewrite: decode and encode the source's columns even where copying would do.
        codec: compression of new columns (all, in a rewrite), "none" for none.
        level: its level; None for 1 with zstd and for the codec's own default otherwise.
        begun: from `copy_all`, which was right to copy all only where no column is left out.

    Raises:
        UsageError: a new column has the name of a kept one.
        DataError: the source is damaged or no Parquet file.
        ReadWriteError: the source cannot be opened or is encrypted, or the target's folder is
            not writable.
    """
    encoder = partial(encoder_for, constant=constant, aliases=aliases, codec=codec, level=level)
    spliced: SpliceSink | str = "it was asked for"
    with ExitStack() as undone:
        if begun is not None:
            undone.callback(begun.discard)
        if not force_rewrite:
            spliced = _splice(source, target, partial(encoder, fields), keep, drop, begun)
        if not isinstance(spliced, str):
            undone.pop_all()
            return spliced
    rows = SourceRows(source, keep, drop)
    _check_names(source, rows.fields.names, fields)
    joined = encoder(pa.schema([*rows.fields, *fields]), indexed=bool(rows.indexed))
    inner = SpliceSink(rows.skeleton(joined), joined, stage(target), len(MAGIC), rows.indexed)
    return RewriteSink(rows, inner, spliced)


def _splice(
    source: Place,
    target: Place,
    encoder_of: Callable[..., Encoder],
    keep: Collection[str] | None,
    drop: Collection[str],
    begun: Staged | Upload | None,
) -> SpliceSink | str:
    """Open a sink that copies, or say why there can be none."""
    with naming(source, "cannot be read"), ExitStack() as opened:
        file, size = open_file(source)
        opened.callback(close_file, file)
        try:
            footer, end = load(file, size)
            encoder = encoder_of(indexed=bool(indexed_groups(footer)))
            names, everything, indexed = plan(footer, end, encoder, keep, drop)
        except EncryptedError as error:
            raise ReadWriteError(f"{source}: {error}; decrypt the file first") from None
        except DamagedError as error:
            raise DataError(f"{source}: the file is damaged: {error}") from None
        except FooterError as error:
            return str(error)
        _check_names(source, names, encoder.fields)
        runs: list[Run] = whole(end)
        moved: list[New] | None = []
        if not everything:
            runs, moved = close_ranks(file, footer.structs(FileMeta.ROW_GROUPS))
        kept = max((run.at + run.size for run in runs), default=len(MAGIC))
        indexes = () if moved is None else (indexed, moved)
        if begun is not None:
            if begun.runs != runs:
                raise ReadWriteError(f"{source}: changed while it was read")
            return SpliceSink(footer, encoder, begun, kept, *indexes)
        staged = stage(target)
        opened.pop_all()
        staged.write(0, MAGIC)  # in front of what is copied
        staged.copy(file, runs)
        return SpliceSink(footer, encoder, staged, kept, *indexes)


def _check_names(source: Place, names: Collection[str], fields: pa.Schema) -> None:
    for name in fields.names:
        if name in names:
            raise UsageError(
                f"{source}: a column `{name}` is there already; replace it or name the new one "
                "otherwise"
            )
