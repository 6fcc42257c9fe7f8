"""Which column or field could serve a role: one ranking, by name and content."""

from __future__ import annotations

import difflib
import re
from typing import TYPE_CHECKING

from rlpost.errors import SIMILAR, DataError, ErrorPart
from rlpost.recipe.roles import LOG_PROBS, NEEDED_IN_ALL, ROLES, columns_here, fits

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping


MOST_CANDIDATES = 6
"""Columns that an error names as candidates for a role."""
ALIAS = 10.0
"""What a name that the role has in ROLES is worth."""
PROMPTS = r"prompt|question|problem|input|instruction|query|task"
_OUTPUT = r"(response|completion|output|generated|generation|num_output|n_output|total_output)s?"
_LOGPS = r"(log_?probs?|logps?)"
_ENGINE = r"(rollout|sampling|sampler|inference|engine|vllm|sglang|generation)"
_NAMES: Mapping[str, tuple[tuple[str, float], ...]] = {
    "reward": (
        (r"(total|final|avg|mean|episode|outcome)_(reward|score)", 8),
        (r"rewards?|scores?", 7),
        (r"(is_)?(resolved|correct|success|successful|passed?|solved)", 6),
        (r"accuracy|acc|grade|return", 5),
        (r".*_(reward|score)|(reward|score)_.*", 3),
        (r".*(reward|score|accura|correct|pass|return|grade).*|value", 2),
    ),
    "group": (
        (r"(group|prompt)_?(id|uid|idx|index|key)", 9.5),
        (r"(ng_)?task_?(index|idx|id|name)", 9),
        (r"(example|problem|question|sample|item|instance|query|row)_?(id|idx|index)", 8),
        (r"seed", 6),
        (rf"({PROMPTS})(_text|_messages|s)?", 5),
        (r"id|index|idx|key", 4),
    ),
    "truncated": ((r"(is_|was_)?truncated", 10.5), (r"(finish|stop|termination)_reason", 8)),
    "failure": (
        (r"failure(_mode|_type|_reason)?", 10),
        (r"error|exception(_info)?", 8),
    ),
    "response": (
        (r"response_(text|str)|raw_generation|generations?|answer_text|output", 9),
        (r"completions?|responses?|model_(output|response|answer)", 9),
        (r"messages|outputs|traj|trajectory|transcript|conversation", 6),
    ),
    "response_length": (
        (rf"{_OUTPUT}_(length|tokens|token_count|len|num_tokens)", 8),
        (r"(num|n)_(output|completion|response)_tokens", 7),
    ),
    "batch": ((r"(global_|train(ing)?_|rollout_|policy_)?(step|iteration|iter)", 8),),
    "domain": ((r"env(ironment)?(_id|_name)?|source|category|subject|benchmark", 6),),
    "old_log_probs": ((rf"old_?(policy_)?{_LOGPS}", 8),),
    "infer_log_probs": ((rf"{_ENGINE}_?{_LOGPS}", 8), (rf"(token_?)?{_LOGPS}", 5)),
    "ref_log_probs": ((rf"ref(erence)?_?(policy_)?{_LOGPS}", 8),),
    "mask": ((r"(response|completion|action|loss|assistant|policy)_?masks?|masks?", 8),),
    "response_token_ids": (
        (r"(response|completion|output|generation|action)_?(token_?)?(ids|tokens)", 8),
    ),
    "prompt_token_ids": ((r"(prompt|input)_?(token_?)?(ids|tokens)", 8),),
}  # fmt: skip
"""Role -> patterns of whole names that often have it, and what such a name is worth, 0 to 10."""


def worth(role: str, name: str) -> float:
    """Return how likely a name is that of a role: 10 for one of ROLES, 0 for none.

    Of a dotted path the last name counts, and each name before it makes it less likely.

    >>> worth("reward", "reward"), worth("reward", "info.total_reward"), worth("reward", "cost")
    (10.0, 9.25, 0.0)
    """
    outer, _, last = name.rpartition(".")
    depth = 0.5 * (outer.count(".") + bool(outer))
    aliases = ROLES[role].aliases
    if last in aliases:
        return ALIAS - 0.05 * aliases.index(last) - depth
    last = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", last).lower().lstrip("_")
    values = (value for text, value in _NAMES.get(role, ()) if re.fullmatch(text, last))
    return max(max(values, default=0.0) - depth, 0.0)


def candidates(role: str, available: Collection[str], holds: Mapping[str, str]) -> tuple[str, ...]:
    """Return columns that could serve a role, the likeliest first.

    Their content fits. If no name is likely or similar, all that fit are returned, if they are few;
    none for log-probs, since other lists of numbers look like them.
    A column with a role of its own is not returned, however similar its name is.

    Args:
        role: without a column.
        available: column names of the input.
        holds: the content of columns (of `rlpost.io.arrow.content_kind`), as far as it is known.
    """
    aliases = ROLES[role].aliases
    taken = {alias for other in ROLES.values() for alias in other.aliases}
    fitting = [name for name in available if name not in holds or fits(role, holds[name])]
    free = [name for name in fitting if name not in taken]
    ranks = {name: (worth(role, name), _similarity(name, aliases)) for name in free}
    likely = [name for name, (value, near) in ranks.items() if value or near >= SIMILAR]
    if not likely and (len(free) > MOST_CANDIDATES or role in LOG_PROBS):
        return ()
    return tuple(sorted(likely or free, key=ranks.__getitem__, reverse=True)[:MOST_CANDIDATES])


def missing(
    needs: Mapping[str, str],
    available: Collection[str],
    where: str,
    dumps: Mapping[str, str],
    holds: Mapping[str, str],
    in_some_files: Mapping[str, tuple[str, str]],
) -> DataError:
    """Return the error for roles that have no column, with columns that could serve each.

    Args:
        needs: the missing roles, and what needs each.
        available: column names of the input.
        where: the input's name.
        dumps: by role, why the dump from which the input was converted lacks it.
        holds: the content of each column, so that only fitting columns are suggested.
        in_some_files: as `ColumnMap.in_some_files`.
    """

    def part(role: str, why: str) -> ErrorPart:
        need = f"no column for {role} ({why})"
        if role in in_some_files:
            column, file = in_some_files[role]
            return ErrorPart(f"{file}: {need}: other files have `{column}`", tip=NEEDED_IN_ALL)
        if role in dumps:
            tip = f"if a column has it, use --map {role}=COLUMN"
            return ErrorPart(f"{where}: {need}: {dumps[role]}", tip=tip)
        text = f"{where}: {need}; looked for {', '.join(ROLES[role].aliases[:4])}"
        names = candidates(role, available, holds)
        column = names[0] if len(names) == 1 else "COLUMN"
        tip = f"--map {role}={column}"
        return ErrorPart(text, names, tip if names else f"{tip}  # {columns_here(available)}")

    return DataError(*(part(role, why) for role, why in needs.items()))


_LONGEST = 200  # characters of a name that is compared with others


def _similarity(name: str, aliases: tuple[str, ...]) -> float:
    """Return the similarity of a name to the closest of several, 0 to 1."""
    name = name[:_LONGEST]  # it takes the square of the length
    return max(difflib.SequenceMatcher(None, name, alias).ratio() for alias in aliases)
