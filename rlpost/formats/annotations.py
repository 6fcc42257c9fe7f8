"""Annotations of prime-rl: what producers learn about a trace after it was written, beside it.

`traces/annotations/PRODUCER/NNNNN.jsonl[.zst]` has updates `{version, trace_id, info, branches}`. A
list of a branch has an entry for each of its tokens, null if unknown. Updates of a trace are
applied in the order of their producers' names and of their lines; for each list the newest counts.
"""

from __future__ import annotations

from typing import IO, TYPE_CHECKING, Any

import msgspec

from rlpost.display.text import counted
from rlpost.errors import DataError
from rlpost.formats.containers.streams import stream_lines
from rlpost.formats.records import as_record, parse_json

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from rlpost.formats.records import Record

VERSION = 1
LISTS = ("advantages", "trainer_logprobs", "entropies", "is_masked", "mismatch_kl")
"""Lists of a branch, which become fields of its nodes, with the entries of sampled tokens."""
PARTIAL = {"is_masked", "mismatch_kl"}
"""Lists that may be null at some sampled tokens."""
_FIELDS = {"version", "trace_id", "info", "branches"}


class _Head(msgspec.Struct):
    """The parts of an update that place it; its lists are not built."""

    trace_id: str
    branches: list[dict[str, msgspec.Raw]] = []


_head = msgspec.json.Decoder(_Head).decode


class Annotations:
    """The updates of a run's traces, by trace.

    Args:
        folder: `annotations/`, with a directory for each producer.
        lines: a temporary file, which gets their lines.

    Raises:
        DataError: an update is damaged.
        ReadWriteError: a file cannot be read.
    """

    def __init__(self, folder: Path, lines: IO[bytes]) -> None:
        self.lists: set[str] = set()
        """The lists that any update has, also those that no column is made of."""
        self._folder = folder
        self._annotated: set[str] = set()
        self._places: dict[str, list[tuple[str, int]]] = {}
        self._lines = lines
        for producer in sorted(folder.iterdir()) if folder.is_dir() else ():
            for line, place, _ in stream_lines(producer) if producer.is_dir() else ():
                try:
                    head = _head(line)
                except (msgspec.DecodeError, RecursionError) as error:
                    raise DataError(f"{place}: not an annotation: {error}") from None
                self._places.setdefault(head.trace_id, []).append((place, self._lines.tell()))
                self._lines.write(line.removesuffix(b"\n") + b"\n")
                self.lists.update(name for branch in head.branches for name in branch)

    def annotate(self, trace: Record, paths: Callable[[Record], Sequence[Sequence[int]]]) -> None:
        """Write the updates of a trace, oldest first, into its nodes; `paths` are its branches."""
        for place, at in self._places.get(str(trace.find("id")), ()):
            self._annotated.add(str(trace.find("id")))
            self._lines.seek(at)
            update = as_record(place, parse_json(place, self._lines.readline()))
            check_version(update)
            fields: Any = trace.fields
            fold(update, fields, paths(trace))

    def warnings(self) -> list[str]:
        """Return what has no column, and the traces that were not read."""
        warnings = []
        if new := self.lists - {"index", *LISTS}:
            names = ", ".join(f"`{name}`" for name in sorted(new))
            warnings.append(f"{self._folder}: no column is made of the new {names}")
        if unknown := sorted(self._places.keys() - self._annotated):
            warnings.append(
                f"{self._folder}: annotates {counted(len(unknown), 'trace')} that the input lacks, "
                f"such as {unknown[0]}"
            )
        return warnings


def check_version(update: Record) -> None:
    """Raise DataError for an update of an unknown version; the error names its new fields."""
    version = update.get("version")
    if version != VERSION:
        new = ", ".join(sorted(update.fields.keys() - _FIELDS))
        raise DataError(
            f"{update.where}: `version` is {version!r}; rlpost reads annotations of {VERSION}"
            + (f" (new fields: {new})" if new else "")
        )


def fold(update: Record, trace: dict[str, Any], branches: Sequence[Sequence[int]]) -> None:
    """Write the lists and the info of an update into a trace.

    A node takes a list if it has a number for each of the node's sampled tokens; those of PARTIAL
    need one for any.

    Args:
        update: of this trace.
        trace: its fields, whose nodes are changed.
        branches: the nodes of each branch by number, root first.

    Raises:
        DataError: the update names a branch that the trace lacks, or a list of another length.
    """
    trace["info"] = _merged(trace.get("info"), update.fields.get("info") or {})
    nodes = trace["nodes"]
    for branch in update.array("branches") if update.has("branches") else ():
        part = as_record(update.where, branch)
        index = part.integer("index")
        if not 0 <= index < len(branches):
            raise DataError(
                f"{update.where}: has branch {index} of trace {trace.get('id')!r}, which has "
                f"{len(branches)}"
            )
        path = [nodes[i] for i in branches[index]]
        tokens = sum(len(node.get("token_ids") or ()) for node in path)
        for name in (name for name in LISTS if part.has(name)):
            values, at = part.array(name), 0
            if len(values) > tokens:
                raise DataError(
                    f"{update.where}: `{name}` of branch {index} has {len(values)} entries, and "
                    f"the branch has {tokens} tokens"
                )
            for node in path:
                mask = node.get("mask") or ()
                span = values[at : at + len(mask)]
                at += len(mask)
                sampled = [x for x, keep in zip(span, mask, strict=False) if keep]
                known = [x is not None for x in sampled]
                whole = any(known) if name in PARTIAL else bool(known) and all(known)
                if len(span) == len(mask) and whole:
                    node[name] = sampled


def _merged(old: object, new: object) -> Any:
    if isinstance(old, dict) and isinstance(new, dict):
        return {**old, **{key: _merged(old.get(key), value) for key, value in new.items()}}
    return new
