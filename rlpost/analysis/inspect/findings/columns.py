"""Findings about columns: roles, types, lengths of lists, padding, offsets, masks."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from rlpost.analysis.inspect.alignment import step_lags
from rlpost.analysis.inspect.findings.base import NotRun, Problem, check
from rlpost.analysis.inspect.footers import MISSING
from rlpost.analysis.inspect.model import FindingEvidence
from rlpost.analysis.inspect.selection import LOG_PROBS
from rlpost.display.text import counted, share
from rlpost.recipe.recipe import EXTRA, WRITTEN
from rlpost.recipe.roles import ROLES, kind_of

if TYPE_CHECKING:
    from rlpost.analysis.inspect.findings.base import CheckInput, Result
    from rlpost.analysis.inspect.model import ColumnFacts, Label, Shift, TokenColumn


MOST_SUGGESTED = 3
MOST_FILES = 3
REWARD_NAMES = re.compile("reward|score|accura|correct|pass|return|grade")
NEEDED_TYPES = {
    "tokens": "a list of numbers per row",
    "number": "a number per row",
    "key": "a name or a whole number per row",
    "flag": "a bool or a finish reason per row",
}
HALF = 1 / 2  # of the responses: more of them are no coincidence
FEW_TOKENS = 16  # fewer may be equal by chance
FILLED = 1 / 4  # zeros more per token that a response is shorter: with padding to one length 1, to
# the longest of 4 responses 0.5 to 0.75, with tokens of which the policy is certain 0
FEW_SHIFTED = 64  # tokens; fewer do not show a shift
BETTER = 2.0  # times that a shifted column must fit better
STANDARD_ERRORS = 4.0


@check("error", needs_rows=False)
def no_rows(data: CheckInput) -> Result:
    """The input has no rows.

    Nothing can be trained on. A dump failed, or a filter removed every row.
    """
    if data.count:
        return None
    return Problem(
        100,
        f"the input has no rows, in {counted(len(data.input.files), 'file')}",
        "check whether the dump failed, or whether a filter removed every row",
        1, 1, [FindingEvidence(file.path) for file in data.input.files[:data.evidence]],
    )  # fmt: skip


@check("warning")
def made_token_ids(data: CheckInput) -> Result:
    """A tokenizer made the token ids and lengths of the responses, whose dump has only texts.

    The text of sampled tokens can have other tokens, and none for the end of a sequence, so ids and
    lengths may differ from those that the policy sampled. Dump token ids, or compare one response
    with the engine's tokens.
    """
    files = [(file.path, name) for file in data.input.files
             if (name := (file.rlpost or {}).get("tokenizer"))]  # fmt: skip
    if not files:
        return None
    names = ", ".join(sorted({name for _, name in files}))
    return Problem(
        20,
        f"token ids and lengths are not those that were sampled: `{names}` made them from texts",
        "dump token ids, or compare some with the engine's",
        data.count, data.count, [FindingEvidence(path) for path, _ in files[:data.evidence]],
    )  # fmt: skip


@check("error")
def no_reward(data: CheckInput) -> Result:
    """No column has the role `reward`, which every estimator needs.

    Name its column with --map reward=COLUMN, or the columns whose sum it is with
    --reward-components A,B.
    """
    selection = data.reading.selection
    if data.rewards is not None or "reward" in selection.unusable:
        return None
    if components := _stored_components(data):
        return NotRun(f"the reward is a sum of components: {', '.join(components)}")
    if "reward" in selection.columns.in_some_files:
        return _in_some_files(data, "reward", 100)
    names = ", ".join(ROLES["reward"].aliases[:4])
    return Problem(
        100,
        f"no column has the role reward (usual names: {names})",
        _reward_advice(data),
        1, 1,
    )  # fmt: skip


def _in_some_files(data: CheckInput, role: str, harm: float) -> Problem:
    """Return the problem of a role whose column only some files have."""
    column, _ = data.reading.selection.columns.in_some_files[role]
    facts = next(one for one in data.input.columns if one.name == column)
    lacking, count = facts.files[MISSING], facts.other_types[MISSING]
    return Problem(
        harm,
        f"`{column}` serves the role {role}, but is missing in {_file_names(lacking, count)}: not "
        "read from any file",
        f"write `{column}` in every file, or leave {_file_names(lacking, count)} out",
        count, len(data.input.files), [FindingEvidence(path) for path in lacking[:data.evidence]],
    )  # fmt: skip


def _stored_components(data: CheckInput) -> list[str]:
    """Return the reward components of the run that wrote the files, if it is the same for all."""
    recipes = [(file.rlpost or {}).get("recipe", {}) for file in data.input.files]
    names = {tuple(recipe.get("reward_components") or ()) for recipe in recipes}
    return [*names.pop()] if len(names) == 1 else []


def _reward_advice(data: CheckInput) -> str:
    """Suggest columns of numbers; if some are named like a reward, only those."""
    enriched = any("recipe" in (file.rlpost or {}) for file in data.input.files)
    own = {*WRITTEN, *EXTRA} if enriched else set()
    numbers = [
        one.name
        for one in data.input.columns
        if one.role is None
        and one.name not in own
        and re.match(r"u?int|float|double|halffloat|bool|decimal", one.type)
    ]
    names = [name for name in numbers if REWARD_NAMES.search(name.lower())] or numbers
    if not names:
        return "no column has a number per row; set the reward column with --map reward=COLUMN"
    flags = " or ".join(f"--map reward={name}" for name in names[:MOST_SUGGESTED])
    several = ", or name those whose sum it is: --reward-components A,B" if names[1:] else ""
    return f"set the reward column: {flags}{several}"


@check("warning")
def no_groups(data: CheckInput) -> Result:
    """No column has the role `group`, so group baselines cannot be computed.

    grpo, rloo and the like subtract the mean of a prompt's responses. Name the column of the
    prompt's id, or the prompt itself, with --map group=COLUMN.
    """
    selection = data.reading.selection
    if data.groups is not None or "group" in selection.unusable:
        return None
    if "group" in selection.columns.in_some_files:
        return _in_some_files(data, "group", 60)
    names = ", ".join(ROLES["group"].aliases[:4])
    return Problem(
        60,
        "no column has the role group, the prompt of a response, so there are no group baselines "
        f"(usual names: {names})",
        f"set the group column: --map group={selection.prompt or 'COLUMN'}",
        1, 1,
    )  # fmt: skip


@check("error", needs_rows=False)
def wrong_types(data: CheckInput) -> Result:
    """A column has a role by its name, but a type that the role cannot have; it is not read.

    A text in place of a number, or one number in place of a list, cannot be read. Correct the
    dump, name another column with --map ROLE=COLUMN, or none with --map ROLE=none.
    """
    unusable = data.reading.selection.unusable
    if not unusable:
        return None
    texts = [
        f"`{column}` is {kind}{_in_files(data, column, kind)}, but the role {role} needs "
        f"{'a list of floats per row' if role in LOG_PROBS else NEEDED_TYPES[kind_of(role)]}"
        for role, (column, kind) in unusable.items()
    ]
    first = next(iter(unusable))
    files = " from any file" if len(data.input.files) > 1 else ""
    return Problem(
        88,
        f"{'; '.join(texts)}: not read{files}",
        f"set the right column with --map {first}=COLUMN, or none with --map {first}=none",
        len(unusable), len(data.input.columns),
        [
            FindingEvidence(file, text=f"{column}: {kind}")
            for column, kind in unusable.values()
            for file in _files_with(data, column, kind)
            if len(data.input.files) > 1
        ][:data.evidence],
    )  # fmt: skip


def _files_with(data: CheckInput, column: str, kind: str) -> list[str]:
    """Return the first files in which a column has a type."""
    facts = next(one for one in data.input.columns if one.name == column)
    return facts.files.get(kind, [file.path for file in data.input.files])


def _in_files(data: CheckInput, column: str, kind: str) -> str:
    """Return the files in which a column has a type; empty if it has one type in all files."""
    facts = next(one for one in data.input.columns if one.name == column)
    if not facts.other_types:
        return ""
    others = sum(facts.other_types.values())
    count = facts.other_types.get(kind, len(data.input.files) - others)
    return f" in {_file_names(facts.files[kind], count)}"


def _file_names(files: list[str], count: int) -> str:
    """Return `b.parquet`, or `b.parquet and 3 more files`."""
    names = ", ".join(path.rpartition("/")[2] for path in files[:MOST_FILES])
    more = count - min(len(files), MOST_FILES)
    return names + (f" and {counted(more, 'more file')}" if more > 0 else "")


@check("error", "keys")
def null_keys(data: CheckInput) -> Result:
    """Responses have no prompt id, step or domain; `rlpost advantages` rejects them.

    A response without a key belongs to no group, step or domain. Fill the keys in, or drop the
    rows.
    """
    rows = data.reading.rows
    keys = [role for role in ("group", "batch", "domain") if role in rows]
    keys += ["rollout"] if data.reading.selection.rollout_counts else []
    with_nulls = [role for role in keys if rows[role].null_count()]
    if not with_nulls:
        return None
    nulls = pl.any_horizontal(pl.col(role).is_null() for role in with_nulls)
    flags = rows.select(nulls).to_series()
    count = int(flags.sum())
    names = ", ".join(f"`{data.column(role)}`" for role in with_nulls)
    rows_count = "; --unit row needs no ids of rollouts" if "rollout" in with_nulls else ""
    return Problem(
        91,
        f"no {names} in {count:,} of {counted(data.count, 'response')}",
        f"fill in the keys or drop these rows; `rlpost advantages` rejects them{rows_count}",
        count, data.count, data.examples(flags),
    )  # fmt: skip


@check("error or warning", needs_rows=False)
def mixed_types(data: CheckInput) -> Result:
    """Files store a column with different types, or some files do not have the column.

    Readers use the schema of the first file, so other files are misread or rejected. Write all
    files with one schema.
    """
    if len(data.input.files) == 1:
        return NotRun("the input is one file")
    mixed = [column for column in data.input.columns if _has_other_kinds(column)]
    if not mixed:
        return None
    unread = {*(column for column, _ in data.reading.selection.unusable.values())}
    unread |= {column for column, _ in data.reading.selection.columns.in_some_files.values()}
    with_role = [one for one in mixed if one.role is not None or one.name in unread]
    shown = sorted(with_role or mixed, key=lambda one: one.name not in unread)[:MOST_SUGGESTED]
    first = shown[0]
    names = ", ".join(f"`{one.name}`" for one in mixed[:6])
    evidence = [
        FindingEvidence(path, text=f"{one.name}: {kind}")
        for one in shown
        for kind, files in one.files.items()
        if kind != one.type and (kind == MISSING or _plain(kind) != _plain(one.type))
        for path in files
    ]
    return Problem(
        85 if with_role else 30,
        f"the type differs between files for {names}: {'; '.join(map(_kinds, shown))}",
        "write all files with one schema; "
        + (
            f"rlpost does not read `{first.name}` from any file" if first.name in unread
            else "rlpost reads these files, but other readers use the type of the first file or "
            "fail"
        ),
        len(mixed), len(data.input.columns), evidence[:data.evidence],
        "error" if with_role else "warning",
    )  # fmt: skip


def _kinds(column: ColumnFacts) -> str:
    """Return the type in the first file that has the column, and the other types by file."""
    kinds = [
        f"{'missing' if kind == MISSING else kind} in "
        f"{_file_names(column.files.get(kind, []), count)}"
        for kind, count in column.other_types.items()
    ]
    return f"`{column.name}` is {column.type}, but {', '.join(kinds)}"


def _has_other_kinds(column: ColumnFacts) -> bool:
    """Return whether types differ in more than how a list or a string is stored."""
    return any(_plain(kind) != _plain(column.type) for kind in column.other_types)


def _plain(kind: str) -> str:
    kind = re.sub(r"fixed_size_list<(.*)>\[\d+\]", r"list<\1>", kind)
    kind = re.sub(r"\b(?:large_)?list(?:_view)?<\w+: ", "list<", kind)
    kind = re.sub(r"dictionary<values=(\w+),.*>", r"\1", kind)
    return re.sub(r"\blarge_(string|binary)\b|\b(string)_view\b", r"\1\2", kind).removesuffix(
        " not null"
    )


@check("error", "token lists")
def unequal_lengths(data: CheckInput) -> Result:
    """The lists of a response differ in length.

    Entry t of each list belongs to response token t, so a list of another length cannot be
    matched; a column that differs in most responses is left out. Write one entry per response
    token, without prompt and padding.
    """
    selection, rows = data.reading.selection, data.reading.rows
    others = [role for role in selection.tokens if role != selection.lists]
    if not others:
        return NotRun(f"no list to compare with `{selection.lists_column}`")
    unequal = {role: int(rows[f"unequal:{role}"].sum()) for role in others}
    unequal = {role: count for role, count in unequal.items() if count}
    if not unequal:
        return None
    flags = rows.select(pl.any_horizontal(f"unequal:{role}" for role in unequal)).to_series()
    count, lists = int(flags.sum()), selection.lists_column
    names = [f"`{data.column(role)}`" for role in unequal]
    if len(names) > 1:
        names = [f"{n} (in {rows:,})" for n, rows in zip(names, unequal.values(), strict=True)]
    all_differ = len(unequal) > 1 and len(unequal) == len(others)
    return Problem(
        96,
        f"{', '.join(names)} and `{lists}` differ in length in {count:,} of "
        f"{counted(data.count, 'response')}, which token statistics leave out",
        "write one entry per response token, without prompt and padding"
        f"{f' (or check `{lists}`, which differs from all others)' if all_differ else ''}",
        count, data.count, _lengths(data, flags, [*unequal]),
    )  # fmt: skip


def _lengths(data: CheckInput, flags: pl.Series, roles: list[str]) -> list[FindingEvidence]:
    """Return the first flagged responses, with the lengths of the lists that differ."""
    lists, evidence = data.reading.selection.lists_column or "", data.examples(flags)
    rows = data.reading.rows.filter(flags).head(data.evidence).iter_rows(named=True)
    texts = [
        ", ".join(
            [f"`{lists}` {_entries(-1 if row['null_list'] else row['length'])}"]
            + [
                f"`{data.column(role)}` {_entries(row[f'entries:{role}'])}"
                for role in roles
                if row[f"unequal:{role}"]
            ]
        )
        for row in rows
    ]
    return [replace(one, text=text) for one, text in zip(evidence, texts, strict=True)]


def _entries(count: int) -> str:
    return "null" if count < 0 else f"{count:,}"


def is_constant(column: TokenColumn) -> bool:
    """Return whether a column has one value in all tokens: such zeros are not padding."""
    return column.tokens >= FEW_TOKENS and column.min == column.max


@check("error or warning", "mask or log-probs")
def padded_lists(data: CheckInput) -> Result:
    """Lists are padded: they begin or end with zeros, or have one length and masked ends.

    Padding without a mask counts as policy tokens: in lengths, whitening and means over tokens.
    With a mask it is an expense of memory. Cut each list to the tokens of its response.
    """
    rows, masks, zeros = data.reading.rows, data.masks, _zero_padding(data)
    of_all = f"of {counted(data.count, 'response')}"
    if zeros is not None:
        role, side, flags = zeros
        count, verb = int(flags.sum()), "end with" if side == "padded" else "begin with"
        text = f"{count:,} {of_all} {verb} zeros in `{data.column(role)}`"
        unmasked = int((flags & ~rows["trailing" if side == "padded" else "leading"]).sum())
        if not unmasked:
            text += ", at masked tokens"
        elif unmasked < count:
            text += f", {unmasked:,} of them at policy tokens"
    elif masks is not None and masks.equal_lengths and _masked(data) > HALF * data.count:
        # Most dialogues end with policy tokens, so lists of one length with masked ends are padded.
        verb = "end with" if masks.trailing >= masks.leading else "begin with"
        flags = rows["trailing" if verb == "end with" else "leading"]
        count, unmasked = _masked(data), 0
        text = f"all lists have the same length, and {count:,} {of_all} {verb} masked tokens"
    else:
        return None
    left = verb == "begin with"
    effect = (
        "padding without a mask counts as policy tokens" if unmasked
        else "the mask leaves the padding out here, but it uses memory, and a tool that reads no "
        "mask counts it in lengths, whitening and means over tokens"
    )  # fmt: skip
    return Problem(
        90 if unmasked else 50,
        f"{text}: the lists are padded{' on the left, or contain the prompt' if left else ''}",
        f"cut each list to the tokens of its response; {effect}",
        count, data.count, data.examples(flags, "length", "tokens"),
        "error" if unmasked else "warning",
    )  # fmt: skip


def _masked(data: CheckInput) -> int:
    assert data.masks is not None
    return max(data.masks.trailing, data.masks.leading)


def _zero_padding(data: CheckInput) -> tuple[str, str, pl.Series] | None:
    """Return the role and the side (`padded` or `left`) of padding with zeros, and who has it.

    A shorter response has more padding. The first and last tokens of which the policy is certain
    are zeros, too, but not the more, the shorter the response is. None if fewer than half of the
    responses have zeros at an end, or if these are no padding.
    """
    columns, rows = data.tokens.columns if data.tokens else {}, data.reading.rows
    found = []
    for role in (role for role in LOG_PROBS if role in columns and not is_constant(columns[role])):
        for side in ("padded", "left"):
            zeros = rows[f"{side}:{role}"]
            flags = zeros.fill_nan(0) > 0
            if flags.sum() > HALF * data.count and _fills_up(zeros, rows["length"]):
                found.append((role, side, flags))
    return max(found, key=lambda item: int(item[2].sum()), default=None)


def _fills_up(zeros: pl.Series, lengths: pl.Series) -> bool:
    """Return whether responses have more zeros, the shorter they are: the slope is FILLED."""
    counts = zeros.to_numpy().astype(np.float64)
    known = ~np.isnan(counts)
    counts, others = counts[known], (lengths.to_numpy() - counts)[known]
    deviations = others - others.mean()
    return bool(-(counts @ deviations) > FILLED * (deviations @ deviations))


@check("error or warning", "log-probs")
def shifted_lists(data: CheckInput) -> Result:
    """A column is offset by one token against another column or against the mask.

    Ratios and KL of neighbouring tokens mean nothing. Frameworks that predict the next token
    store log-probs one place earlier: shift the column back, so that entry t is of token t.
    """
    assert data.tokens is not None
    shifts = [shift for shift in data.tokens.shifts if _is_shifted(shift)]
    if shifts:
        return _shifted(data, shifts[0], _shifted_steps(data, shifts[0].columns))
    for shift in data.tokens.shifts:
        steps = _shifted_steps(data, shift.columns)
        if steps:
            return _shifted(data, next(iter(steps.values())), steps)
    return _zero_at_an_end(data)


def _shifted_steps(data: CheckInput, columns: tuple[str, str]) -> dict[Label, Shift]:
    """Return the steps in which these columns are shifted; empty for the mask."""
    if columns[0] == "mask":
        return {}
    shifts = step_lags(data.reading.totals, columns)
    return {step: shift for step, shift in shifts.items() if _is_shifted(shift)}


def _shifted(data: CheckInput, shift: Shift, steps: dict[Label, Shift]) -> Problem:
    one, other = (f"`{data.column(role)}`" for role in shift.columns)
    direction = "later" if shift.lag > 0 else "earlier"
    if shift.columns[0] == "mask":
        reason = "log-probs jump at that offset, not at the edges of the mask"
    else:
        here, there = f"{shift.difference:.3g}", f"{shift.difference_at_lag:.3g}"
        reason = f"mean |difference| {there} instead of {here} nats"
    rows = data.reading.rows
    in_some_steps = bool(steps) and len(steps) < data.step_count()
    count = int(rows["batch"].is_in(list(steps)).sum()) if in_some_steps else data.count
    evidence = (
        data.examples_of_steps(steps, "tokens")
        if in_some_steps
        else data.examples(rows["tokens"] > 1, "tokens")
    )
    return Problem(
        97,
        f"{other} matches {one} one token {direction}{data.in_steps(steps)} ({reason})",
        "entry t of every list must belong to response token t: shift one of the columns back",
        count, data.count, evidence, "error",
    )  # fmt: skip


def _is_shifted(shift: Shift) -> bool:
    if not shift.lag or shift.tokens < FEW_SHIFTED:
        return False
    if shift.columns[0] == "mask":
        return (
            shift.difference_at_lag > BETTER * shift.difference
            and shift.difference_at_lag > STANDARD_ERRORS
        )
    return shift.difference_at_lag * BETTER < shift.difference


def _zero_at_an_end(data: CheckInput) -> Result:
    """Find log-probs of exactly 0 at the first or last policy token of most responses.

    With a single column, it is unknown whether the policy is certain of these tokens.
    """
    assert data.tokens is not None
    if _zero_padding(data) is not None:
        return None
    alone = len(data.tokens.edges) == 1
    for role, ends in data.tokens.edges.items():
        column = data.tokens.columns[role]
        zeros = column.zero / column.tokens if column.tokens else 1.0
        count = ends["shifted"]
        if count > HALF * data.count and zeros < HALF * count / data.count:
            flags = data.reading.rows[f"shifted:{role}"].fill_nan(0) > 0
            looks = (
                "a fill value, or a token of which the policy is certain"
                if alone else "a fill value: other columns are not 0 there"
            )  # fmt: skip
            return Problem(
                60 if alone else 97,
                f"{count:,} of {counted(data.count, 'response')} begin or end with a policy token "
                f"whose `{column.column}` is exactly 0, which looks like {looks}; "
                f"{share(column.zero, column.tokens)} of all tokens are 0",
                "entry t of every list must belong to response token t: check whether the column "
                "is offset against the mask, or the last token has no log-prob",
                count, data.count, data.examples(flags, "length"), "warning" if alone else "error",
            )  # fmt: skip
    return None


@check("error", "mask")
def mask_not_binary(data: CheckInput) -> Result:
    """The mask has values other than 0 and 1.

    A mask is 1 at policy tokens and 0 at observations; other values count as 1. Name another
    column with --map mask=COLUMN, or correct the dump.
    """
    if data.masks is None or not data.masks.not_binary:
        return None
    count, value = data.masks.not_binary, data.masks.other_value
    such = "null" if value is None else f"{value:g}"
    return Problem(
        92,
        f"`{data.masks.column}` has values other than 0 and 1, such as {such}, in {count:,} of "
        f"{counted(data.count, 'response')}",
        "a mask is 1 at policy tokens and 0 elsewhere; set another column with --map mask=COLUMN",
        count, data.count, data.examples(data.reading.rows["not_binary"]),
    )  # fmt: skip


@check("error or warning", "token lists")
def empty_masks(data: CheckInput) -> Result:
    """Responses have no policy token: they get no advantage, but count in their group's mean.

    Such a response is trained on nowhere, but its reward moves the baseline of its group. Drop
    it, or correct the mask.
    """
    rows = data.reading.rows
    if "tokens" not in rows:
        return None
    flags = (rows["tokens"] == 0) & ~data.failed & ~data.no_answers  # which have findings
    count = int(flags.sum())
    if not count:
        return None
    reason = f"`{data.masks.column}` is 0" if data.masks else "no tokens"
    nulls = int(rows["null_list"].sum())
    reason += f", or null ({nulls:,})" if nulls else ""
    verb = "has" if count == 1 else "have"
    return Problem(
        40 + 55 * count / data.count,
        f"{count:,} of {counted(data.count, 'response')} ({share(count, data.count)}) {verb} no "
        f"policy token: {reason}",
        "no advantage, but a reward in the mean of the group: drop such responses, or correct the "
        "mask",
        count, data.count, data.examples(flags, "length"),
        "error" if count > HALF * data.count else "warning",
    )  # fmt: skip
