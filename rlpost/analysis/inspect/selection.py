"""Which columns are read."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property, partial
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa

from rlpost.analysis.responses.columns import NAMES, OF_RESPONSES
from rlpost.io.arrow import content_kind, is_list, is_number, is_string
from rlpost.io.finish_reasons import is_readable
from rlpost.pipeline.columns import (
    FINAL_MASK,
    LENGTH,
    TEXT,
    other_sizes,
    token_id_columns,
)
from rlpost.pipeline.data import ATTEMPTS, FAILURE
from rlpost.pipeline.rollout_order import PLACE
from rlpost.pipeline.stages.ages import VERSION
from rlpost.recipe.roles import TOKEN_IDS, kind_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from rlpost.io.parquet.source import Source
    from rlpost.recipe.roles import ColumnMap


LOG_PROBS = ("old_log_probs", "infer_log_probs", "ref_log_probs", "log_probs")
TOKEN_ROLES = (*LOG_PROBS, "values", "token_rewards")
LOG_PROB_PAIRS = (
    ("old_log_probs", "infer_log_probs"),
    ("old_log_probs", "ref_log_probs"),
    ("infer_log_probs", "ref_log_probs"),
)
NO_ANSWERS = (FAILURE, *ATTEMPTS)
RESPONSE_ADVANTAGE = "response_advantage"
KEYS = ("group", "batch", "domain")
ROWS = (*KEYS, "reward", "truncated")
# Columns that identify a response: a text, else tokens.
TEXTS = (*NAMES["response"], *NAMES["tokens"][:OF_RESPONSES])
# Columns of prompts, as text or as tokens: responses of one group share them.
PROMPTS = (*NAMES["prompt"], "prompt_tokens", "prompt_ids", "prompt_token_ids", "input_tokens")
# Columns of the machine that a response was sampled on.
MACHINES = (
    "host", "hostname", "node", "node_id", "rank", "dp_rank", "worker", "worker_id", "engine",
    "engine_id", "replica", "replica_id", "server", "server_id", "rollout_worker",
)  # fmt: skip
# Contents that one of several roles or columns provides.
COMBINED: dict[str, tuple[str, ...]] = {
    "keys": KEYS,
    "log-probs": LOG_PROBS,
    "mask or log-probs": ("mask", *LOG_PROBS),
    "numbers": ("reward", *TOKEN_ROLES),
    "failures or rewards": (FAILURE, "reward"),
    "truncated or lengths": ("truncated", "lengths"),
    "rollout ids, turns or steps": ("rollout ids", "turns", "batch"),
}


class TokenIds(NamedTuple):
    """The columns of token ids, and those of the tokens that are trained."""

    response: str
    prompt: str
    mask: str | None
    """The mask that a run wrote, if there is one."""
    kept: str | None
    """The sample mask."""


@dataclass(frozen=True)
class ColumnSelection:
    """The columns that are read, by purpose."""

    columns: ColumnMap
    lists: str | None
    """The role, or else the column, whose lists have the length of a response."""
    tokens: tuple[str, ...]
    """Roles with a number per token."""
    text: str | None
    """The column by which a response is recognised."""
    unusable: dict[str, tuple[str, str]]
    """Roles whose column has an unsuitable type, with column and type; not in `columns`."""
    prompt: str | None = None
    """The column of prompts, text or tokens."""
    advantages: str | None = None
    """The column of advantages, a list or a number per row."""
    recorded: bool = False
    """A trainer recorded them, not rlpost."""
    ids: TokenIds | None = None
    """The columns of token ids, if rows have rollout ids."""
    components: Mapping[str, float] = field(default_factory=dict)
    """The columns whose weighted sum is the reward, with their weights."""
    machines: tuple[str, ...] = ()
    """Columns of the machine that sampled a response, if both log-probs are read."""
    version: str | None = None
    """The column of policy versions, a number or a list per row, if both log-probs are read."""
    entropy: str | None = None
    """The column of entropies."""
    unequal_ids: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """The column of response ids if it has another number of values than the lists, and both."""
    details: bool = True
    """Whether numbers of tokens are computed that only topics and JSON have."""

    @cached_property
    def contents(self) -> frozenset[str]:
        """What is read: roles, and the names of `COMBINED` contents. Checks need these."""
        read = {role for role in (*ROWS, *NO_ANSWERS) if role in self.columns} | {*self.tokens}
        columns = {
            "reward": self.components, "mask": self.lists == "mask", "token lists": self.lists,
            "lengths": self.lengths_column, "prompts": self.prompt, "response texts": self.text,
            "rollout ids": "rollout" in self.columns, "turns": "turn" in self.columns,
            "token ids": self.ids, "recorded advantages": self.recorded,
            "log-probs of two policies": len({*LOG_PROBS[:3]} & {*self.tokens}) > 1,
        }  # fmt: skip
        read |= {name for name, column in columns.items() if column}
        either = {name for name, any_of in COMBINED.items() if not read.isdisjoint(any_of)}
        return frozenset(read | either)

    def why_without(self, content: str) -> str:
        """Return why a content is not read."""
        for role in COMBINED.get(content, (content,)):
            if role in self.unusable:
                return f"`{self.unusable[role][0]}` has a wrong type"
        return f"no column for {content}"

    @property
    def reward_column(self) -> str:
        """The column of the reward, or those of its components."""
        return ", ".join(self.components) or self.columns.columns.get("reward", "reward")

    @property
    def lists_column(self) -> str | None:
        """The column whose lists have the length of a response."""
        return None if self.lists is None else self.columns.columns.get(self.lists, self.lists)

    @property
    def lengths_column(self) -> str | None:
        """The column of which a response's number of policy tokens is known."""
        return self.lists_column or self.columns.columns.get(LENGTH)

    @property
    def row_numbers(self) -> list[str]:
        """The numbers of responses that the pass computes from tokens of policies."""
        roles, names = {*self.tokens}, list[str]()
        if {"old_log_probs", "infer_log_probs"} <= roles:
            names.append("k3")
        if {"old_log_probs", "ref_log_probs"} <= roles:
            names.append("kl")
        return names

    @property
    def names(self) -> list[str]:
        """The columns that are read besides those of rows, once."""
        served = map(self.columns.column, self.tokens)
        others = (
            self.lists_column, self.text, self.prompt, self.advantages, *self.machines,
            self.version, self.entropy, *(self.ids or ()),
        )  # fmt: skip
        return list(dict.fromkeys(x for x in (*served, *others) if x))


def unusable_roles(source: Source, columns: ColumnMap) -> dict[str, tuple[str, str]]:
    """Return the roles whose column has an unsuitable type, with column and type."""
    of_rows = ("sample_mask", "rollout", *PLACE, "turn_reward", LENGTH)
    return {
        role: (columns.column(role), str(kind))
        for role in (*ROWS, *NO_ANSWERS, *of_rows, "mask", *TOKEN_ROLES, VERSION)
        if role in columns
        for kind in _types(source, columns.column(role))
        if not _usable(role, kind)
    }


def select_columns(
    source: Source,
    columns: ColumnMap,
    *,
    components: Mapping[str, float] = MappingProxyType({}),
    details: bool = True,
    recorded: str | None = None,
) -> ColumnSelection:
    """Select columns; `recorded` is that of the advantages of a trainer."""
    unusable = unusable_roles(source, columns)
    columns = columns.without(unusable)
    fitting, served = partial(_fitting, source), columns.columns
    roles = tuple(role for role in TOKEN_ROLES if role in columns)
    mapped = [columns.column(TEXT)] if TEXT in columns else []
    texts = [name for name in (*mapped, *TEXTS) if fitting(name, _is_text, _is_numbers)]
    first = next((name for name in texts if all(map(is_list, _types(source, name)))), None)
    lists = "mask" if "mask" in columns else next(iter(roles), first)
    sized_by = "" if lists is None else served.get(lists, lists)
    response_ids = token_id_columns(source, columns).get("response_token_ids")
    dumped = RESPONSE_ADVANTAGE if RESPONSE_ADVANTAGE in source.columns else recorded
    advantages = fitting(served.get("advantages", dumped), is_number, _is_numbers)
    prompts = (x for x in PROMPTS if fitting(x, _is_text, _is_numbers, pa.types.is_nested))
    compares = {*LOG_PROB_PAIRS[0]} <= {*roles}
    machines = (x for x in MACHINES if compares and fitting(x, _is_text, pa.types.is_integer))
    version = fitting(served.get(VERSION), is_number, _is_numbers) if compares else None
    return ColumnSelection(
        columns.without([LENGTH]) if lists else columns,
        lists,
        roles,
        next(iter(texts), None),
        unusable,
        prompt=next((x for x in prompts if x != served.get("group")), None),
        advantages=advantages,
        recorded=advantages is not None and advantages == recorded,
        ids=_token_ids(source, columns),
        components=components,
        machines=tuple(machines),
        version=version,
        entropy=fitting(served.get("entropy"), _is_numbers),
        unequal_ids=other_sizes(source, sized_by, filter(None, [response_ids])),
        details=details,
    )


def _token_ids(source: Source, columns: ColumnMap) -> TokenIds | None:
    """Return the columns of token ids, of an input with rollout ids that has both."""
    ids = token_id_columns(source, columns)
    if "rollout" not in columns or len(ids) < len(TOKEN_IDS):
        return None
    mask = columns.columns.get(FINAL_MASK, columns.columns.get("mask"))
    kept = columns.columns.get("sample_mask")
    return TokenIds(ids["response_token_ids"], ids["prompt_token_ids"], mask, kept)


def _fitting(source: Source, name: str | None, *fits: Callable[[pa.DataType], bool]) -> str | None:
    """Return the column if all of its types fit; None otherwise."""
    kinds = [*_types(source, name)] if name in source.columns else []
    return name if kinds and all(any(fit(kind) for fit in fits) for kind in kinds) else None


def _types(source: Source, column: str) -> Iterator[pa.DataType]:
    """Yield the type of a column in each file that has it; a hive partition has none."""
    for schema in source.schemas:
        if column in schema.names:
            yield schema.field(column).type


def _is_text(kind: pa.DataType) -> bool:
    return is_string(kind.value_type if pa.types.is_dictionary(kind) else kind)


def _is_numbers(kind: pa.DataType) -> bool:
    """Return whether these are lists of numbers; empty lists may have no type."""
    return is_list(kind) and (is_number(kind.value_type) or pa.types.is_null(kind.value_type))


def _usable(role: str, kind: pa.DataType) -> bool:
    """Return whether a column of this type fits a role; an empty column fits any."""
    meaning = kind_of(role)
    if pa.types.is_null(kind):
        return True
    if meaning == "tokens":
        ids = role in LOG_PROBS and content_kind(kind) == "integers"  # log-probs are floats
        return _is_numbers(kind) and not ids
    if meaning == "flag":
        return is_readable(kind)
    if meaning == "number":
        digits = role == VERSION and _is_text(kind)
        return is_number(kind) or (_is_numbers(kind) and role != "turn") or digits
    is_bool = pa.types.is_boolean(kind)
    return (is_number(kind) and not is_bool) or _is_text(kind) or pa.types.is_nested(kind)
