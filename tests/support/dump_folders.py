"""Folders of dumps, and the names of the files in a folder."""

from __future__ import annotations

import format_writers as writers


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
