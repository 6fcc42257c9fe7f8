"""`--to prime-rl`: annotations that prime-rl folds onto the traces of its rollouts.

An annotation names a trace and has a list per branch with an entry for each token of the branch:
null where nothing is known. Its readers project the lists onto the nodes of the trace. The input is
what `rlpost convert` made of the traces: a row per branch, whose `sample_id` is TRACE:BRANCH.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from rlpost.display.text import counted
from rlpost.formats.targets.base import FINAL_MASK, ExportTarget, Lines
from rlpost.formats.targets.rows import Rows

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from rlpost.formats.targets.base import ExportColumns
    from rlpost.io.outputs import OutputFile
    from rlpost.io.parquet.source import Source


VERSION = 1
STREAMS = {
    "advantages": "advantages",
    "old_log_probs": "trainer_logprobs",
    "entropy": "entropies",
}


class AnnotationSink:
    """Writes annotations as lines, and the index of the lines."""

    def __init__(self, files: Sequence[OutputFile], held: ExportColumns, step: int) -> None:
        del held, step
        self._lines, self._index = map(Lines, files)
        self._empty = 0

    def add(self, rows: Rows) -> None:
        """Write an annotation for each row with tokens."""
        prompts = _prompt_lengths(rows)
        sampled = rows.masks()
        streams = {STREAMS[item]: _stream(rows, item, sampled) for item in STREAMS if item in rows}
        credit = rows.values("response_advantage")
        for row, sample in enumerate(rows.values("sample_id")):
            if not len(sampled[row]):
                self._empty += 1
                continue
            trace, branch = _trace_of(rows, row, sample)
            before: list[float | None] = [None] * prompts[row]
            lists = {name: before + own[row] for name, own in streams.items()}
            info = {} if credit[row] is None else {"advantage": credit[row]}
            self._write(trace, branch, info, lists)

    def _write(self, trace: str, branch: int, info: dict[str, Any], lists: dict[str, Any]) -> None:
        update = {
            "version": VERSION,
            "trace_id": trace,
            "info": info,
            "branches": [{"index": branch, **lists}],
        }
        place = {"trace_id": trace, "chunk": 0, "offset": self._lines.size, "info": info}
        self._lines.append([update])
        self._index.append([place])

    def finish(self) -> list[str]:
        """Return how many rows have no tokens, such as failures before the first one."""
        rows = counted(self._empty, "row")
        return [f"{rows} without tokens: no annotation"] if self._empty else []


def _prompt_lengths(rows: Rows) -> list[int]:
    return [len(prompt) for prompt in rows.lists("prompt_token_ids")]


def _stream(rows: Rows, item: str, sampled: list[NDArray[np.bool_]]) -> list[list[float | None]]:
    """Return the numbers of sampled tokens, null for others; 0 for advantages left out of training.

    A node gets no numbers if one of its sampled tokens has null, so left-out tokens get 0.
    """
    values = rows.tokens(item)
    if item == "advantages":
        final = rows.masks(FINAL_MASK) if FINAL_MASK in rows else sampled
        kept = rows.kept()
        values = [
            np.where(mask & keep, own, 0)
            for own, mask, keep in zip(values, final, kept, strict=True)
        ]
    found = []
    for row, (own, mask) in enumerate(zip(values, sampled, strict=True)):
        if not np.isfinite(own[mask]).all():
            raise rows.error(
                row, f"`{rows.columns[item]}` has a number that JSON has not (NaN or infinite); "
                "mask the response, or compute it again"
            )  # fmt: skip
        numbers = zip(own.tolist(), mask.tolist(), strict=True)
        found.append([float(value) if keep else None for value, keep in numbers])
    return found


def _trace_of(rows: Rows, row: int, sample: object) -> tuple[str, int]:
    """Return the trace and the branch of a sample id.

    Raises:
        DataError: it is not of the form TRACE:BRANCH.
    """
    trace, colon, branch = str(sample).rpartition(":")
    if not (trace and colon and branch.isdecimal()):
        raise rows.error(
            row,
            f"`{rows.columns['sample_id']}` is {sample!r}; TRACE:BRANCH is needed, as `rlpost "
            "convert` writes it for traces of prime-rl",
        )
    return trace, int(branch)


def check(source: Source, columns: Mapping[str, str]) -> None:
    """Raise DataError if a sample id is not of the form TRACE:BRANCH."""
    column = columns["sample_id"]
    for chunk in source.read([column], 1 << 16, ""):
        path = str(source.files[chunk.file].path)
        rows = Rows.of(chunk, path, source.first_rows[chunk.file], columns)
        for row, sample in enumerate(rows.values("sample_id")):
            _trace_of(rows, row, sample)


TARGET = ExportTarget(
    name="prime-rl",
    title="prime-rl annotations beside its traces",
    layout="stream",
    suffix=".jsonl",
    fields={
        "sample_id": "trace_id, branches.index",
        "prompt_token_ids": "nulls before the response",
        "advantages": "branches.advantages",
        "old_log_probs": "branches.trainer_logprobs",
        "entropy": "branches.entropies",
        "response_advantage": "info.advantage",
        "mask": "nulls in the lists",
        "sample_mask": "advantages of 0",
        FINAL_MASK: "advantages of 0",
    },
    needs={
        "sample_id": "an annotation names its trace and branch",
        "prompt_token_ids": "its lists begin with the prompt",
        "advantages": "they are what is annotated",
    },
    source="prime_rl/monitors/file/traces/update.py, fold_trace_updates (2026)",
    open=AnnotationSink,
    check=check,
    use="the dashboard of prime-rl folds {out} onto the traces, if it is "
    "traces/annotations/NAME of the run",
    note="Its dashboard reads annotations; its trainer computes advantages itself and reads none "
    "from files.",
)
