"""Rollouts of agents as the calls of their model: a row for each call, with its turn and branch."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from rlpost.formats.records import Field, Record

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

FAILURES: dict[str, pa.DataType] = {"failure": pa.string(), "error": pa.string()}
"""Columns that every file has: the first failure may come late."""
TYPES = {"branch": pa.string(), "turn": pa.int64(), **FAILURES}
"""Columns that are not canonical of the calls of rollouts, which every file has."""

CALLS = {
    "branch": Field("calls that go on from one another", lambda _: None),
    "turn": Field("the order of calls", lambda _: None),
    **dict.fromkeys(
        ("response_mask", "response_token_ids", "prompt_token_ids", "infer_log_probs"),
        Field("the calls of the model", lambda _: None),
    ),
}
"""The columns that each call of a rollout sets, as fields of a layout."""


def error_name(message: object) -> str | None:
    """Return the name of the exception whose `repr` a message begins with; None without a message.

    A message that begins with no name is returned whole, up to its first line.
    """
    if not message:
        return None
    name = re.match(r"[\w.]+(?=\()", str(message))
    return name[0] if name else str(message).splitlines()[0][:60]


@dataclass(frozen=True, slots=True)
class ModelCall:
    """One call of a model: what it was given and what it sampled.

    Args:
        where: its position in errors.
        prompt: ids of the whole prompt, with the history; None: not recorded.
        sampled: ids of the answer; None or empty: not recorded, so that the row has no tokens.
        log_probs: of the answer, by the engine; None: not recorded.
        mask: 0 for tokens of the answer that were not sampled; None: all were.
        values: further columns of the row.
    """

    where: str
    prompt: Sequence[int] | None = None
    sampled: Sequence[int] | None = None
    log_probs: Sequence[float] | None = None
    mask: Sequence[int] | None = None
    values: dict[str, Any] = field(default_factory=dict)

    def tokens(self) -> dict[str, Any]:
        """Return the columns of tokens."""
        if not self.sampled:
            return {}
        return {
            "prompt_token_ids": self.prompt or None,
            "response_mask": self.mask or [1] * len(self.sampled),
            "response_token_ids": self.sampled,
            "infer_log_probs": self.log_probs or None,
        }


def call_rows(record: Record, rollout: str, calls: Iterable[ModelCall]) -> Iterator[Record]:
    """Yield a record for each call of a rollout, in the order in which they were made.

    The turn counts from 0. A call is of the branch whose last prompt and answer begin its prompt:
    where the history was rewritten, and in a sub-agent, a new branch begins. Without ids of prompts
    a rollout has one branch. A rollout without calls, such as one that failed before the first, is
    one row without tokens, whose length is unknown.

    Args:
        record: the rollout's, with the fields for the user's map.
        rollout: its id.
        calls: its calls; their own values have precedence.
    """
    ends: list[tuple[int, int]] = []  # of each branch: its length, and its hash
    for turn, call in enumerate(calls or [ModelCall(record.where)]):
        branch = 0
        if call.prompt:
            prompt = tuple(call.prompt)
            begun = [i for i, (size, end) in enumerate(ends) if hash(prompt[:size]) == end]
            branch = max(begun, key=lambda i: ends[i], default=len(ends))
            sequence = (*prompt, *(call.sampled or ()))
            ends[branch : branch + 1] = [(len(sequence), hash(sequence))]
        place = {"sample_id": f"{rollout}:{turn}", "branch": str(branch), "turn": turn}
        yield replace(record, where=call.where, values={**place, **call.values, **call.tokens()})
