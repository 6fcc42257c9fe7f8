"""`--to prime-rl`: annotations that prime-rl folds onto the traces of its rollouts.

An annotation names a trace and has a list per branch with an entry for each token of the branch:
null where nothing is known. Its readers project the lists onto the nodes of the trace. The input is
what `rlpost convert` made of the traces: a row per branch, whose `sample_id` is TRACE:BRANCH.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from rlpost.display.text import counted
from rlpost.formats.targets.base import FINAL_MASK, ExportTarget, Lines

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from rlpost.formats.targets.base import Held, Rows
    from rlpost.io.outputs import OutputFile


VERSION = 1
STREAMS = {
    "advantages": "advantages",
    "old_log_probs": "trainer_logprobs",
    "entropy": "entropies",
}


def write(parts: Iterable[Rows], files: Sequence[OutputFile], _: Held, __: int) -> list[str]:
    """Write an annotation for each row with tokens, and its place; return how many have none."""
    lines, index = map(Lines, files)
    empty = 0
    for rows in parts:
        sampled = rows["mask"]
        streams = {name: _stream(rows, x, sampled) for x, name in STREAMS.items() if x in rows}
        credit, prompts = rows["response_advantage"], rows["prompt_token_ids"]
        for row, (trace, branch) in enumerate(_traces(rows)):
            if not len(sampled[row]):
                empty += 1
                continue
            before = [None] * len(prompts[row])
            lists = {name: [*before, *values[row]] for name, values in streams.items()}
            info = {} if credit[row] is None else {"advantage": credit[row]}
            branches = [{"index": branch, **lists}]
            index.append([{"trace_id": trace, "chunk": 0, "offset": lines.size, "info": info}])
            lines.append(
                [{"version": VERSION, "trace_id": trace, "info": info, "branches": branches}]
            )
    return [f"{counted(empty, 'row')} without tokens: no annotation"] if empty else []


def _stream(rows: Rows, item: str, sampled: list[NDArray[np.bool_]]) -> list[list[float | None]]:
    """Return the numbers of sampled tokens, null for others; 0 for advantages left out of training.

    A node gets no numbers if one of its sampled tokens has null, so left-out tokens get 0.
    """
    lists = []
    final = rows[FINAL_MASK if FINAL_MASK in rows else "mask"]
    for row, (values, mask) in enumerate(zip(rows[item], sampled, strict=True)):
        if not np.isfinite(values[mask]).all():
            raise rows.error(
                row, f"`{rows.columns[item]}` has a number that JSON has not (NaN or infinite); "
                "mask the response, or compute it again"
            )  # fmt: skip
        kept = final[row] & rows.kept()[row] | (item != "advantages")
        numbers = np.where(kept, values, 0).astype(object)
        lists.append(np.where(mask, numbers, np.array(None)).tolist())
    return lists


def _traces(rows: Rows) -> Iterable[tuple[str, int]]:
    """Yield the trace and the branch of each sample id; raise DataError for another form."""
    for row, sample in enumerate(rows["sample_id"]):
        trace, colon, branch = str(sample).rpartition(":")
        if not (trace and colon and branch.isdecimal()):
            raise rows.error(
                row,
                f"`{rows.columns['sample_id']}` is {sample!r}; TRACE:BRANCH is needed, as `rlpost "
                "convert` writes it for traces of prime-rl",
            )
        yield trace, int(branch)


TARGET = ExportTarget(
    name="prime-rl",
    title="prime-rl annotations beside its traces",
    files=("{out}/00000.jsonl", "{out}.index.jsonl"),
    fields={
        "sample_id": "trace_id, branches.index",
        "prompt_token_ids": "nulls before the response",
        **{item: f"branches.{name}" for item, name in STREAMS.items()},
        "response_advantage": "info.advantage",
        "mask": "nulls in the lists",
        "sample_mask": "advantages of 0",
        FINAL_MASK: "advantages of 0",
    },
    needs=("sample_id", "prompt_token_ids", "advantages"),
    source="prime_rl/monitors/file/traces/update.py, fold_trace_updates (2026)",
    write=write,
    use="the dashboard of prime-rl folds {out} onto the traces, if it is "
    "traces/annotations/NAME of the run",
    note="Its dashboard reads annotations; its trainer computes advantages itself and reads none "
    "from files.",
)
