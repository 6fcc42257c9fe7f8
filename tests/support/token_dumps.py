"""Dumps with tokens, written as the frameworks write them, and how they are converted."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import format_writers as writers
import pyarrow as pa
import pyarrow.parquet as pq
from runs import run

from rlpost.formats.convert import convert

if TYPE_CHECKING:
    from pathlib import Path

TOKENS = {
    "response_mask": "mask",
    "response_token_ids": "tokens",
    "old_log_probs": "old",
    "ref_log_probs": "ref",
    "infer_log_probs": "infer",
    "values": "values",
    "dumped_advantages": "advantages",
}


BASIC = {"response_mask", "response_token_ids", "infer_log_probs"}


# writer -> the format, and the token columns that its dumps give
WRITERS = {
    "nemo_rl": ("nemo-rl", BASIC | {"old_log_probs", "dumped_advantages"}),
    "slime_rollout": ("slime-rollout", BASIC),
    "slime_train": ("slime-train", {*TOKENS}),
    "prime_rl_traces": ("prime-rl", BASIC | {"ref_log_probs", "dumped_advantages"}),
    "prime_rl_tokens": ("prime-rl-tokens", BASIC | {"old_log_probs", "dumped_advantages"}),
}


def converted(writer: str, folder: Path, **how) -> pa.Table:
    given = how.pop("given", None) or writers.made()
    dump = getattr(writers, writer)(folder / "in", given, **how)
    convert(dump, folder / "out.parquet")
    return pq.read_table(folder / "out.parquet")


def partition(keys: list) -> list[int]:
    """Which rows share a key, whatever the keys are called."""
    places = {key: place for place, key in reversed(list(enumerate(keys)))}
    return [places[key] for key in keys]


def refused(dump: Path, folder: Path, *words: str) -> str:
    """The error of converting, and of enriching directly; both exit 3 and leave nothing."""
    before = {*folder.rglob("*")}
    ran = run("convert", dump, folder / "out.parquet", *words)
    again = run("advantages", dump, folder / "out.parquet", "--estimator", "grpo")
    assert (ran.code, again.code) == (3, 3), ran.err + again.err
    assert {*folder.rglob("*")} == before
    return ran.err


def edited(writer: str, folder: Path, edit) -> Path:
    """A dump whose second record (or only line) is edited, once the first is right."""
    dump = getattr(writers, writer)(folder / "in", writers.made())
    text = dump.read_text()
    text = text if text.count("\n") > 1 else text * 2
    records = [json.loads(line) for line in text.splitlines()]
    edit(records[1])
    return writers.lines(dump, records)


def refused_as(name: str, dump: Path, folder: Path) -> str:
    before = {*folder.rglob("*")}
    ran = run("convert", dump, folder / "out.parquet", "--from", name)
    assert ran.code == 3, ran.err
    assert {*folder.rglob("*")} == before
    return ran.err
