"""Roles: what a recipe needs, and which column of a file serves for it."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from rlpost.errors import DataError, UsageError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence


_NEAR = 0.6
Kind = Literal["key", "number", "flag", "tokens"]
_FITTING: dict[Kind, tuple[str, ...]] = {
    "key": ("number", "text"),
    "number": ("number",),
    "flag": ("number", "text"),
    "tokens": ("floats",),
}
LOG_PROBS = ("log_probs", "old_log_probs", "infer_log_probs", "ref_log_probs")


@dataclass(frozen=True)
class Role:
    """What a column means: `tokens` are lists, the other kinds one value per response."""

    name: str
    kind: Kind
    aliases: tuple[str, ...] = ()


def _role(name: str, kind: Kind, *aliases: str) -> Role:
    return Role(name, kind, aliases)


# Canonical names come first; aliases in the order in which they are tried. `logprobs` and
# `rewards` mean different things in different frameworks and so are no aliases.
ROLES: dict[str, Role] = {
    "group": _role(
        "group", "key", "prompt_id", "group_id", "uid", "prompt_idx", "group_index", "group_idx",
        "rollout_group", "traj_group_id", "problem_id",
    ),
    "reward": _role(
        "reward", "number", "reward", "score", "scores", "filtered_rewards", "raw_reward",
        "total_reward", "response_level_rewards",
    ),
    "mask": _role(
        "mask", "tokens", "response_mask", "loss_mask", "completion_mask", "token_loss_mask",
        "action_mask", "loss_masks", "new_response_mask", "masks",
    ),
    "old_log_probs": _role(
        "old_log_probs", "tokens", "old_log_probs", "old_log_prob", "old_per_token_logps",
        "old_logprobs", "prev_logprobs", "trainer_logprobs", "action_log_probs", "prox_logp",
    ),
    "ref_log_probs": _role(
        "ref_log_probs", "tokens", "ref_log_probs", "ref_log_prob", "ref_per_token_logps",
        "reference_logprobs", "ref_logprobs", "base_action_log_probs", "ref_logp",
        "reference_policy_logprobs",
    ),
    "infer_log_probs": _role(
        "infer_log_probs", "tokens", "infer_log_probs", "rollout_log_probs",
        "sampling_per_token_logps", "generation_logprobs", "inference_logprobs",
        "infer_logprobs", "rollout_logprobs", "token_logprobs", "output_logprobs",
    ),
    "log_probs": _role("log_probs", "tokens", "log_probs", "per_token_logps", "new_log_probs"),
    "values": _role("values", "tokens", "values", "value_preds"),
    "token_rewards": _role(
        "token_rewards", "tokens", "token_rewards", "process_rewards"
    ),
    "sum_pi_squared": _role("sum_pi_squared", "tokens", "sum_pi_squared"),
    "advantages": _role("advantages", "tokens", "advantages"),
    "is_weight": _role("is_weight", "tokens", "is_weight"),
    "batch": _role("batch", "key", "step", "global_step", "iteration", "batch"),
    "domain": _role(
        "domain", "key", "domain", "data_source", "dataset", "env_name", "tag", "env_class",
        "task_type", "source_names",
    ),
    "difficulty": _role("difficulty", "number", "difficulty"),
    "reward_baseline": _role(
        "reward_baseline", "number", "reward_baseline", "reward_baselines"
    ),
    "truncated": _role(
        "truncated", "flag", "finish_reason", "truncated", "stop_reason", "stop_condition"
    ),
    "sample_mask": _role("sample_mask", "number", "sample_mask"),
    "sample_weight": _role("sample_weight", "number", "sample_weight"),
    "traj_id": _role("traj_id", "key", "traj_id"),
    "turn": _role("turn", "number", "turn"),
    "state_id": _role("state_id", "key", "state_id"),
    "step_score": _role("step_score", "number", "step_score"),
    "episode_score": _role("episode_score", "number", "episode_score"),
}  # fmt: skip

# Names that mean one thing in one framework and another elsewhere. They serve a role that nothing
# else serves, beside columns that tell the framework; no other role has them then.
TELLING: tuple[tuple[str, str, frozenset[str]], ...] = (
    ("reward", "rewards", frozenset({"token_loss_mask", "generation_logprobs"})),  # NeMo-RL
    ("reward", "rewards", frozenset({"base_action_log_probs"})),  # SkyRL: tokens, which are summed
    ("reward", "rewards", frozenset({"prox_logp", "versions"})),  # AReaL
    ("reward", "rewards", frozenset({"output_logprobs", "length_penalties"})),  # prime-rl
    ("infer_log_probs", "logprobs", frozenset({"prompt_idx", "sample_idx"})),  # open-instruct
    ("infer_log_probs", "logprobs", frozenset({"prox_logp", "versions"})),  # AReaL
    ("old_log_probs", "logprobs", frozenset({"ref_logprobs"})),  # logging boards
    ("old_log_probs", "log_probs", frozenset({"loss_masks", "raw_reward"})),  # slime
    ("truncated", "status", frozenset({"group_index", "rollout_log_probs"})),  # slime, miles
    ("group", "task_id", frozenset({"head_version", "tail_version"})),  # AReaL
    ("group", "id", frozenset({"case_type", "test_case_function"})),  # ROLL
    ("domain", "source", frozenset({"case_type", "test_case_function"})),  # ROLL
)


def closest(name: str, known: Iterable[str], prefix: str = "") -> str:
    """`; did you mean a or b?` with the nearest known names, each after the prefix, or nothing."""
    near = difflib.get_close_matches(name, list(known), n=3, cutoff=_NEAR)
    return f"; did you mean {' or '.join(prefix + one for one in near)}?" if near else ""


def kind_of(role: str) -> Kind:
    """What a column means; roles that a recipe names are those of components, teachers and ids."""
    if role in ROLES:
        return ROLES[role].kind
    kinds: dict[str, Kind] = {"component": "number", "teacher": "tokens"}
    return kinds.get(role.partition(":")[0], "key")


@dataclass(frozen=True)
class ColumnMap:
    """Which column serves each role, and how it was found (`name`, `alias`, `map`)."""

    columns: dict[str, str]
    how: dict[str, str]

    def column(self, role: str) -> str:
        """The column of a role that is known to be there."""
        return self.columns[role]

    def __contains__(self, role: object) -> bool:
        return role in self.columns


def resolve(
    available: Collection[str],
    chosen: Mapping[str, str],
    where: str,
    more: Mapping[str, str] | None = None,
) -> ColumnMap:
    """Find the column of every role in these names.

    Args:
        available: the column names of the input.
        chosen: role to column, as the user says; it beats names and aliases.
        where: the input's name, for errors.
        more: roles of no fixed name, as those of reward components, and their columns.

    Raises:
        UsageError: `chosen` names an unknown role.
        DataError: `chosen` or `more` name columns that are not there; a line for each.
    """
    columns: dict[str, str] = {}
    how: dict[str, str] = {}
    gone: list[tuple[str, str]] = []
    for role, column in chosen.items():
        if role in ROLES and column == "none" and column not in available:
            continue  # the role is left empty, whatever names there are
        if role not in ROLES:
            raise UsageError(f"--map {role}={column}: no role {role!r}{closest(role, ROLES)}")
        if column not in available:
            gone.append((f"--map {role}={column}: ", column))
        columns[role], how[role] = column, "map"
    gone += [("", column) for column in (more or {}).values() if column not in available]
    if gone:
        raise _no_columns(gone, available, where)
    for name, meaning in ROLES.items():
        found = next((alias for alias in meaning.aliases if alias in available), None)
        if name not in chosen and found is not None:
            columns[name] = found
            how[name] = "name" if found == meaning.aliases[0] else "alias"
    _tell(available, chosen, columns, how)
    named = more or {}
    return ColumnMap({**columns, **named}, {**how, **dict.fromkeys(named, "map")})


def _no_columns(
    gone: Sequence[tuple[str, str]], available: Collection[str], where: str
) -> DataError:
    """The error for columns that are named and not there: what named each, and the column."""
    near = [closest(column, available) for _, column in gone]
    lines = [
        f"{where}: {by}no column {column!r}{hint}"
        for (by, column), hint in zip(gone, near, strict=True)
    ]
    return _said(lines, where, [] if all(near) else available)


def _tell(
    available: Collection[str],
    chosen: Mapping[str, str],
    columns: dict[str, str],
    how: dict[str, str],
) -> None:
    """Fill roles that are still empty with names that only a framework's other columns explain."""
    for role, column, beside in TELLING:
        if role in columns or role in chosen or column not in available:
            continue
        if beside.isdisjoint(available) or column in chosen.values():
            continue
        for other in [other for other, serving in columns.items() if serving == column]:
            del columns[other], how[other]
        columns[role], how[role] = column, "alias"


def fits(role: str, holds: str) -> bool:
    """Whether a column that holds this (as `rlpost.io.arrow.content_kind` says it) can serve."""
    wanted = _FITTING[kind_of(role)]
    return holds in wanted or (role == "mask" and holds == "integers")


def missing(
    needs: Mapping[str, str],
    available: Collection[str],
    where: str,
    dumps: Mapping[str, str],
    holds: Mapping[str, str],
) -> DataError:
    """The error for roles that no column serves, a line each, with the nearest names there are.

    Args:
        needs: what is missing, and what needs it.
        available: the columns.
        where: the input.
        dumps: why the dump that the input was converted from lacks a role, where it is known.
        holds: what each column holds, so that none is suggested that can't serve.
    """
    lines = [
        f"{where}: no column for {role} ({why}): "
        + (
            f"{dumps[role]}; where another column holds it, --map {role}=COLUMN names it"
            if role in dumps
            else _named(role, available, holds)
        )
        for role, why in needs.items()
    ]
    return _said(lines, where, available)


def _said(lines: Sequence[str], where: str, available: Collection[str]) -> DataError:
    """An error of these lines, and what columns there are, if they are to be told."""
    names = sorted(available)
    more = f" and {len(names) - 12} more" if len(names) > 12 else ""  # noqa: PLR2004
    here = f"Columns here: {', '.join(names[:12])}{more}"
    if not names:
        return DataError("\n".join(lines))
    if len(lines) == 1:
        return DataError(f"{lines[0]}. {here}")
    return DataError("\n".join([*lines, f"{where}: {here}"]))


def _named(role: str, available: Collection[str], held: Mapping[str, str]) -> str:
    """What a missing role would be called, and the column that may have been meant."""
    aliases = ROLES[role].aliases
    # A column that has a role of its own is no candidate, however much its name looks like one.
    taken = {alias for other in ROLES.values() for alias in other.aliases}
    fitting = [name for name in available if name not in held or fits(role, held[name])]
    free = [name for name in fitting if name not in taken]
    near = max(free, key=lambda name: _likeness(name, aliases), default="")
    hint = f"--map {role}=COLUMN names another one"
    if near and _likeness(near, aliases) >= _NEAR:
        hint = f"did you mean {near}? then say --map {role}={near}"
    return f"it would be called {' or '.join(aliases[:4])}; {hint}"


def _likeness(name: str, aliases: Sequence[str]) -> float:
    """How much a name looks like the nearest of some others, 0 to 1."""
    return max(difflib.SequenceMatcher(None, name, alias).ratio() for alias in aliases)
