"""Contents of Parquet footers: rows, row groups, codecs, bytes by column, the writer."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from rlpost.analysis.inspect.model import ColumnFacts, FileFacts, InputFacts, RoleFacts
from rlpost.estimators import ESTIMATORS
from rlpost.io.parquet.inputs import stored_object

if TYPE_CHECKING:
    import pyarrow.parquet as pq

    from rlpost.analysis.inspect.model import Json
    from rlpost.io.parquet.inputs import InputFile
    from rlpost.io.parquet.source import Source
    from rlpost.recipe.roles import ColumnMap


MISSING = "missing"
MOST_FILES = 5  # that are listed for each other type of a column


def input_facts(source: Source, columns: ColumnMap) -> InputFacts:
    """Return files, row groups and columns; no data page is read."""
    pairs = list(zip(source.files, source.footers, strict=True))
    groups = [
        footer.row_group(i).num_rows
        for footer in source.footers
        for i in range(footer.num_row_groups)
    ]
    return InputFacts(
        files=[_file(file, footer) for file, footer in pairs],
        bytes=sum(file.path.stat().st_size for file in source.files),
        rows=source.rows,
        row_groups=len(groups),
        rows_per_group=(min(groups, default=0), max(groups, default=0)),
        columns=_columns(source, columns),
    )


def role_facts(source: Source, columns: ColumnMap) -> dict[str, RoleFacts]:
    """Return the column of each role, how it was found, and its type in the first file."""
    types = {name: next(x for x in files if x != MISSING) for name, files in _types(source).items()}
    return {
        role: RoleFacts(column, columns.how[role], types[column], columns.ignored.get(role, []))
        for role, column in columns.columns.items()
    }


def _file(file: InputFile, footer: pq.FileMetaData) -> FileFacts:
    return FileFacts(
        path=str(file.path),
        bytes=file.path.stat().st_size,
        rows=footer.num_rows,
        row_groups=footer.num_row_groups,
        writer=footer.created_by or "",
        rlpost=_made_by(footer.metadata or {}),
    )


def _made_by(metadata: dict[bytes, bytes]) -> Json | None:
    """Return how rlpost wrote the file; None if it did not."""
    if b"rlpost.version" not in metadata:
        return None
    origin: Json = {"version": metadata[b"rlpost.version"].decode(errors="replace")}
    recipe = stored_object(metadata, b"rlpost.recipe")
    if recipe:
        origin |= {"estimator": recipe.get("estimator"), "recipe": recipe}
    if b"rlpost.format" in metadata:
        origin |= {
            "format": metadata[b"rlpost.format"].decode(errors="replace"),
            "missing_roles": stored_object(metadata, b"rlpost.missing_roles"),
        }
    if b"rlpost.tokenizer" in metadata:
        origin["tokenizer"] = metadata[b"rlpost.tokenizer"].decode(errors="replace")
    return origin


def normalises_components(stored: InputFacts) -> bool:
    """Return whether advantages are of reward components that the estimator of a file normalised.

    A share of the advantage is then that of numbers which the file does not have.
    """
    names = {(file.rlpost or {}).get("estimator") for file in stored.files}
    return any(x in ESTIMATORS and "components" in ESTIMATORS[x].columns for x in names if x)


def _types(source: Source) -> dict[str, dict[str, list[str]]]:
    """Return the files by type of each column; those without it are those of `MISSING`."""
    kinds_of = [
        {field.name: str(field.type) for field in schema}
        | {key: "hive partition" for key, _ in file.partitions if key not in schema.names}
        for schema, file in zip(source.schemas, source.files, strict=True)
    ]
    types: dict[str, dict[str, list[str]]] = {x: {} for kinds in kinds_of for x in kinds}
    for kinds, file in zip(kinds_of, source.files, strict=True):
        for name, files in types.items():
            files.setdefault(kinds.get(name, MISSING), []).append(str(file.path))
    return types


def _columns(source: Source, columns: ColumnMap) -> list[ColumnFacts]:
    stored, plain = Counter[str](), Counter[str]()
    codecs: dict[str, Counter[str]] = {}
    for footer in source.footers:
        for group in range(footer.num_row_groups):
            row_group = footer.row_group(group)
            for i in range(row_group.num_columns):
                chunk = row_group.column(i)
                name = chunk.path_in_schema.partition(".")[0]
                stored[name] += chunk.total_compressed_size
                plain[name] += chunk.total_uncompressed_size
                codecs.setdefault(name, Counter())[chunk.compression.lower()] += 1
    roles = {column: role for role, column in columns.columns.items()}
    return [
        ColumnFacts(
            name=name,
            type=(kinds := sorted(files, key=lambda kind: kind == MISSING))[0],
            bytes=stored[name],
            uncompressed=plain[name],
            codecs=sorted(codecs.get(name, ())),
            role=roles.get(name),
            other_types={kind: len(files[kind]) for kind in kinds[1:]},
            files={x: files[x][:MOST_FILES] for x in files} if len(files) > 1 else {},
        )
        for name, files in _types(source).items()
    ]
