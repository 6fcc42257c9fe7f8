"""Dumps of texts and scores, written as the frameworks write them, and how they are converted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import format_writers_text as writers
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rlpost.errors import DataError
from rlpost.formats.base import ReadOptions
from rlpost.formats.convert import convert

if TYPE_CHECKING:
    from pathlib import Path

MADE = writers.rollouts()


def plain(path: Path, made: list[writers.Rollout]) -> Path:
    """Anybody's table: prompt id, reward, completion."""
    return writers.write_lines(
        path,
        [
            {"prompt_id": f"{one.step}/{one.group}", "reward": one.reward, "completion": "x"}
            for one in made
        ],
    )


def converted(source: Path, target: Path, name: str | None = None, **chosen: str) -> pa.Table:
    """What `convert` makes of a dump; its summary agrees with the file."""
    summary = convert(source, target, name, ReadOptions(map=chosen))
    table = pq.read_table(target)
    assert summary["responses"] == table.num_rows
    assert summary["columns"] == table.column_names
    return table


def columns(table: pa.Table, *names: str) -> list[list[Any]]:
    return [table[name].to_pylist() for name in names]


def refusal(file: Path, tmp_path: Path, name: str) -> str:
    """The error of a conversion; no file is left."""
    with pytest.raises(DataError) as refused:
        convert(file, tmp_path / "out" / "o.parquet", name)
    assert refused.value.exit_code == 3
    assert not list(tmp_path.glob("out*"))
    return str(refused.value)
