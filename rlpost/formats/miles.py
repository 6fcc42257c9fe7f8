"""miles: `dashboard_columns/rollout_{id}.parquet` joined with what lies beside it.

The Parquet file has tokens, masks and the rollout engine's log-probs, but neither reward nor
group. These are in `rollout_data/{id}.pt`, or, where that holds objects of miles' own classes, in
`trajectory/{id}.jsonl`; the trainer's log-probs are in `train_data/{id}_{rank}.pt`. Samples are
told by their index and by how often it has come before; the trainer's by index and tokens.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from rlpost.errors import DataError
from rlpost.formats.base import Format
from rlpost.formats.fields import apply_map
from rlpost.formats.keys import prompt_key
from rlpost.formats.layout import numbers
from rlpost.formats.records import Record, columns_in, described, records, table_records
from rlpost.formats.rows import Row, batches
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
    from pathlib import Path

    import pyarrow as pa

    from rlpost.formats.base import ReadOptions


COLUMNS = ("sample_index", "response_length", "total_length", "tokens", "loss_mask",
           "rollout_log_probs")  # fmt: skip


SampleKey = tuple[int, int]


TrainKey = tuple[int, str]
"""Sample index, and a key of its tokens: several samples may share an index."""


_KEPT = ("group_index", "index", "sample_index", "reward", "status", "remove_sample", "prompt",
         "response", "rollout_id")  # fmt: skip


def sniff(path: Path) -> bool:
    """Whether the Parquet file has exactly the columns of miles' dashboard."""
    return columns_in(path) == {*COLUMNS}


def read(path: Path, options: ReadOptions) -> Iterator[pa.RecordBatch]:
    """The samples of one rollout, with rewards and groups from the dump's other files."""
    return batches(_rows(path, options), options)


def _rows(path: Path, options: ReadOptions) -> Iterator[Row]:
    stem = path.stem.removeprefix("rollout_")
    top = path.absolute().parent.parent
    facts = _facts(path, top, stem)
    trained = {} if stem.startswith("eval_") else _train_lists(top / "train_data", stem)
    number = stem.removeprefix("eval_")
    step = int(number) if number.isdecimal() else None
    seen: Counter[int] = Counter()
    for record in table_records(path, COLUMNS):
        index = record.whole("sample_index")
        key = (index, seen[index])
        seen[index] += 1
        if key not in facts:
            raise DataError(
                f"{record.where}: sample_index {index} has no reward and no group in "
                f"rollout_data/ or trajectory/ of {top}; all three are of one dump"
            )
        row = _row(record, facts[key], options)
        row.values |= {"step": step, **_trained(record, trained)}
        yield apply_map(row, record, options.map)


def _facts(path: Path, top: Path, stem: str) -> Mapping[SampleKey, Record]:
    """What the Parquet file lacks, by sample.

    Raises:
        DataError: neither file is there, or the only one can't be read.
    """
    dump, chats = top / "rollout_data" / f"{stem}.pt", top / "trajectory" / f"{stem}.jsonl"
    if dump.exists():
        try:
            return _keyed(rollout(dump)[1], "index")
        except DataError:
            # Newer runs keep objects of miles' own classes there, which are not rebuilt.
            if not chats.exists():
                raise
    if not chats.exists():
        raise DataError(
            f"{path}: has neither rewards nor groups, and {dump} and {chats}, which have, are not "
            "there: keep the folders of the dump together"
        )
    return _keyed(records(chats), "sample_index")


def _keyed(samples: Iterator[Record], name: str) -> dict[SampleKey, Record]:
    seen: Counter[int] = Counter()
    found: dict[SampleKey, Record] = {}
    for record in samples:
        index = record.whole(name)
        place = record.fields.get("sample_occurrence", seen[index])
        seen[index] += 1
        kept = {key: value for key, value in record.fields.items() if key in _KEPT}
        found[index, int(place)] = Record(record.where, kept)
    return found


def _row(record: Record, facts: Record, options: ReadOptions) -> Row:
    length = record.whole("response_length")
    tokens = split_tokens(record, length)
    status, prompt = facts.fields.get("status"), facts.fields.get("prompt")
    return Row(
        record.where,
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
    """The trainer's lists of a sample, checked against its response; none if it was not trained."""
    ids = numbers(record.where, "tokens", record.get("tokens"))
    found = trained.get((record.whole("sample_index"), prompt_key(ids)))
    if found is None:
        return {}
    length = record.whole("response_length")
    return {name: response_list(found, name, length) for name in found.fields}


def _train_lists(folder: Path, stem: str) -> dict[TrainKey, Record]:
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
        _add_rank(found, path, columns)
    return found


def _add_rank(found: dict[TrainKey, Record], path: Path, columns: dict[str, Any]) -> None:
    indices = columns["sample_indices"]
    present = {
        name: column for name, column in TRAIN_LISTS.items() if columns.get(name) is not None
    }
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


FORMAT = Format(
    name="miles",
    title="miles dashboard_columns/rollout_{id}.parquet and the folders beside it",
    suffixes=(".parquet",),
    gives=(
        "group", "reward", "mask", "old_log_probs", "ref_log_probs", "infer_log_probs", "batch",
        "truncated",
    ),
    lacks={
        "infer_log_probs": "the rollout kept none",
        "log_probs": "miles dumps log-probs from before the update alone",
        "old_log_probs": "train_data/ is not beside dashboard_columns/, or has no log_probs",
        "ref_log_probs": "train_data/ is not beside dashboard_columns/, or has no ref_log_probs",
        "values": "miles does not dump the critic's values",
    },
    sniff=sniff,
    read=read,
    takes=("map",),
    source="miles/ray/rollout/debug_data.py, miles/dashboard/dump_reader.py (2026)",
    fields={
        "prompt_id": "group_index", "reward": "reward", "response_mask": "loss_mask",
        "infer_log_probs": "rollout_log_probs", "old_log_probs": "train_data log_probs",
        "ref_log_probs": "train_data ref_log_probs", "step": "the file's name",
        "finish_reason": "status",
    },
    note="The Parquet file has no reward: it is joined with rollout_data/ or trajectory/.",
)  # fmt: skip
