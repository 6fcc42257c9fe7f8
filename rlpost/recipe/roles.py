"""Roles: the meanings of columns, and the column of a file for each role."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from rlpost.errors import DataError, ErrorPart, UsageError, no_such
from rlpost.recipe.flags import flag_of

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence


_FIELDS = {"component": "reward_components", "teacher": "teachers"}
Kind = Literal["key", "number", "flag", "tokens", "text", "ids"]
Unit = Literal["row", "rollout"]
"""What statistics of responses count: rows, or rollouts, which may have several rows."""
_CONTENTS: dict[Kind, tuple[str, ...]] = {
    "key": ("number", "text"),
    "number": ("number",),
    "flag": ("number", "text"),
    "tokens": ("floats",),
    "text": ("text",),
    "ids": ("integers",),
}
_ALSO = {"mask": ("integers",), "policy_version": ("integers", "floats")}
"""Further contents of roles: a policy version may be one number, or one per token."""
RECORDED = "recorded:advantages"
"""The role of advantages that a trainer recorded, which are compared with the computed ones."""
RECORDED_ADVANTAGES = (
    "advantages", "dumped_advantages", "dumped_advantage", "advantage", "response_advantage",
)  # fmt: skip
"""Names of columns of a trainer's advantages, in files of frameworks and of `rlpost convert`."""
POLICIES = {
    "new": "log_probs",
    "old": "old_log_probs",
    "infer": "infer_log_probs",
    "ref": "ref_log_probs",
}
"""The role of each policy's log-probs."""
LOG_PROBS = tuple(POLICIES.values())
LOG_PROB_ROUNDING = 1e-3
"""Nats above 0 that a log-softmax in low precision may return; more is no log-prob."""
READ_BY_NAME: dict[str, Kind] = {
    "number": "number",
    "flag": "flag",
    "codes": "key",
    "tokens": "tokens",
}
"""How the role of a column begins that a user's estimator reads by its name, and the kind: numbers,
bools, texts (as integer codes), or lists of tokens. The parameter's name follows."""


@dataclass(frozen=True)
class Role:
    """The meaning of a column: `tokens` and `ids` are a list per response, other kinds one value.

    A role of kind `text` or `ids` has a column only if a recipe reads it.
    """

    name: str
    kind: Kind
    aliases: tuple[str, ...] = ()
    nullable: bool = False
    """A row may have no value: null or NaN, which are no numbers that are not finite."""


# The canonical name first, then aliases in the order in which they are tried. `logprobs` and
# `rewards` have different meanings in different frameworks, so they are not aliases.
_ROLES: tuple[tuple[str, Kind, str], ...] = (
    ("group", "key",
     ("prompt_id group_id uid prompt_idx group_index group_idx rollout_group traj_group_id "
     "problem_id")),
    ("reward", "number", "reward score scores filtered_rewards raw_reward total_reward"),
    ("mask", "tokens",
     ("response_mask loss_mask completion_mask token_loss_mask action_mask loss_masks "
     "new_response_mask masks")),
    ("old_log_probs", "tokens",
     ("old_log_probs old_log_prob old_per_token_logps old_logprobs prev_logprobs trainer_logprobs "
     "action_log_probs prox_logp")),
    ("ref_log_probs", "tokens",
     ("ref_log_probs ref_log_prob ref_per_token_logps reference_logprobs ref_logprobs "
     "base_action_log_probs ref_logp reference_policy_logprobs")),
    ("infer_log_probs", "tokens",
     ("infer_log_probs rollout_log_probs sampling_per_token_logps generation_logprobs "
     "inference_logprobs infer_logprobs rollout_logprobs token_logprobs output_logprobs")),
    ("log_probs", "tokens", "log_probs per_token_logps new_log_probs"),
    ("values", "tokens", "values value_preds"),
    ("token_rewards", "tokens", "token_rewards process_rewards"),
    ("sum_pi_squared", "tokens", "sum_pi_squared"),
    ("advantages", "tokens", "advantages"),
    ("is_weight", "tokens", "is_weight"),
    ("final_response_mask", "tokens", "final_response_mask"),
    ("batch", "key", "step global_step iteration batch"),
    ("domain", "key", "domain data_source dataset env_name tag env_class task_type source_names"),
    ("difficulty", "number", "difficulty"),
    ("response_length", "number",
     ("response_length response_lengths completion_length completion_lengths completion_tokens "
     "num_output_tokens")),
    ("response", "text",
     ("response completion output response_text completion_text output_response generation "
     "generated_text")),
    ("reward_baseline", "number", "reward_baseline reward_baselines"),
    ("truncated", "flag", "finish_reason truncated stop_reason stop_condition"),
    ("sample_mask", "number", "sample_mask sample_loss_mask loss_multiplier final_sample_mask"),
    ("sample_weight", "number", "sample_weight"),
    ("rollout", "key", "rollout_id traj_id trajectory_id traj_uid episode_id"),
    ("branch", "key", "branch branch_id branch_index branch_idx"),
    ("turn", "number", "turn turn_id turn_index turn_idx"),
    ("turn_reward", "number", "turn_reward turn_rewards"),
    ("agent_role", "key", "agent_role agent_name"),
    ("win_rate", "number", "win_rate"),
    ("hack", "flag", "hack"),
    ("policy_version", "number", "policy_version policy_versions weight_version weight_versions"),
    ("entropy", "tokens", "entropy entropys entropies token_entropy"),
    ("failure", "flag", "failure failure_reason mask_sample"),
    ("next_value", "number", "next_value"),
    ("run_attempt", "number", "run_attempt"),
    ("attempt", "number", "attempt attempt_index _ng_attempt_index"),
    ("state_id", "key", "state_id"),
    ("step_score", "number", "step_score"),
    ("episode_score", "number", "episode_score"),
    ("response_token_ids", "ids",
     ("response_token_ids response_tokens response_ids completion_ids output_tokens output_ids "
     "completion_token_ids")),
    ("prompt_token_ids", "ids", "prompt_token_ids prompt_tokens prompt_ids input_tokens"),
)  # fmt: skip
_NULLABLE = ("turn_reward", "win_rate")
ROLES = {
    name: Role(name, kind, tuple(names.split()), name in _NULLABLE) for name, kind, names in _ROLES
}
TOKEN_IDS = {name: role.aliases for name, role in ROLES.items() if role.kind == "ids"}
"""Names of the columns of token ids."""
ON_DEMAND = ("text", "ids")
"""Kinds of roles that have a column only if a recipe reads them."""

# Role, column name, and columns that only the framework has in which the name has that role. The
# column is used for a role that has no other column, and for no other role.
FRAMEWORK_ALIASES: tuple[tuple[str, str, frozenset[str]], ...] = (
    ("reward", "rewards", frozenset({"token_loss_mask", "generation_logprobs"})),  # NeMo-RL
    ("reward", "rewards", frozenset({"base_action_log_probs"})),  # SkyRL: tokens, which are summed
    ("reward", "rewards", frozenset({"prox_logp", "versions"})),  # AReaL
    ("reward", "rewards", frozenset({"output_logprobs", "length_penalties"})),  # prime-rl
    ("infer_log_probs", "logprobs", frozenset({"prompt_idx", "sample_idx"})),  # open-instruct
    ("infer_log_probs", "logprobs", frozenset({"prox_logp", "versions"})),  # AReaL
    ("old_log_probs", "logprobs", frozenset({"ref_logprobs"})),  # logging boards
    ("old_log_probs", "log_probs", frozenset({"loss_masks", "raw_reward"})),  # slime
    ("truncated", "status", frozenset({"group_index", "rollout_log_probs"})),  # slime
    ("group", "task_id", frozenset({"head_version", "tail_version"})),  # AReaL
    ("group", "id", frozenset({"case_type", "test_case_function"})),  # ROLL
    ("domain", "source", frozenset({"case_type", "test_case_function"})),  # ROLL
)


def kind_of(role: str) -> Kind:
    """Return the kind of a role; of components, teachers, recorded, named and id columns, too."""
    if role in ROLES:
        return ROLES[role].kind
    kinds: dict[str, Kind] = {"component": "number", "teacher": "tokens", "recorded": "tokens"}
    start, colon, _ = role.partition(":")
    return (kinds | READ_BY_NAME).get(start, "key") if colon else "key"


def is_nullable(role: str) -> bool:
    """Return whether a row may have no value of a role."""
    return role == RECORDED or (role in ROLES and ROLES[role].nullable)


def is_component(role: str) -> bool:
    """Return whether a role is a component of the reward."""
    return role.startswith("component:")


def is_read_by_name(role: str) -> bool:
    """Return whether a role is that of a column which a user's estimator reads by its name."""
    start, colon, _ = role.partition(":")
    return bool(colon) and start in READ_BY_NAME


@dataclass(frozen=True)
class ColumnMap:
    """The column of each role, and how it was found (`name`, `alias`, `map`, `metadata`)."""

    columns: dict[str, str]
    how: dict[str, str]
    ignored: dict[str, list[str]] = field(default_factory=dict)
    """By role, the other columns that have a name of the role and serve no role."""
    stored: dict[str, str] = field(default_factory=dict)
    """The choices of the run that wrote the input, by role, as far as the user made no other."""
    in_some_files: dict[str, tuple[str, str]] = field(default_factory=dict)
    """By role without a column: one that some files have, and the first file without it."""
    rows_only: bool = False
    """The input is processed without tokens: one number per response is all that is computed."""

    def with_recorded(self, column: str | None) -> ColumnMap:
        """Return the same columns with that of advantages that a trainer recorded, if any."""
        if column is None:
            return self
        columns, how = {**self.columns, RECORDED: column}, {**self.how, RECORDED: "map"}
        return replace(self, columns=columns, how=how)

    def column(self, role: str) -> str:
        """Return the column of a role that has one."""
        return self.columns[role]

    def unit(self, chosen: Unit | None) -> Unit:
        """Return what statistics of responses count, if the recipe leaves it open with None."""
        if chosen is not None:
            return chosen
        rewards = "reward" in self or any(is_component(role) for role in self.columns)
        of_rollouts = "rollout" in self and "group" in self and rewards
        return "rollout" if of_rollouts or self.is_mapped("rollout") else "row"

    def is_mapped(self, role: str) -> bool:
        """Return whether a role has a column by a choice, not by its name."""
        return self.how.get(role) in ("map", "metadata")

    def without(self, roles: Collection[str]) -> ColumnMap:
        """Return the columns of the other roles."""

        def kept(part: Mapping[str, Any]) -> dict[str, Any]:
            return {role: column for role, column in part.items() if role not in roles}

        return replace(
            self,
            columns=kept(self.columns),
            how=kept(self.how),
            ignored=kept(self.ignored),
            stored=kept(self.stored),
            in_some_files=kept(self.in_some_files),
        )

    def __contains__(self, role: object) -> bool:
        return role in self.columns


def resolve(
    available: Collection[str],
    chosen: Mapping[str, str],
    where: str,
    more: Mapping[str, str] | None = None,
    *,
    stored: Mapping[str, str] | None = None,
    lacking: Mapping[str, str] | None = None,
) -> ColumnMap:
    """Return the column of every role that has one.

    Args:
        available: column names of the input.
        chosen: the user's columns by role, which override names and aliases; `none` for no column.
        where: the input's name, for errors.
        more: columns of roles without a fixed name, such as reward components.
        stored: columns by role that count as chosen, if the user chose none.
        lacking: columns that some files of the input have and others lack, with the first such
            file.

    Raises:
        UsageError: a role in `chosen` does not exist.
        DataError: columns in `chosen` or `more` do not exist; one line for each.
    """
    lacking = lacking or {}
    stored = {role: column for role, column in (stored or {}).items() if role not in chosen}
    columns: dict[str, str] = {}
    how: dict[str, str] = {}
    absent: list[tuple[str, str]] = []
    for role, column in chosen.items():
        if role in ROLES and column == "none" and column not in available:
            continue  # the role has no column, whatever the names
        if role not in ROLES:
            raise UsageError(no_such(f"--map {role}={column}: no role {role!r}", role, ROLES))
        if column not in available:
            absent.append((f"--map {role}={column}: ", column))
        columns[role], how[role] = column, "map"
    absent += [
        (f"{flag_of(_FIELDS[role.partition(':')[0]])} {column}: ", column)
        for role, column in (more or {}).items()
        if column not in available
    ]
    if absent:
        raise _absent_columns(absent, available, where, lacking)
    for role, column in stored.items():
        if column in available:
            columns[role], how[role] = column, "metadata"
    decided = {**stored, **chosen}
    for name, meaning in ROLES.items():
        alias = next((alias for alias in meaning.aliases if alias in available), None)
        if name not in decided and alias is not None and meaning.kind not in ON_DEMAND:
            columns[name] = alias
            how[name] = "name" if alias == meaning.aliases[0] else "alias"
    _use_framework_aliases(available, decided, columns, how)
    named = more or {}
    columns, how = {**columns, **named}, {**how, **dict.fromkeys(named, "map")}
    return ColumnMap(
        columns,
        how,
        _ignored([*available, *lacking], columns, how),
        stored,
        _in_some_files(lacking, {*columns, *decided}),
    )


def _ignored(
    available: Collection[str], columns: Mapping[str, str], how: Mapping[str, str]
) -> dict[str, list[str]]:
    """Return the columns that could serve a role, if the user did not choose its column."""
    used = {*columns.values()}
    others = {
        role: [name for name in ROLES[role].aliases if name in available and name not in used]
        for role in columns
        if role in ROLES and how[role] not in ("map", "metadata")
    }
    return {role: names for role, names in others.items() if names}


def _in_some_files(
    lacking: Mapping[str, str], decided: Collection[str]
) -> dict[str, tuple[str, str]]:
    """Return the roles without a column, with one that some files have and the first without it."""
    names = {
        role: next((name for name in meaning.aliases if name in lacking), None)
        for role, meaning in ROLES.items()
        if role not in decided and meaning.kind not in ON_DEMAND
    }
    return {role: (name, lacking[name]) for role, name in names.items() if name is not None}


NEEDED_IN_ALL = "write it there, or leave the file out: all files of an input need it"


def _absent_columns(
    absent: Sequence[tuple[str, str]],
    available: Collection[str],
    where: str,
    lacking: Mapping[str, str],
) -> DataError:
    """Return the error for columns that do not exist: the option that names each, the column."""

    def part(option: str, column: str) -> ErrorPart:
        if column in lacking:
            text = f"{lacking[column]}: {option}no column {column!r}, which other files have"
            return ErrorPart(text, tip=NEEDED_IN_ALL)
        return no_such(f"{where}: {option}no column {column!r}", column, available)

    parts = [part(option, column) for option, column in absent]
    explained = all(part.advice for part in parts)
    return DataError(*parts, tip="" if explained else columns_here(available))


def _use_framework_aliases(
    available: Collection[str],
    chosen: Mapping[str, str],
    columns: dict[str, str],
    how: dict[str, str],
) -> None:
    """Add columns whose names have a meaning in the framework of the input only."""
    for role, column, marks in FRAMEWORK_ALIASES:
        if role in columns or role in chosen or column not in available:
            continue
        if marks.isdisjoint(available) or column in chosen.values():
            continue
        for other in [other for other, its_column in columns.items() if its_column == column]:
            del columns[other], how[other]
        columns[role], how[role] = column, "alias"


def fits(role: str, holds: str) -> bool:
    """Return whether a column of this content (of `rlpost.io.arrow.content_kind`) fits the role."""
    contents = _CONTENTS[kind_of(role)]
    return holds in contents or holds in _ALSO.get(role, ())


def columns_here(available: Collection[str]) -> str:
    """Return the first columns of an input, for the end of an error."""
    names = sorted(available)
    more = f" and {len(names) - 12} more" if len(names) > 12 else ""  # noqa: PLR2004
    return f"columns here: {', '.join(names[:12])}{more}"
