"""`enrich` of record batches that come one after the other, more of them than memory holds.

Group means and whitening need every response before the first can be written, so batches that
have gone by are wanted again. They go to a temporary Parquet file, which is processed as any
other and streamed back. It takes the disk space of input and output, in the directory that TMPDIR
names, until the last batch was read or the reader is let go.
"""

from __future__ import annotations

import tempfile
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from rlpost.api import advantages
from rlpost.errors import DataError, ReadWriteError, RlpostError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rlpost.recipe import Recipe
    from rlpost.run_options import Options

Json = dict[str, Any]
NAME = "batches"
_WRITTEN_AT_ONCE = 64 << 20  # bytes in memory, a row group of the temporary file
_READ_AT_ONCE = 16 << 20
_MOST_ROWS = 1 << 16
_OF_FILES = ("inputs", "outputs", "rewritten")


def enrich_batches(
    batches: Iterable[pa.RecordBatch], recipe: Recipe, options: Options
) -> tuple[pa.RecordBatchReader, Json]:
    """The enriched batches, and the summary.

    Raises:
        ReadWriteError: there is no room for the temporary files.
        UsageError, DataError, UnavailableError: as `rlpost.api.enrich`.
    """
    with tempfile.TemporaryDirectory(prefix="rlpost-") as folder:
        spilled, enriched = Path(folder, f"{NAME}.parquet"), Path(folder, "enriched.parquet")
        try:
            _spill(batches, spilled)
            summary = advantages(spilled, enriched, recipe, replace(options, overwrite=True))
        except RlpostError as error:
            raise type(error)(str(error).replace(str(spilled), NAME)) from None
        except OSError as error:
            raise ReadWriteError(f"{folder}: {error.strerror or error}") from None
        # The directory goes, the open file stays readable until it is closed.
        reader = _reader(pa.OSFile(str(enriched)))
    return reader, {name: x for name, x in summary.items() if name not in _OF_FILES}


def _spill(batches: Iterable[pa.RecordBatch], path: Path) -> None:
    """Write all batches to a file, in row groups of a size that readers like.

    Raises:
        DataError: there is no row, or a batch has other columns than the first.
        UsageError: these are no record batches.
    """
    given = iter(batches)
    first = next(given, None)
    if first is None:
        raise DataError(f"{NAME}: there are no rows, so there is nothing to process")
    if not isinstance(first, pa.RecordBatch):
        raise UsageError(f"{NAME}: {type(first).__name__} came; record batches are needed")
    waiting: list[pa.RecordBatch] = []
    # Nothing of it is kept, so that packing it small would only take time.
    with pq.ParquetWriter(path, first.schema, compression="lz4", use_dictionary=False) as writer:
        for place, batch in enumerate(chain([first], given)):
            if not batch.schema.equals(first.schema):
                raise DataError(
                    f"{NAME}: batch {place} (from 0) has columns {_names(batch)}; the first has "
                    f"{_names(first)}, and all need the same, of the same types"
                )
            waiting.append(batch)
            if sum(one.nbytes for one in waiting) >= _WRITTEN_AT_ONCE:
                writer.write_table(pa.Table.from_batches(waiting))
                waiting.clear()
        if waiting:
            writer.write_table(pa.Table.from_batches(waiting))


def _names(batch: pa.RecordBatch) -> str:
    return ", ".join(f"{field.name}: {field.type}" for field in batch.schema)


def _reader(file: pa.NativeFile) -> pa.RecordBatchReader:
    """The file's batches, each of a few megabytes."""
    stored = pq.ParquetFile(file)
    groups = (stored.metadata.row_group(i) for i in range(stored.metadata.num_row_groups))
    per_row = sum(group.total_byte_size for group in groups) / max(stored.metadata.num_rows, 1)
    rows = max(1, min(_MOST_ROWS, int(_READ_AT_ONCE / max(per_row, 1.0))))
    found = stored.iter_batches(batch_size=rows)
    return pa.RecordBatchReader.from_batches(stored.schema_arrow, found)
