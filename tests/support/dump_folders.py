"""Folders of dumps, and the names of the files in a folder."""

from __future__ import annotations

import format_writers as writers
import pyarrow.parquet as pq

from rlpost.formats import FORMATS
from rlpost.formats.convert import convert


def steps(folder, *numbers):
    """A dump per step, of samples of its own."""
    for number in numbers:
        made = writers.nemo_rl(folder, writers.made(seed=number))
        made.rename(folder / f"train_data_step{number}.jsonl.part")
    for part in folder.glob("*.part"):
        part.rename(part.with_suffix(""))
    return folder


def names(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def rows_as_declared(source, folder, name=None):
    """The rows of a dump, whose roles are those that its layout declares, and the summary."""
    summary = convert(source, folder / "out.parquet", overwrite=True)
    layout = FORMATS[summary["format"]]
    also = {"response_token_ids", "prompt_token_ids", "response_length"}
    assert name in (None, layout.name)
    assert {*summary["roles"]} - also <= {*layout.roles}
    assert {*layout.roles} <= {*summary["roles"], *layout.missing_roles}
    return pq.read_table(folder / "out.parquet").to_pylist(), summary
