"""The columns of an input that serve the roles of a recipe."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Literal

import pyarrow as pa

from rlpost.errors import DataError, UsageError, closest
from rlpost.io.arrow import content_kind, is_number, is_tokens
from rlpost.io.parquet.inputs import COMBINED, COMPUTED, MISSING_ROLES, RECIPE_KEY, stored_object
from rlpost.io.parquet.source import partition_types
from rlpost.pipeline.turns import turn_columns
from rlpost.recipe.candidates import missing
from rlpost.recipe.estimators import NAMES
from rlpost.recipe.input_columns import is_enriched, parsed, resolve_input
from rlpost.recipe.recipe import EXTRA, MASKS, ROW_COLUMNS, WRITTEN, Recipe
from rlpost.recipe.roles import (
    LOG_PROBS,
    ROLES,
    TOKEN_IDS,
    ColumnMap,
    columns_here,
    kind_of,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping
    from inspect import Parameter

    from rlpost.io.parquet.source import Source, TableSource
    from rlpost.recipe.roles import ColumnMap


Masked = Literal["all", "rest", "none"]
"""Rows of a sample mask, of `masked_rows`."""
# Read by every recipe if the input has them.
ROW_ROLES = (
    "group", "reward", "batch", "domain", "sample_mask", "failure", "run_attempt", "attempt",
)  # fmt: skip
LENGTH = "response_length"
"""The role with the number of policy tokens of a response, for inputs without tokens."""
FINAL_MASK = "final_response_mask"
"""The role with the tokens that a run left to training."""
TEXT, IDS = "response", "response_token_ids"
"""The roles of the text of a response, and of its token ids."""


def columns_of(source: Source | TableSource, recipe: Recipe, *, results: bool = False) -> ColumnMap:
    """Return a column for every role, including columns that the recipe names.

    A `sample_mask` that a run of rlpost computed is a result, and no input of another run: it is
    in `ignored`, unless the recipe names it.

    Args:
        source: the input.
        recipe: names columns.
        results: the sample mask of a run belongs to the advantages that are read beside it.

    Raises:
        UsageError: as `resolve_input`; or a run replaced the input's sample mask by
            one that combines it with its own masks, so that neither can be used alone; or a run
            computed the sample mask of some files only.
        DataError: as `resolve_input`.
    """
    columns = _with_lengths(source, recipe, _resolved(source, recipe, results=results))
    turns = turn_columns(columns, partial(content_of, source))
    how = {**dict.fromkeys(turns, "name"), **columns.how}
    return replace(columns, columns={**columns.columns, **turns}, how=how)


def token_id_columns(source: Source | TableSource, columns: ColumnMap) -> dict[str, str]:
    """Return the columns of token ids by role: as set, else lists of integers by their names."""
    found = {}
    for role, names in TOKEN_IDS.items():
        chosen = columns.columns.get(role)
        lists = (name for name in names if content_of(source, name) == "integers")
        column = next(lists, None) if chosen is None else chosen
        if column is not None:
            found[role] = column
    return found


def columns_of_rows(
    source: Source | TableSource, recipe: Recipe, *, results: bool = False
) -> ColumnMap:
    """Return `columns_of` a source; raise DataError if it has no rows."""
    if source.rows == 0:
        raise DataError(f"{source.name}: there are no rows, so there is nothing to process")
    return columns_of(source, recipe, results=results)


def _read_by_name(source: Source | TableSource, recipe: Recipe) -> dict[str, str]:
    """Return the columns that a user's estimator reads by their names, by role."""
    if recipe.estimator in NAMES:
        return {}
    from rlpost.estimators import estimator_named  # noqa: PLC0415 - slow to import

    estimator = estimator_named(recipe.estimator)
    own = {name: estimator.parameters.get(name) for name in estimator.named_columns}
    flag = f"--estimator {recipe.estimator}"
    return columns_by_name(source, recipe, flag, own, estimator.known_columns)


def columns_by_name(
    source: Source | TableSource,
    recipe: Recipe,
    flag: str,
    parameters: Mapping[str, Parameter | None],
    known: Collection[str],
) -> dict[str, str]:
    """Return the columns that a user's function reads by their names, by role.

    `--map NAME=COLUMN` names another column for a parameter.

    Args:
        source: the input.
        recipe: has the mapped columns.
        flag: what names the function, for errors.
        parameters: those that are columns.
        known: other names that parameters may have.

    Raises:
        DataError: there is no such column (with the closest names), or it has neither numbers,
            bools, texts nor lists of numbers.
    """
    found = {}
    for parameter, declared in parameters.items():
        column = recipe.columns.get(parameter, parameter)
        where = f"{source.name}: {flag}: parameter `{parameter}`"
        if column not in source.columns:
            advice = f"--map {parameter}=COLUMN  # names another column"
            if declared is not None and declared.default is not declared.empty:
                advice = f"an option is keyword-only: write `*, {declared}`"
            candidates = closest(column, [*known, *source.columns])
            names = f"other parameters: {', '.join(known)}; {columns_here(source.columns)}"
            tip = advice if candidates else f"{advice}; {names}"
            if {*candidates} & {*known}:
                tip = ""
            text = f"{where}: no column {column!r}"
            raise DataError(text, candidates=candidates, tip=tip)
        kinds = {
            schema.field(column).type
            if column in schema.names
            else partition_types(source.files)[column]
            for schema in source.schemas
        }
        found[f"{_kind_by_name(kinds, where, column)}:{parameter}"] = column
    return found


def _kind_by_name(kinds: Collection[pa.DataType], where: str, column: str) -> str:
    """Return what a column has in all files, of `READ_BY_NAME`; DataError for other types."""
    tests = {
        "tokens": is_tokens,
        "flag": pa.types.is_boolean,
        "number": is_number,
        "codes": lambda kind: content_kind(kind) == "text",
    }
    for name, test in tests.items():
        if all(map(test, kinds)):
            return name
    types = " and ".join(sorted(map(str, kinds)))
    raise DataError(
        f"{where}: column `{column}` is {types}; numbers, bools, texts, or lists of a number for "
        "each token are needed, the same in all files: convert the column, or read another one"
    )


def lacks_of(source: Source | TableSource) -> dict[str, str]:
    """Return why a converted dump lacks roles, from the metadata that `rlpost convert` wrote."""
    return stored_object(source.metadata, MISSING_ROLES)


def _with_lengths(source: Source | TableSource, recipe: Recipe, columns: ColumnMap) -> ColumnMap:
    """Return the columns of an input that is read with or without tokens.

    Tokens set the length of a response, and the role `response_length` has no column then.

    Raises:
        UsageError: the role is mapped, and the input has tokens.
    """
    tokens = {role for role in columns.columns if kind_of(role) == "tokens"}
    rows_alone = recipe.emit is not None and ROW_COLUMNS.issuperset(recipe.emit)
    # Recorded advantages may be of responses; lists of a dump that has no tokens are of rewards.
    chosen = any(columns.is_mapped(role) for role in tokens if role != "advantages")
    lists = {field.name for field in source.schemas[0] if is_tokens(field.type)}
    without = rows_alone or "mask" in lacks_of(source)
    without = without or not any(is_tokens(x.type) for schema in source.schemas for x in schema)
    rows_only = without and not chosen and lists.isdisjoint(map(columns.column, tokens))
    if rows_only and not rows_alone:
        _check_lists(source, columns)
    if columns.how.get(LENGTH) == "map" and not rows_only:
        raise without_effect(f"--map {LENGTH}={columns.column(LENGTH)}")
    if not rows_only and not tokens:
        columns = _with_ids(source, columns)
    return replace(columns.without(tokens if rows_only else {LENGTH}), rows_only=rows_only)


def _check_lists(source: Source | TableSource, columns: ColumnMap) -> None:
    """Raise DataError for a column of tokens that cannot be read as lists of numbers.

    A number per row, as of a mean, and a column without any value are none of tokens; a mask is.
    """
    for role in columns.columns:
        column = columns.column(role)
        for schema in source.schemas if kind_of(role) == "tokens" else ():
            kind = schema.field(column).type if column in schema.names else pa.null()
            lists = is_tokens(kind)
            if not lists and (role == "mask" or pa.types.is_nested(kind)):
                text = f"{source.name}: `{column}` is {kind}, which the role {role} cannot be"
                tip = f"--map {role}=none  # leaves it unread: without tokens, a response has one "
                tip += "advantage"
                raise DataError(f"{text}; a list of numbers per row is needed", tip=tip)


def other_sizes(
    source: Source | TableSource, sized_by: str, columns: Iterable[str]
) -> dict[str, tuple[int, int]]:
    """Return the columns of lists that have another number of values than one, with both numbers.

    Footers have them: nothing is read.
    """
    if not sized_by:
        return {}
    lists = [
        name
        for name in dict.fromkeys(columns)
        if name != sized_by and content_of(source, name) in ("floats", "integers")
    ]
    whole = source.values_of(sized_by) if lists else 0
    return {name: (x, whole) for name in lists if (x := source.values_of(name)) != whole}


def _with_ids(source: Source | TableSource, columns: ColumnMap) -> ColumnMap:
    """Return the columns with that of token ids, if there is one."""
    name = next((name for name in ROLES[IDS].aliases if name in source.columns), None)
    if IDS in columns or name is None:
        return columns
    how = {IDS: "name" if name == IDS else "alias"}
    return replace(columns, columns={**columns.columns, IDS: name}, how=columns.how | how)


def without_effect(option: str) -> UsageError:
    """Return the error for an option that sets the lengths of an input with tokens."""
    return UsageError(
        f"{option}: has no effect, because the input has lists of tokens, which set the length of "
        "a response; leave it out"
    )


def _resolved(source: Source | TableSource, recipe: Recipe, *, results: bool) -> ColumnMap:
    """Return the columns of the roles that names and the recipe define."""
    by_name = _read_by_name(source, recipe)
    parameters = {role.partition(":")[2] for role in by_name}
    chosen = {role: x for role, x in recipe.columns.items() if role not in parameters}
    named = {f"component:{name}": name for name in recipe.reward_components or ()} | by_name
    named |= {f"teacher:{name}": name for name in recipe.teachers}
    absent = "sample_mask" not in source.columns or "sample_mask" in recipe.columns
    unread = not (results or absent) and _is_computed(source)
    hidden = ("sample_mask",) if unread else ()
    columns = resolve_input(source, chosen, named, results=results, hidden=hidden)
    how = {role: "map" if role.partition(":")[2] in recipe.columns else "name" for role in by_name}
    ignored = {"sample_mask": ["sample_mask"]} if unread else {}
    return replace(columns, how=columns.how | how, ignored=columns.ignored | ignored)


def _is_computed(source: Source | TableSource) -> bool:
    """Return whether an earlier run of rlpost computed the column `sample_mask` of every file.

    Raises:
        UsageError: that run combined it with a mask of its input, or some files have their own.
    """
    origins = {name.decode(errors="replace"): file for name, file in source.mask_origins.items()}
    if COMBINED in origins:
        raise UsageError(
            f"{origins[COMBINED]}: `sample_mask` is false for responses that the input of an "
            "earlier run left out and for those that its masks dropped, which cannot be separated: "
            "--map sample_mask=sample_mask leaves both out, --map sample_mask=none neither"
        )
    own = origins.pop("", None)
    computed = next(iter(origins.values()), None)
    if own and computed:
        raise UsageError(
            f"{computed}: an earlier run of rlpost computed `sample_mask`, but in {own} it is the "
            "input's own; one meaning for all files is needed: --map sample_mask=sample_mask "
            "leaves out the responses of both, --map sample_mask=none of neither"
        )
    return computed is not None


def lost_mask(source: Source, *, final: bool, sample: bool) -> str:
    """Return that a run dropped what no mask of its output records; empty if a mask does.

    Args:
        source: the input.
        final: its final mask is read.
        sample: its sample mask is read.
    """
    try:
        recipe = stored_object(source.metadata, RECIPE_KEY)
        facts = stored_object(source.metadata, b"rlpost.summary").get("facts", {})
        kept = facts.get("kept", {}).get("all", {"count": 0, "total": 0})
        dropped = kept["count"] - kept["total"]
        rejects = Recipe.of({"is_filter": recipe.get("is_filter", ())}).rejects_tokens
    except (ValueError, AttributeError, KeyError, TypeError, UsageError):
        return ""
    if not final and (rejects or (dropped and not sample)):
        what, name = ("tokens", FINAL_MASK) if rejects else ("responses", "sample_mask")
        return (
            f"{source.name}: its recipe dropped {what}, and it has no `{name}` that records which "
            f"(--emit ...,{name} of rlpost advantages writes it)"
        )
    return ""


def mask_is_result(source: Source | TableSource) -> bool:
    """Return whether runs of rlpost wrote the column `sample_mask` of all files."""
    return {*source.mask_origins} <= {COMPUTED.encode(), COMBINED.encode()}


def masked_rows(source: Source | TableSource, columns: ColumnMap) -> Masked:
    """Return which rows of the sample mask statistics leave out.

    All, if the mask is the input's own or the user's choice; none if runs of rlpost computed it;
    `rest` if a run without masks combined it with its input's: those that neither failed nor have a
    later attempt, which are counted as such.
    """
    if "sample_mask" not in columns:
        return "none"
    if columns.is_mapped("sample_mask") or not mask_is_result(source):
        return "all"
    recipes = map(parsed, source.recipes)
    dropped = any(recipe.get(name) for recipe in recipes for name in (*MASKS, "is_filter"))
    return "none" if dropped or COMPUTED.encode() in source.mask_origins else "rest"


def content_of(source: Source | TableSource, name: str) -> str:
    """Return what a column contains in every file; `other` if one differs or does not have it.

    Keys that are numbers in some files and texts in others are texts.
    """
    contents = {
        content_kind(schema.field(name).type) if name in schema.names else "other"
        for schema in source.schemas
    }
    if contents == {"number", "text"}:
        return "text"
    return contents.pop() if len(contents) == 1 else "other"


def absent(
    source: Source | TableSource,
    columns: ColumnMap,
    needs: Mapping[str, str],
    lacks: Mapping[str, str],
) -> DataError:
    """Return the error for roles without a column, with columns that could serve.

    Args:
        source: the input.
        columns: the roles that have one.
        needs: the missing roles, and what needs them.
        lacks: why the dump before conversion lacks a role; empty for other files.
    """
    own = {*WRITTEN, *EXTRA} if is_enriched(source) else set()
    available = [name for name in source.columns if name not in own]
    return missing(needs, available, source.name, lacks, _kinds(source), columns.in_some_files)


def check_log_probs(source: Source | TableSource, columns: ColumnMap, roles: Iterable[str]) -> None:
    """Raise DataError if a column of integers, like token ids, is mapped to log-probs."""
    kinds = _kinds(source)
    for role in roles:
        if role in LOG_PROBS and role in columns and kinds.get(columns.column(role)) == "integers":
            column = columns.column(role)
            raise DataError(
                f"{source.name}: `{column}` was chosen as {role} (by {columns.how[role]}), but has "
                "lists of integers, like token ids; log-probabilities are lists of floats: choose "
                f"them with --map {role}=COLUMN"
            )


def _kinds(source: Source | TableSource) -> dict[str, str]:
    """Return the kind of content of each column of the first file."""
    return {field.name: content_kind(field.type) for field in source.schemas[0]}
