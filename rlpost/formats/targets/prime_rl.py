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

    from rlpost.formats.targets.base import ExportColumns, Rows
    from rlpost.io.outputs import OutputFile


VERSION = 1
STREAMS = {
    "advantages": "advantages",
    "old_log_probs": "trainer_logprobs",
    "entropy": "entropies",
}


def write(
    parts: Iterable[Rows], files: Sequence[OutputFile], held: ExportColumns, _: int
) -> list[str]:
    """Write an annotation for each row with tokens, and its place; return how many have none."""
    lines, index = map(Lines, files)
    empty = 0
    for rows in parts:
        sampled = rows.masks()
        streams = {STREAMS[x]: _stream(rows, x, sampled) for x in STREAMS if x in held.columns}
        credit, prompts = rows.values("response_advantage"), rows.lists("prompt_token_ids")
        for row, (trace, branch) in enumerate(_traces(rows)):
            if not len(sampled[row]):
                empty += 1
                continue
            before = [None] * len(prompts[row])
            lists = {name: [*before, *values[row]] for name, values in streams.items()}
            info = {} if credit[row] is None else {"advantage": credit[row]}
            place = {"trace_id": trace, "chunk": 0, "offset": lines.size, "info": info}
            branches = [{"index": branch, **lists}]
            lines.append(
                [{"version": VERSION, "trace_id": trace, "info": info, "branches": branches}]
            )
            index.append([place])
    return [f"{counted(empty, 'row')} without tokens: no annotation"] if empty else []


def _stream(rows: Rows, item: str, sampled: list[NDArray[np.bool_]]) -> list[list[float | None]]:
    """Return the numbers of sampled tokens, null for others; 0 for advantages left out of training.

    A node gets no numbers if one of its sampled tokens has null, so left-out tokens get 0.
    """
    values = rows.tokens(item)
    if item == "advantages":
        final = rows.masks(FINAL_MASK) if FINAL_MASK in rows else sampled
        pairs = zip(values, final, rows.kept(), strict=True)
        values = [np.where(mask & kept, own, 0) for own, mask, kept in pairs]
    lists: list[list[float | None]] = []
    for row, (own, mask) in enumerate(zip(values, sampled, strict=True)):
        if not np.isfinite(own[mask]).all():
            raise rows.error(
                row, f"`{rows.columns[item]}` has a number that JSON has not (NaN or infinite); "
                "mask the response, or compute it again"
            )  # fmt: skip
        lists.append(np.where(mask, own.astype(object), np.array(None)).tolist())
    return lists


def _traces(rows: Rows) -> Iterable[tuple[str, int]]:
    """Yield the trace and the branch of each sample id; raise DataError for another form."""
    for row, sample in enumerate(rows.values("sample_id")):
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
    layout="stream",
    suffix=".jsonl",
    fields={
        "sample_id": "trace_id, branches.index",
        "prompt_token_ids": "nulls before the response",
        **{item: f"branches.{name}" for item, name in STREAMS.items()},
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
    write=write,
    use="the dashboard of prime-rl folds {out} onto the traces, if it is "
    "traces/annotations/NAME of the run",
    note="Its dashboard reads annotations; its trainer computes advantages itself and reads none "
    "from files.",
)
