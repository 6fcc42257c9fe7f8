"""miles: `dashboard_columns/rollout_{id}.parquet` joined with the folders beside it.

The Parquet file has tokens, masks and the rollout engine's log-probs, but no rewards and no
groups. These are in `rollout_data/{id}.pt`, or, if that contains objects of miles' own classes,
in `trajectory/{id}.jsonl`. The trainer's log-probs are in `train_data/{id}_{rank}.pt`. A response
is identified by its sample index and the number of earlier responses with that index; a response
of the trainer by its sample index and its tokens.
"""

from __future__ import annotations

from collections import Counter
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlpost.errors import DataError
from rlpost.formats.base import Format
from rlpost.formats.containers import PARQUET, Contents
from rlpost.formats.containers.json_text import json_records
from rlpost.formats.keys import prompt_key
from rlpost.formats.layout import as_vector
from rlpost.formats.records import Record, Row, describe
from rlpost.formats.slime import (
    FINISHED,
    TRAIN_LISTS,
    dump_of,
    group_of,
    mask_list,
    plain,
    response_list,
    reward_of,
    rollout,
    split_tokens,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from rlpost.formats.base import ReadOptions


COLUMNS = ("sample_index", "response_length", "total_length", "tokens", "loss_mask",
           "rollout_log_probs")  # fmt: skip


SampleKey = tuple[int, int]


TrainKey = tuple[int, str]
"""Sample index, and a key of its tokens: several samples may share an index."""


_KEPT = ("group_index", "index", "sample_index", "reward", "status", "remove_sample", "prompt",
         "response", "rollout_id")  # fmt: skip


def _rows(records: Iterator[Record], options: ReadOptions) -> Iterator[Row]:
    """Yield the responses of one rollout, with rewards and groups from the dump's other files."""
    first = next(records, None)
    if first is not None:
        yield from _joined(Path(first.file), chain([first], records), options)


def _joined(path: Path, records: Iterator[Record], options: ReadOptions) -> Iterator[Row]:
    stem = path.stem.removeprefix("rollout_")
    top = path.absolute().parent.parent
    facts = _facts(path, top, stem)
    trained = {} if stem.startswith("eval_") else _train_lists(top / "train_data", stem)
    number = stem.removeprefix("eval_")
    step = int(number) if number.isdecimal() else None
    counts: Counter[int] = Counter()
    for record in records:
        index = record.integer("sample_index")
        key = (index, counts[index])
        counts[index] += 1
        if key not in facts:
            raise DataError(
                f"{record.where}: sample_index {index} is not in rollout_data/ or trajectory/ of "
                f"{top}, so its reward and group are unknown; keep the folders of one dump together"
            )
        row = _row(record, facts[key], options)
        row.values |= {"step": step, **_trained(record, trained)}
        yield row


def _facts(path: Path, top: Path, stem: str) -> Mapping[SampleKey, Record]:
    """Return the fields that the Parquet file lacks, by sample.

    Raises:
        DataError: neither file is there, or the only one can't be read.
    """
    dump, chats = top / "rollout_data" / f"{stem}.pt", top / "trajectory" / f"{stem}.jsonl"
    if dump.exists():
        try:
            return _keyed(rollout(dump_of(dump, ("rollout_id", "samples")))[1], "index")
        except DataError:
            # Newer runs store objects of miles' own classes there, which are not rebuilt.
            if not chats.exists():
                raise
    if not chats.exists():
        raise DataError(
            f"{path}: has no rewards and no groups; they are in {dump} or {chats}, and neither "
            "file exists: keep the folders of the dump together"
        )
    return _keyed(json_records(chats), "sample_index")


def _keyed(samples: Iterator[Record], name: str) -> dict[SampleKey, Record]:
    counts: Counter[int] = Counter()
    by_key: dict[SampleKey, Record] = {}
    for record in samples:
        index = record.integer(name)
        occurrence = record.fields.get("sample_occurrence", counts[index])
        counts[index] += 1
        kept = {key: value for key, value in record.fields.items() if key in _KEPT}
        by_key[index, int(occurrence)] = Record(record.where, kept)
    return by_key


def _row(record: Record, facts: Record, options: ReadOptions) -> Row:
    length = record.integer("response_length")
    tokens = split_tokens(record, length)
    status, prompt = facts.fields.get("status"), facts.fields.get("prompt")
    return Row(
        record,
        {
            "prompt_id": group_of(facts, tokens["prompt_token_ids"]),
            "rollout_id": facts.fields.get("rollout_id"),
            "sample_id": record.fields.get("sample_index"),
            "reward": reward_of(facts, options),
            "finish_reason": FINISHED.get(str(status), status),
            "dumped_sample_mask": float(not facts.fields.get("remove_sample", False)),
            "prompt": prompt if isinstance(prompt, str) else None,
            "response": facts.fields.get("response"),
            "prompt_length": len(tokens["prompt_token_ids"]),
            "response_length": length,
            **tokens,
            "response_mask": mask_list(record, "loss_mask", length),
            "infer_log_probs": response_list(record, "rollout_log_probs", length),
        },
    )


def _trained(record: Record, trained: Mapping[TrainKey, Record]) -> dict[str, Any]:
    """Return the trainer's lists of a response; empty if the trainer did not use it."""
    ids = as_vector(record.where, "tokens", record.get("tokens"))
    lists = trained.get((record.integer("sample_index"), prompt_key(ids)))
    if lists is None:
        return {}
    length = record.integer("response_length")
    return {name: response_list(lists, name, length) for name in lists.fields}


def _train_lists(folder: Path, stem: str) -> dict[TrainKey, Record]:
    """Return the trainer's token lists by sample, from the files of all ranks; canonical names.

    Copies of a sample on several ranks are equal, so the first one is used.

    Raises:
        DataError: a file is damaged, or the lists are split over ranks (context parallelism).
    """
    samples: dict[TrainKey, Record] = {}
    for path in sorted(folder.glob(f"{stem}_*.pt")) if folder.is_dir() else []:
        dump = dump_of(path, ("rollout_id", "rollout_data"))
        if int(dump.fields.get("cp_size") or 1) > 1:
            raise DataError(
                f"{path}: its lists are split over {dump.fields['cp_size']} ranks (context "
                "parallelism), which rlpost does not join; move train_data/ away to convert "
                "without it"
            )
        columns = dump.fields["rollout_data"]
        if not isinstance(columns, dict) or "sample_indices" not in columns:
            raise DataError(
                f"{path}: `rollout_data` is {describe(columns)}; an object with sample_indices is "
                "needed"
            )
        _add_rank(samples, path, columns)
    return samples


def _add_rank(samples: dict[TrainKey, Record], path: Path, columns: dict[str, Any]) -> None:
    indices = columns["sample_indices"]
    present = {
        name: column for name, column in TRAIN_LISTS.items() if columns.get(name) is not None
    }
    for name in ("tokens", *present):
        if len(columns.get(name, ())) != len(indices):
            raise DataError(
                f"{path}: `{name}` has {len(columns.get(name, ()))} rows and sample_indices has "
                f"{len(indices)}; they must be equal"
            )
    for row, index in enumerate(indices):
        where = f"{path}, row {row}"
        ids = as_vector(where, "tokens", plain(columns["tokens"][row]))
        lists = {column: plain(columns[name][row]) for name, column in present.items()}
        samples.setdefault((int(index), prompt_key(ids)), Record(where, lists))


FORMAT = Format(
    name="miles",
    title="miles dashboard_columns/rollout_{id}.parquet and the folders beside it",
    containers=(PARQUET,),
    contents=Contents(columns=COLUMNS),
    roles=(
        "group", "reward", "mask", "old_log_probs", "ref_log_probs", "infer_log_probs", "batch",
        "truncated",
    ),
    missing_roles={
        "infer_log_probs": "the rollout stored no rollout_log_probs",
        "log_probs": "miles dumps log-probs from before the update only",
        "old_log_probs": "there is no train_data/ beside dashboard_columns/, or it has no "
        "log_probs",
        "ref_log_probs": "there is no train_data/ beside dashboard_columns/, or it has no "
        "ref_log_probs",
        "values": "miles does not dump the critic's values",
    },
    sniff=lambda fields: fields.keys() == {*COLUMNS},
    rows=_rows,
    options=("map",),
    source="miles/ray/rollout/debug_data.py, miles/dashboard/dump_reader.py (2026)",
    fields={
        "prompt_id": "group_index", "reward": "reward", "response_mask": "loss_mask",
        "infer_log_probs": "rollout_log_probs", "old_log_probs": "train_data log_probs",
        "ref_log_probs": "train_data ref_log_probs", "step": "the file name",
        "finish_reason": "status",
    },
    note="The Parquet file has no rewards: they are read from rollout_data/ or trajectory/.",
)  # fmt: skip
