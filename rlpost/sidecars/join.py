"""Joins: the columns of a file and the new columns of a sidecar with the same rows, in one file.

The input's column chunks are copied, and so are the sidecar's if both files have the same rows in
the same row groups. Otherwise the sidecar's new columns are decoded, and encoded again in the
input's row groups; if its rows have another order, they pass through a temporary file.
"""

from __future__ import annotations

import json
import re
import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from rlpost._version import __version__
from rlpost.display.reporter import SilentReporter
from rlpost.display.text import counted
from rlpost.errors import DataError, UsageError, closest
from rlpost.io.parquet.checks import read_decoded
from rlpost.io.parquet.checksums import CHECKSUMS_KEY
from rlpost.io.parquet.fingerprint import (
    JOIN_KEY,
    OUTPUT_KEYS,
    check_overwritable,
    footer_digest,
)
from rlpost.io.parquet.footer import key_values
from rlpost.io.parquet.inputs import find_inputs
from rlpost.io.parquet.source import Source
from rlpost.io.parquet.splice_plan import ARROW_SCHEMA, SPARK_SCHEMA, encode_arrow_schema
from rlpost.io.paths import PathText, check_target, location_of, parse_path
from rlpost.pipeline.output.files import Outputs, targets_of
from rlpost.pipeline.output.metadata import SIDECAR_KEY
from rlpost.recipe.recipe import EXTRA, LOSS_COLUMNS, LOSS_EXTRA, WRITTEN
from rlpost.sidecars.output import JoinedFile, write_joined
from rlpost.sidecars.rows import FileRows, check_order, is_key, match_by_key

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from rlpost.display.reporter import Reporter
    from rlpost.io.parquet.inputs import InputFile


Json = dict[str, Any]
RESULTS = frozenset({*WRITTEN, *EXTRA, *LOSS_COLUMNS, *LOSS_EXTRA})
"""Columns that rlpost computes. They are no keys, even if they are integers or bools."""
_NOT_COPIED = (
    *(ARROW_SCHEMA, SPARK_SCHEMA, b"pandas", b"huggingface"),
    *(CHECKSUMS_KEY.encode(), SIDECAR_KEY.encode()),
)
"""Metadata of one file: of its columns, its bytes, and what it is a sidecar of."""


@dataclass(frozen=True)
class Columns:
    """The columns of two files."""

    new: tuple[str, ...]
    """The sidecar's, in its order."""
    replaced: tuple[str, ...]
    """Those of them that the input has, too."""
    checked: tuple[str, ...]
    """Columns of both whose values must be equal in matched rows; the input's are kept."""


@dataclass(frozen=True)
class Pair:
    """An input file and its sidecar."""

    input: FileRows
    sidecar: FileRows
    columns: Columns
    shared: bool = False
    """Whether other input files have the same sidecar."""

    @property
    def metadata(self) -> Mapping[bytes, bytes]:
        """The key-value metadata of the sidecar."""
        return self.sidecar.metadata

    @property
    def arrow_schema(self) -> str:
        """The Arrow schema of the output, encoded; Parquet's own has no durations."""
        own, new = self.input.schema, self.sidecar.schema
        fields = [one for one in own if one.name not in self.columns.replaced]
        fields += [new.field(name) for name in self.columns.new]
        return encode_arrow_schema(pa.schema(fields)).decode()

    def with_rows(self, rows: NDArray[np.int64] | None) -> JoinedFile:
        """Return the files to write, with the row of the sidecar for each row of the input."""
        return JoinedFile(self.input, self.sidecar, self.columns.new, self.columns.replaced, rows)


@dataclass
class _JoinNotes:
    """What a join found out about its files."""

    warnings: list[str] = field(default_factory=list)
    decoded: list[str] = field(default_factory=list)
    """Why columns of sidecars were decoded."""
    used: dict[str, NDArray[np.bool_]] = field(default_factory=dict)
    """Whether an input row has each row of a sidecar, if rows are matched by key."""
    shared: int = 0
    """Input rows with the key of an earlier row."""
    bytes: int = 0
    """Of the complete outputs."""

    @property
    def unused(self) -> dict[str, int]:
        """The number of rows of each sidecar that no input row has."""
        return {name: int((~rows).sum()) for name, rows in self.used.items() if not rows.all()}


def join(
    inputs: PathText,
    sidecar: PathText,
    output: str | Path,
    on: Sequence[str] = (),
    *,
    replace: bool = False,
    overwrite: bool = False,
    reporter: Reporter | None = None,
) -> Json:
    """Write the columns of files and the new columns of their sidecars.

    Args:
        inputs: a Parquet file, directory, glob or URL.
        sidecar: that of the sidecars. Several files are matched by their paths below it; with
            `on`, a single sidecar can serve all input files.
        output: the joined file; of several input files, a directory.
        on: columns that identify a row of the sidecar. Empty: both have the same rows, in order.
        replace: use the sidecar's columns in place of the input's of the same names.
        overwrite: whether to replace existing outputs.
        reporter: shows the progress.

    Returns:
        The summary: paths, rows, columns, what was decoded, warnings.

    Raises:
        UsageError: input, sidecar, output and options do not fit together.
        DataError: rows do not match: file, row and column are named; or a file is damaged.
        ReadWriteError: reading or writing failed; no output is left behind.
    """
    started, reporter, found = time.perf_counter(), reporter or SilentReporter(), _JoinNotes()
    pairs = _pairs(inputs, sidecar, tuple(dict.fromkeys(on)), replace=replace)
    source, sidecars = pairs[0].input.source, pairs[0].sidecar.source
    targets = targets_of(source.files, [inputs], parse_path(output), overwrite=overwrite)
    paths = {file.path.resolve() for file in sidecars.files}
    for target in targets:
        check_target(target, paths, overwrite=True, existing=())
    if overwrite:
        check_overwritable(targets)
    reporter.start("match rows", source.rows)
    matches = [_matched(pair, on, found, reporter) for pair in pairs]
    found.warnings += [
        f"{name}: {counted(rows, 'row')} of {len(found.used[name]):,} have a key that no row of "
        "the input has, and are left out"
        for name, rows in found.unused.items()
    ]
    reporter.start("write", source.rows)
    with Outputs(targets) as outputs:
        for index, (pair, rows) in enumerate(zip(pairs, matches, strict=True)):
            metadata = _metadata(pair, on, replace=replace)
            file = pair.with_rows(rows)
            size, reason = write_joined(outputs, index, file, metadata, reporter.advance)
            found.bytes += size
            found.decoded += [f"{pair.sidecar.name}: {reason}"] if reason else []
        source.check_unchanged()
        sidecars.check_unchanged()
        rewritten = outputs.publish()
    columns = pairs[0].columns
    return {
        "inputs": [str(file.path) for file in source.files],
        "sidecars": [pair.sidecar.name for pair in pairs],
        "outputs": [str(target) for target in targets],
        "rows": source.rows,
        "on": [*on],
        "equal_columns": [*columns.checked],
        "columns": [*columns.new],
        "replaced": [*columns.replaced],
        "repeated_keys": found.shared,
        "unused_rows": sum(found.unused.values()),
        "rewritten": rewritten,
        "decoded": found.decoded,
        "bytes": found.bytes,
        "seconds": time.perf_counter() - started,
        "warnings": found.warnings,
        "rlpost_version": __version__,
    }


def _pairs(
    inputs: PathText, sidecar: PathText, on: tuple[str, ...], *, replace: bool
) -> list[Pair]:
    """Return each input file with its sidecar, and the columns of both."""
    source = Source(find_inputs([inputs]), keep_footers=True)
    sidecars = Source(find_inputs([sidecar]))
    numbers = _matching_files(source.files, sidecars.files, location_of(sidecar), on)
    shared = len(source.files) > len(sidecars.files)
    pairs = []
    for number, other in enumerate(numbers):
        files = FileRows(source, number), FileRows(sidecars, other)
        pairs.append(Pair(*files, _columns_of(*files, on, replace=replace), shared))
    first = pairs[0]
    for pair in pairs:
        if pair.columns.new != first.columns.new:
            raise UsageError(
                f"{pair.sidecar.name}: its new columns are {', '.join(pair.columns.new)}, and "
                f"those of {first.sidecar.name} are {', '.join(first.columns.new)}; all sidecars "
                "need the same: join files of different columns one by one"
            )
    return pairs


def _matching_files(
    inputs: Sequence[InputFile], sidecars: Sequence[InputFile], sidecar: PathText, on: Sequence[str]
) -> list[int]:
    """Return the number of the sidecar of each input file."""
    if len(sidecars) == 1 and (on or len(inputs) == 1):
        return [0] * len(inputs)
    numbers = {file.relative: number for number, file in enumerate(sidecars)}
    missing = [str(file.relative) for file in inputs if file.relative not in numbers]
    extra = {*numbers} - {file.relative for file in inputs}
    if missing or extra:
        what = f"no file {missing[0]}" if missing else f"a file {min(extra)}, which IN has not"
        more = len(missing or extra) - 1
        raise UsageError(
            f"{sidecar}: has {what}{f' ({more} more of that kind)' if more else ''}; the files "
            "of IN and SIDECAR are matched by their paths below the two directories or globs: "
            "rename the files, or join them one by one"
        )
    return [numbers[file.relative] for file in inputs]


def _columns_of(left: FileRows, right: FileRows, on: Sequence[str], *, replace: bool) -> Columns:
    """Return what becomes of the columns of two files."""
    for file in (left, right):
        absent = next((name for name in on if name not in file.schema.names), None)
        if absent is not None:
            raise DataError(
                f"{file.name}: --on {absent}: there is no such column; --on needs columns of IN "
                "and of SIDECAR",
                candidates=closest(absent, file.schema.names),
            )
        odd = next((name for name in on if not is_key(file.schema.field(name).type)), None)
        if odd is not None:
            raise DataError(
                f"{file.name}: --on {odd}: the column is {file.schema.field(odd).type}; a key "
                "needs texts, integers or dates"
            )
    common = [name for name in right.schema.names if name in left.schema.names]
    keys = {n for n in common if is_key(left.schema.field(n).type) and n not in RESULTS}
    checked = {*on} if on and replace else keys | {*on}
    clash = [name for name in common if name not in checked]
    new = [name for name in right.schema.names if name not in checked]
    if clash and not replace:
        raise UsageError(
            f"{left.name}: has columns of {right.name} already: {', '.join(clash)}; --replace "
            "uses the sidecar's"
        )
    if not new:
        raise UsageError(
            f"{right.name}: has no other columns than {left.name}; a sidecar needs new ones: "
            f"{', '.join(right.schema.names)} are keys, which are compared"
        )
    return Columns(tuple(new), tuple(clash), tuple(name for name in common if name in checked))


def _matched(
    pair: Pair, on: Sequence[str], found: _JoinNotes, reporter: Reporter
) -> NDArray[np.int64] | None:
    """Return the row of the sidecar for each input row; None if both have one order."""
    left, right, checked = pair.input, pair.sidecar, pair.columns.checked
    rows = None
    if on:
        match = match_by_key(left, right, on, [name for name in checked if name not in on])
        used = found.used.setdefault(right.name, np.zeros(right.rows, np.bool_))
        used[match.rows] = True
        found.shared += match.shared
        rows = None if match.in_order else match.rows
    else:
        check_order(left, right, checked)
        found.warnings += _order_warnings(pair)
    reporter.advance(left.rows)
    return rows


def _order_warnings(pair: Pair) -> list[str]:
    """Return a warning if it is uncertain that the rows of two files have one order."""
    stored: Any = None
    with suppress(ValueError, TypeError, KeyError, RecursionError):
        stored = json.loads(pair.metadata[SIDECAR_KEY.encode()])["footer"]
    checked = ", ".join(pair.columns.checked)
    agree = f"; {checked} agree in all rows" if checked else ""
    path, name = pair.input.path, pair.sidecar.name
    text = ""
    if stored is not None and stored != footer_digest(path):
        text = (
            f"{name}: was computed from another file than {path}, or that was written again since; "
            f"rows were joined by their order{agree}"
        )
    elif stored is None and not checked:
        text = (
            f"{name}: has no key in common with {path}, so the order of rows was not checked; keep "
            "a column of ids in the sidecar"
        )
    return [text] if text else []


def _metadata(pair: Pair, on: Sequence[str], *, replace: bool) -> dict[str, str]:
    """Return the metadata that an output gets from a sidecar.

    With columns that rlpost computed, these are rlpost's entries, as if the run had written all
    columns. Entries of other programs are added if the input has none of that name.
    """
    stored, own = pair.metadata, pair.input.metadata
    computed = not pair.shared and bool(RESULTS & {*pair.columns.new})
    computed = computed and any(key in stored for key in OUTPUT_KEYS)
    entries = {}
    for key, value in key_values(read_decoded(pair.sidecar.path).fields).items():
        known = key in _NOT_COPIED or (key in own and not key.startswith(b"rlpost."))
        if not known and (computed or not key.startswith(b"rlpost.")):
            with suppress(UnicodeDecodeError):
                entries[key.decode()] = _as_complete(value.decode(), replace=replace)
    if ARROW_SCHEMA in stored and ARROW_SCHEMA not in own:
        entries[ARROW_SCHEMA.decode()] = pair.arrow_schema
    if not computed:
        about = {"sidecar": pair.sidecar.path.name, "columns": pair.columns.new, "on": [*on]}
        entries[JOIN_KEY.decode()] = json.dumps(about)
    return entries


def _as_complete(text: str, *, replace: bool) -> str:
    """Return a recipe or summary in JSON as that of a run that kept all columns of the input."""
    text = _EMIT_ONLY.sub(r"\1false", text)
    return _REPLACE.sub(r"\1true", text) if replace else text


_EMIT_ONLY, _REPLACE = (
    re.compile(f'("{name}": ?){value}')
    for name, value in (("emit_only", "true"), ("replace", "false"))
)
