"""Contents of Parquet footers: rows, types, and how rlpost wrote a file."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlpost.analysis.inspect.model import ColumnFacts, FileFacts, InputFacts, RoleFacts
from rlpost.io.parquet.inputs import stored_object

if TYPE_CHECKING:
    from rlpost.analysis.inspect.model import Json
    from rlpost.io.parquet.source import Source
    from rlpost.recipe.roles import ColumnMap


MISSING = "missing"
MOST_FILES = 5  # that are listed for each other type of a column


def input_facts(source: Source, columns: ColumnMap) -> InputFacts:
    """Return files and columns; no data page is read."""
    files = [
        FileFacts(str(file.path), footer.num_rows, _made_by(footer.metadata or {}))
        for file, footer in zip(source.files, source.footers, strict=True)
    ]
    roles = {column: role for role, column in columns.columns.items()}
    facts = []
    for name, paths in _types(source).items():
        first, *others = sorted(paths, key=lambda kind: kind == MISSING)
        listed = {kind: paths[kind][:MOST_FILES] for kind in paths} if others else {}
        counts = {kind: len(paths[kind]) for kind in others}
        facts.append(ColumnFacts(name, first, roles.get(name), counts, listed))
    return InputFacts(files, facts)


def role_facts(source: Source, columns: ColumnMap) -> dict[str, RoleFacts]:
    """Return the column of each role, how it was found, and its type in the first file."""
    types = {name: next(x for x in files if x != MISSING) for name, files in _types(source).items()}
    return {
        role: RoleFacts(column, columns.how[role], types[column], columns.ignored.get(role, []))
        for role, column in columns.columns.items()
    }


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
    return origin


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
