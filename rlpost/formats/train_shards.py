"""miles: `train_data/{rollout_id}_{rank}.pt`, one data-parallel rank's columns each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rlpost.errors import DataError
from rlpost.formats.fields import prompt_key
from rlpost.formats.layout import numbers
from rlpost.formats.records import Record, described
from rlpost.formats.samples import plain
from rlpost.formats.slime_rollout import dump_of
from rlpost.formats.slime_train import LISTS

if TYPE_CHECKING:
    from pathlib import Path


TrainKey = tuple[int, str]
"""Sample index, and a key of its tokens: several samples may share an index."""


def train_lists(folder: Path, stem: str) -> dict[TrainKey, Record]:
    """The trainer's token lists by sample, over all ranks' files; canonical names.

    Ranks that hold copies of a sample agree, so the first one is taken.

    Raises:
        DataError: a file is damaged, or the lists were cut over ranks (context parallelism).
    """
    found: dict[TrainKey, Record] = {}
    for path in sorted(folder.glob(f"{stem}_*.pt")) if folder.is_dir() else []:
        dump = dump_of(path, ("rollout_id", "rollout_data"))
        if int(dump.get("cp_size") or 1) > 1:
            raise DataError(
                f"{path}: its lists are cut over {dump['cp_size']} ranks (context parallelism), "
                "which rlpost does not join; move train_data/ away to convert without it"
            )
        columns = dump["rollout_data"]
        if not isinstance(columns, dict) or "sample_indices" not in columns:
            raise DataError(f"{path}: `rollout_data` is {described(columns)}; no sample_indices")
        _add(found, path, columns)
    return found


def _add(found: dict[TrainKey, Record], path: Path, columns: dict[str, Any]) -> None:
    indices = columns["sample_indices"]
    present = {name: column for name, column in LISTS.items() if columns.get(name) is not None}
    for name in ("tokens", *present):
        if len(columns.get(name, ())) != len(indices):
            raise DataError(
                f"{path}: `{name}` has {len(columns.get(name, ()))} rows and sample_indices "
                f"{len(indices)}; they must agree"
            )
    for row, index in enumerate(indices):
        where = f"{path}, row {row}"
        ids = numbers(where, "tokens", plain(columns["tokens"][row]))
        lists = {column: plain(columns[name][row]) for name, column in present.items()}
        found.setdefault((int(index), prompt_key(ids)), Record(where, lists))
