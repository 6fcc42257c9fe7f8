"""What is compared of a case: exit codes, JSON, columns of Parquet files, numbers of reports."""

from __future__ import annotations

import hashlib
import json
import math
import re
import tomllib
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

Leaves = dict[str, Any]

# Values that may differ between two runs of the same code. Their keys are still compared.
IGNORED = {
    "schema_version",  # a change that breaks readers raises it
    "seconds",  # timings
    "busy",  # timings of threads
    "written",  # bytes of files, whose metadata have texts and names of keys
    "rlpost_version",
    "version",
    "rlpost.version",
    "semantics",  # a number that changed defaults and formulas raise
    "x-semantics",
    "rlpost.semantics",
    "devices",  # that computed: `--device` of tests.equality
    "device",
    "run",  # a random number in the metadata that ties the files of a run together
}
# Keys below which there are names for people, which are worded like texts.
# What passes and the stages of a run are called, and the checks of `inspect`.
WORDED = {"passes", "computes", "checks"}
# Texts of a page whose numbers are again in the JSON of `inspect`, and whose wording chooses which
# of them are mentioned and in which unit.
NOTES = {"note"}
COLUMN = " column "
"""What stands before the name of a column in its path."""
ROUNDED = " (rounding)"
"""The end of a difference in the last bits of a number."""
TEXT = "(text)"  # in place of a text: wording is not compared, that there is one is
VALUE = "(value)"  # in place of an ignored value
SCHEMA = b"ARROW:schema"  # holds all metadata again, texts and timings too; types are compared
_NUMBER = re.compile(r"-?\d+(?:,\d{3})*(?:\.\d+)?(?:e[-+]?\d+)?")
_SECTION = re.compile(r'<section id="([^"]*)">(.*?)</section></section>', re.DOTALL)
_DRAWING = re.compile("<svg.*?</svg>", re.DOTALL)  # a chart of a report
_PATHS = re.compile(r'\bd="([^"]*)"')


def digest(folder: Path, codes: list[int], prints: list[str], top: Path) -> Leaves:
    """Everything that is compared of a case, as a flat mapping of paths to values.

    Args:
        folder: the case's folder, with the files that its commands wrote.
        codes: the exit code of each command.
        prints: what each printed on stdout.
        top: the folder of this tree's cases; paths below it are made relative.
    """
    found: Leaves = {}
    for number, (code, printed) in enumerate(zip(codes, prints, strict=True)):
        found[f"exit code {number}"] = code
        data = parsed(printed)
        if data is not None:
            found |= flat(data, f"stdout {number}", top)
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if any(part.startswith(".") for part in path.relative_to(folder).parts):
            continue
        if path.suffix == ".parquet" and path.is_file():
            found |= parquet(path, name, top)
        elif path.suffix == ".json":
            found |= flat(json.loads(path.read_bytes()), name, top)
        elif path.suffix == ".jsonl":
            rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
            found |= flat(rows, name, top)
        elif path.suffix == ".html":
            found |= report(path, name)
        elif path.is_file():
            found[name] = "(file)"
    return found


def parsed(printed: str) -> Any:
    """What was printed as JSON, lines of JSON or TOML; None for other texts."""
    if not printed.strip():
        return None
    for read in (json.loads, lambda text: [json.loads(line) for line in text.splitlines()]):
        try:
            return read(printed)
        except json.JSONDecodeError:
            continue
    try:
        return tomllib.loads(printed)
    except tomllib.TOMLDecodeError:
        return None


def flat(data: Any, name: str, top: Path) -> Leaves:
    """Leaves of a tree of JSON by their paths, without texts and what may differ."""
    return dict(_leaves(data, name, str(top), ignored=False))


def _leaves(data: Any, path: str, top: str, *, ignored: bool) -> Iterator[tuple[str, Any]]:
    if isinstance(data, dict) and data:
        for key, value in data.items():
            below = _comparable(key, value)
            yield from _leaves(below, f"{path}.{key}", top, ignored=ignored or key in IGNORED)
    elif isinstance(data, list):
        yield f"{path} length", len(data)
        if len(data) > 1 and all(isinstance(one, str) and " " not in one for one in data):
            yield path, [one.replace(top, "") for one in data]
            return
        for place, value in enumerate(data):
            yield from _leaves(value, f"{path}[{place}]", top, ignored=ignored)
    elif ignored:
        yield path, VALUE
    elif isinstance(data, str):
        yield path, TEXT if re.search(r"\s", data) else data.replace(top, "")
    elif isinstance(data, float):
        yield path, repr(data) if not math.isfinite(data) or data == 0 else data
    else:
        yield path, data


def _comparable(key: str, value: Any) -> Any:
    """A value without what is worded, and without an order that means nothing."""
    if key in WORDED and isinstance(value, dict | list):
        return VALUE
    return sorted(value, key=str) if key == "enum" and isinstance(value, list) else value


def parquet(path: Path, name: str, top: Path) -> Leaves:
    """Columns, row groups and metadata of a Parquet file."""
    with pq.ParquetFile(path) as file:
        footer, schema = file.metadata, file.schema_arrow
        table = file.read()
    found: Leaves = {f"{name} columns": table.column_names, f"{name} rows": table.num_rows}
    groups = [footer.row_group(at) for at in range(footer.num_row_groups)]
    found[f"{name} row groups"] = [group.num_rows for group in groups]
    for field in schema:
        column = table[field.name]
        found[f"{name}{COLUMN}{field.name}"] = f"{field.type} {column_hash(column)}"
    for key, value in (footer.metadata or {}).items():
        if key != SCHEMA:
            found |= _metadata(key.decode(), value, f"{name} metadata", top)
    return found


def _metadata(key: str, value: bytes, name: str, top: Path) -> Leaves:
    text = value.decode()
    try:
        data = json.loads(text)
    except json.JSONDecodeError:
        data = text
    return flat({key: data}, name, top)


def column_hash(column: pa.ChunkedArray) -> str:
    """A hash of types, nulls, lengths and the bits of all numbers of a column."""
    state = hashlib.sha256()
    _add(state, column.combine_chunks() if column.num_chunks != 1 else column.chunk(0))
    return state.hexdigest()[:16]


def _add(state: Any, array: pa.Array) -> None:
    kind = array.type
    state.update(f"{kind} {len(array)}".encode())
    state.update(np.packbits(pc.is_valid(array).to_numpy(zero_copy_only=False)).tobytes())
    if pa.types.is_dictionary(kind):
        _add(state, array.dictionary_decode())
    elif (
        pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
    ):
        lengths = pc.fill_null(pc.list_value_length(array), 0).cast(pa.int64())
        state.update(lengths.to_numpy(zero_copy_only=False).tobytes())
        _add(state, array.flatten())
    elif pa.types.is_struct(kind):
        for place in range(kind.num_fields):
            _add(state, pc.struct_field(array, place))
    elif pa.types.is_boolean(kind):
        state.update(np.packbits(array.fill_null(False).to_numpy(zero_copy_only=False)).tobytes())  # noqa: FBT003
    elif pa.types.is_integer(kind) or pa.types.is_floating(kind):
        zero = pa.scalar(0).cast(kind)
        state.update(array.fill_null(zero).to_numpy(zero_copy_only=False).tobytes())
    else:
        state.update(repr(array.to_pylist()).encode())


def report(path: Path, name: str) -> Leaves:
    """The numbers in the data of a page, and the lines that its charts draw.

    Texts of a page hold numbers ("8 of 64"); these count, the words about them do not, nor whether
    it is 0 or 0.00.
    """
    text = path.read_text(encoding="utf-8")
    block = re.search(r"<script[^>]*application/json[^>]*>(.*?)</script>", text, re.DOTALL)
    if block is None:
        return {name: "without data"}
    found = dict(_numbers(json.loads(block[1]), name))
    for section, html in _SECTION.findall(text):
        found |= dict(_numbers(_DRAWING.findall(html), f"{name}.shown.{section}"))
        words = re.sub("<[^>]*>", " ", _DRAWING.sub("", html))
        found |= dict(_numbers(words, f"{name}.shown.{section} texts"))
    return found


def _numbers(data: Any, path: str) -> Iterator[tuple[str, Any]]:
    if isinstance(data, dict):
        for key, value in data.items():
            if key not in IGNORED | NOTES:
                yield from _numbers(value, f"{path}.{key}")
    elif isinstance(data, list):
        yield f"{path} length", len(data)
        for place, value in enumerate(data):
            yield from _numbers(value, f"{path}[{place}]")
    elif isinstance(data, str):
        if "<svg" in data:
            drawn = "\n".join(_PATHS.findall(data))
            yield path, hashlib.sha256(drawn.encode()).hexdigest()[:16]
        elif found := _NUMBER.findall(data):
            yield path, [float(one.replace(",", "")) for one in found]
    else:
        yield path, data


def differences(old: Leaves, new: Leaves) -> dict[str, str]:
    """What differs by path, as `old -> new`; columns come first."""
    found = {
        path: f"{_shown(old[path])} -> {_shown(new[path])}"
        + ROUNDED * _is_rounding(old[path], new[path])
        for path in old
        if path in new and _differ(old[path], new[path])
    }
    found |= {path: f"{_shown(old[path])} -> absent" for path in old if path not in new}
    found |= {path: f"absent -> {_shown(new[path])}" for path in new if path not in old}
    return dict(sorted(found.items(), key=lambda item: COLUMN not in item[0]))


def general(path: str) -> str:
    """A path without the indices of lists and the names of files."""
    short = re.sub(r"\[\d+\]", "[]", path)
    return re.sub(r"^(?:\S+\.(?:json|parquet|html)(?: metadata)?|stdout \d+)\.?", "", short)


def _is_rounding(old: Any, new: Any) -> bool:
    """Return whether two numbers differ in their last bits alone, or as sums of numbers near 1."""
    if isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        return all(map(_is_rounding, old, new))
    try:  # zeros are texts, so that their signs are compared
        return math.isclose(float(old), float(new), rel_tol=1e-12, abs_tol=1e-15)
    except (TypeError, ValueError):
        return False


def _differ(old: Any, new: Any) -> bool:
    return type(old) is not type(new) or old != new


def _shown(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 100 else text[:97] + "..."


def fingerprint(leaves: Leaves) -> str:
    """One hash of everything that is compared of a case."""
    text = json.dumps(leaves, sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
