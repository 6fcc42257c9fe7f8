"""The columns of training batches: which column of the input serves which name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rlpost.errors import DataError, ErrorPart, UsageError, no_such
from rlpost.io.arrow import is_list, is_number, is_tokens
from rlpost.io.parquet.source import partition_types
from rlpost.pipeline.columns import FINAL_MASK, columns_of
from rlpost.recipe.recipe import EXTRA, WRITTEN, Recipe
from rlpost.recipe.roles import ROLES, TOKEN_IDS

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    import pyarrow as pa

    from rlpost.io.parquet.source import Source


TOKENS = (
    "advantages",
    "returns",
    "old_log_probs",
    "infer_log_probs",
    "ref_log_probs",
    "values",
    "is_weight",
)
"""Columns of tokens that batches have by default, as far as the input has them."""
ROWS = ("reward", "response_advantage", "sample_weight")
"""Columns of responses that batches have by default."""
_COMPUTED = ("is_weight", "sample_mask", "sample_weight")
PROMPT, RESPONSE = "prompt_token_ids", "response_token_ids"
_SHOWN = 12  # columns that an error shows
RESERVED = (
    "mask", "lengths", "cu_seqlens", "position_ids", "input_ids", "attention_mask", "rows",
    "totals",
)  # fmt: skip


@dataclass(frozen=True)
class TrainingColumns:
    """The columns that batches need, by their names in batches."""

    mask: str | None
    """Column of the mask of tokens that are trained on; None: all tokens are."""
    sample_mask: str | None
    """Column of the mask of responses; None if `mask` includes it, or if there is none."""
    lengths: str | None
    """Column whose lists set the length of a response; None if the input has no tokens."""
    lists: dict[str, str]
    """Columns with a number per response token, and ids of tokens."""
    rows: dict[str, str]
    """Columns with one number per response."""
    others: dict[str, str]
    """Other columns: texts, lists of other lengths."""
    input_ids: bool
    """Whether batches have `input_ids`. Nothing precedes the first token of a response without a
    prompt, so it is not trained on then."""

    @property
    def of_batches(self) -> list[str]:
        """The columns that batches need."""
        names = (self.mask, self.sample_mask, self.lengths)
        more = (*self.lists.values(), *self.rows.values(), *self.others.values())
        return list(dict.fromkeys(name for name in (*names, *more) if name is not None))


def training_columns(
    source: Source,
    chosen: Sequence[str] | None,
    columns_map: Mapping[str, str],
    *,
    packed: bool,
) -> TrainingColumns:
    """Return the columns of batches.

    Args:
        source: the input.
        chosen: roles, names of columns, `response_token_ids` or `prompt_token_ids`; None: the
            default ones that the input has.
        columns_map: role, `response_token_ids` or `prompt_token_ids` to column; `none` for none.
        packed: the layout is packed.

    Raises:
        UsageError: a name is neither a role nor a column, or batches use it themselves.
        DataError: a column that is named is absent, or there is no column to train on.
    """
    roles = {name: column for name, column in columns_map.items() if name not in TOKEN_IDS}
    served = columns_of(source, Recipe.of({"columns": roles}), results=True).columns
    kinds = partition_types(source.files)
    kinds |= {field.name: field.type for field in source.schemas[0]}
    ids = {name: _ids(source.name, name, kinds, columns_map.get(name)) for name in TOKEN_IDS}
    names = {**{name: name for name in source.columns}, **served}
    names |= {name: column for name, column in ids.items() if column is not None}
    for name, column in columns_map.items():
        if column == "none":
            names.pop(name, None)
    _check_alike(source, {*names, *served.values()})
    picked = _picked(chosen, names, ids, source.name)
    lists, rows, others = dict[str, str](), dict[str, str](), dict[str, str]()
    for name in picked:
        kind = kinds[names[name]]
        is_ids = name in TOKEN_IDS or is_tokens(kind)
        (lists if is_ids else rows if is_number(kind) else others)[name] = names[name]
    mask = FINAL_MASK if FINAL_MASK in source.columns else served.get("mask")
    tokens = [column for name, column in lists.items() if name != PROMPT]
    lengths = next((x for x in (mask, *tokens) if x is not None and is_list(kinds[x])), None)
    return TrainingColumns(
        mask, None if mask == FINAL_MASK else served.get("sample_mask"), lengths, lists, rows,
        others, input_ids=RESPONSE in lists and (packed or PROMPT in lists),
    )  # fmt: skip


def _check_alike(source: Source, used: Collection[str]) -> None:
    """Raise DataError if some files lack a column that batches of others would have."""
    aliases = {name for role in ROLES.values() for name in role.aliases}
    of_ids = {name for names in TOKEN_IDS.values() for name in names}
    relevant = {*TOKENS, *ROWS, FINAL_MASK, "sample_mask", *aliases, *of_ids, *used}
    if lacking := relevant & source.lacking.keys():
        raise DataError(
            f"{source.lacking[min(lacking)]}: has no `{min(lacking)}`, which other files have; all "
            "files of one load need the same columns: load them apart, or write them with the same "
            "recipe"
        )


def _ids(where: str, name: str, kinds: Mapping[str, pa.DataType], column: str | None) -> str | None:
    """Return the column of token ids; raises DataError if the column to use does not exist."""
    if column is None:
        lists = (x for x in TOKEN_IDS[name] if x in kinds and is_list(kinds[x]))
        return next(lists, None)
    if column not in kinds and column != "none":
        text = f"{where}: columns_map: no column {column!r}"
        raise DataError(no_such(text, column, kinds))
    return column if column in kinds else None


def _no_column(text: str, name: str, names: Collection[str]) -> ErrorPart:
    """Return the problem that a name is none of the names, with what to do."""
    if name in (*WRITTEN, *EXTRA):
        emit = f" --emit {name}" if name in EXTRA else ""
        some = " if its options compute it" if name in _COMPUTED else ""
        return ErrorPart(text, tip=f"`rlpost advantages{emit}` writes it{some}: load the output")
    shown = sorted({*names}.difference(RESERVED))
    more = ", ..." if len(shown) > _SHOWN else ""
    return no_such(text, name, names, f"there are {', '.join(shown[:_SHOWN])}{more}")


def _picked(
    chosen: Sequence[str] | None,
    names: Mapping[str, str],
    ids: Mapping[str, str | None],
    where: str,
) -> list[str]:
    """Return the names of the columns that batches have; raises as `training_columns`."""
    if isinstance(chosen, str):
        raise UsageError(f"load: columns={chosen!r}: a list of names is needed: [{chosen!r}]")
    if chosen is None and {"advantages", "response_advantage"}.isdisjoint(names):
        raise DataError(
            f"{where}: has no advantages; rlpost advantages writes them, and columns= chooses "
            "other columns to load"
        )
    read = TOKEN_IDS if RESPONSE in names else ()  # prompts alone are no input_ids
    default = [name for name in (*TOKENS, *ROWS, *read) if name in names]
    by_column = {column: name for name, column in ids.items()}
    picked = default if chosen is None else [*dict.fromkeys(by_column.get(x, x) for x in chosen)]
    if not picked:
        raise DataError(f"{where}: no column to train on; name some with columns=")
    for name in picked:
        if name in RESERVED:
            raise UsageError(f"load: columns: {name!r} is in every batch; leave it out")
        if name not in names:
            text = f"{where}: columns: no role or column {name!r}"
            raise DataError(_no_column(text, name, names))
    if PROMPT in picked and RESPONSE not in picked:
        raise UsageError(
            "load: columns: prompt_token_ids need response_token_ids, too, for input_ids"
        )
    return picked
